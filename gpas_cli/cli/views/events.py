"""Journal events as lines of text, for `gpas logs` and `gpas train`, and the marks of losses and spikes."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from gpas_cli import events
from gpas_cli.spec.downstream import BY_TEXT
from gpas_cli.spec.extensions import main_result
from gpas_cli.spec.stage import called
from gpas_cli.state.status import Progress
from gpas_cli.words import count, left_out, significant

_BARS = "▁▂▃▄▅▆▇█"


def line(event: events.Event) -> str:
    """Return an event as one line; "" for kinds that are not shown, or that this version does not know."""
    describe = _LINES.get(type(event))
    return describe(event) if describe else ""


def measured(update: events.Step | Progress) -> list[str]:
    """Return the numbers of an update as text: progress, loss, learning rate, gradient norm, speed."""
    parts = [f"{update.step}/{update.steps}" if update.steps else f"update {update.step}"]
    for value, label in ((update.loss, "loss"), (update.lr, "lr"), (update.grad_norm, "gradient")):
        parts += [f"{label} {_short(value)}"] if value is not None else []
    parts += [f"{update.tokens_per_second:,.0f} tokens/s"] if update.tokens_per_second else []
    parts += [f"MFU {update.mfu:.1%}"] if update.mfu else []
    return parts


def _short(value: float | None) -> str:
    """Return a number in four digits."""
    return str(value) if value is None else significant(value, 4)


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """Return the last `width` finite values as bars between their minimum and maximum."""
    shown = [value for value in values if math.isfinite(value)][-width:]
    if not shown:
        return ""
    low, span = min(shown), max(shown) - min(shown)
    return "".join(_BARS[int((value - low) / span * (len(_BARS) - 1)) if span else 0] for value in shown)


def _started(event: events.Started) -> str:
    parts = [f"on {event.host}", str((event.environment or {}).get("gpu") or event.device or "")]
    parts += [count(event.processes, "process", "processes")] if event.processes and event.processes > 1 else []
    parts += [count(event.threads, "thread")] if event.threads else []
    parts += [event.precision] if event.precision else []
    parts += [count(event.parameters, "parameter")] if event.parameters else []
    parts += [f"code {event.code[:8]}"] if event.code else []
    return f"started {', '.join(part for part in parts if part)}"


def _phase(event: events.Phase) -> str:
    resumed = f" from update {event.resumed_from}" if event.resumed_from else ""
    detail = f": {event.detail}" if event.detail else ""
    return f"{event.name}{resumed}{detail}"


def _text_facts(event: events.TextFacts) -> str:
    splits = ((event.train_tokens, "training"), (event.validation_tokens, "validation"))
    sizes = [f"{tokens:,} {words} tokens" for tokens, words in splits if tokens]
    sizes += [left_out(event.left_out)] if event.left_out else []
    name = "" if event.source == "files" else f" {event.source}"
    return f"text{name}: {', '.join(sizes)}" if sizes else ""


def _spike(event: events.Spike) -> str:
    what = "loss" if event.of == "loss" else "gradient norm"
    return f"spike: {what} {_short(event.value)} at update {event.step}, usually {_short(event.usual)}"


def _evaluation(event: events.Evaluation) -> str:
    numbers = {
        "loss": (event.loss, event.perplexity),
        "loss at masked tokens": (event.masked_loss, event.masked_perplexity),
        "loss at corrupted spans": (event.denoising_loss, event.denoising_perplexity),
        "loss of translations": (event.translation_loss, event.translation_perplexity),
    }
    what = next((what for what, (loss, _) in numbers.items() if loss is not None), "loss")
    loss, perplexity = numbers[what]
    return f"update {event.step}: validation {what} {_short(loss)}, perplexity {_short(perplexity)}"


def _network(event: events.Removal | events.RemovalScore) -> str:
    """Return what a measurement leaves out: "without layer 3", "without the attention of layer 3"."""
    if not event.layer:
        return "whole network"
    how, _, count = (event.removed or "").partition(" ")
    if count:
        last = event.layer + int(count) - 1
        return f"without layer {last}" if last == event.layer else f"without layers {event.layer} to {last}"
    part = f"the {how.replace('_', '-')} of " if how else ""
    return f"without {part}layer {event.layer}"


def _removal(event: events.Removal) -> str:
    found = "its streams are read" if event.loss is None else f"validation loss {_short(event.loss)}"
    return f"{_network(event)}: {found}"


def _removal_score(event: events.RemovalScore) -> str:
    error = f" ± {_short(event.stderr)}" if event.stderr is not None else ""
    questions = count(event.examples, "question")
    return f"{_network(event)}: {event.task} {_short(event.value)}{error} ({questions})"


def _score(event: events.Score) -> str:
    noun = "document" if event.metric in BY_TEXT else "question"
    error = f" ± {_short(event.stderr)}" if event.stderr is not None else ""
    origin = f", taken over from {event.taken_from}" if event.taken_from else ""
    return f"{event.task}: {event.metric} {_short(event.value)}{error} ({count(event.examples, noun)}){origin}"


def _checkpoint(event: events.Checkpoint) -> str:
    took = f" in {event.seconds:.1f} s" if event.seconds else ""
    return f"update {event.step} saved{took}" if event.path else ""


def _outcome(event: events.Outcome) -> str:
    numbers = {name: value for name, value in event.metrics.items() if value is not None}
    found = main_result(numbers)
    result = f": {found[0].words} {_short(found[1])}" if found else ""
    cause = f": {event.cause}" if event.cause else ""
    return f"{called(event.outcome, event.metrics)} at update {event.step}{result}{cause}"


_LINES: dict[type[events.Event], Callable[[Any], str]] = {
    events.Started: _started,
    events.Phase: _phase,
    events.TextFacts: _text_facts,
    events.Step: lambda event: "  ".join(measured(event)) if event.loss is not None else "",
    events.Spike: _spike,
    events.Skipped: lambda event: f"update {event.step} skipped: gradients not finite, loss scale {event.loss_scale:g}",
    events.Evaluation: _evaluation,
    events.Removal: _removal,
    events.RemovalScore: _removal_score,
    events.Score: _score,
    events.Checkpoint: _checkpoint,
    events.Profile: lambda event: f"profiled {event.updates} updates: {event.trace}\n{event.operators}",
    events.Warned: lambda event: f"warning: {event.message}",
    events.Outcome: _outcome,
    events.Malformed: lambda event: f"{event.problem}: {dict(event.unread)}",
}
