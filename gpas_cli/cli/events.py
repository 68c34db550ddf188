"""Journal events as lines of text, for `gpas logs` and `gpas train`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpas_cli.words import count

Event = Mapping[str, Any]


def line(event: Event) -> str:
    """Return an event as one line; "" for kinds that are not shown, or that this version does not know."""
    describe = _LINES.get(str(event.get("kind")))
    try:
        return describe(event) if describe else ""
    except (
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
    ):  # the checksum is right, but another version gives the fields another meaning
        return f"{event['kind']}: {dict(event)}"


def measured(event: Event) -> list[str]:
    """Return the numbers of an update as text: progress, loss, learning rate, gradient norm, speed."""
    parts = [f"{event['step']}/{event['steps']}" if event.get("steps") else f"update {event['step']}"]
    for name, label in (("loss", "loss"), ("lr", "lr"), ("grad_norm", "gradient")):
        parts += [f"{label} {short(event[name])}"] if event.get(name) is not None else []
    parts += [f"{event['tokens_per_second']:,.0f} tokens/s"] if event.get("tokens_per_second") else []
    parts += [f"MFU {event['mfu']:.1%}"] if event.get("mfu") else []
    return parts


def short(value: object) -> str:
    """Return a journalled number in four digits; "nan" and "inf" are journalled as strings and stay so."""
    return f"{value:.4g}" if isinstance(value, int | float) else str(value)


def _start(event: Event) -> str:
    parts = [f"on {event.get('host')}", str((event.get("environment") or {}).get("gpu") or event.get("device") or "")]
    parts += [count(event["processes"], "process", "processes")] if event.get("processes", 1) > 1 else []
    parts += [count(event["threads"], "thread")] if event.get("threads") else []
    parts += [str(event["precision"])] if event.get("precision") else []
    parts += [count(event["parameters"], "parameter")] if event.get("parameters") else []
    parts += [f"code {str(event['code'])[:8]}"] if event.get("code") else []
    return f"started {', '.join(part for part in parts if part)}"


def _phase(event: Event) -> str:
    resumed = f" from update {event['resumed_from']}" if event.get("resumed_from") else ""
    detail = f": {event['detail']}" if event.get("detail") else ""
    return f"{event.get('name')}{resumed}{detail}"


def _data(event: Event) -> str:
    sizes = [
        f"{event[f'{split}_tokens']:,} {words} tokens"
        for split, words in (("train", "training"), ("validation", "validation"))
        if event.get(f"{split}_tokens")
    ]
    return f"text {event.get('source', '')}: {', '.join(sizes)}" if sizes else ""


def _step(event: Event) -> str:
    return "  ".join(measured(event)) if event.get("loss") is not None else ""


def _spike(event: Event) -> str:
    what = "loss" if event.get("of") == "loss" else "gradient norm"
    return (
        f"spike: {what} {short(event.get('value'))} at update {event.get('step')}, usually {short(event.get('usual'))}"
    )


def _evaluation(event: Event) -> str:
    loss, perplexity = short(event.get("loss")), short(event.get("perplexity"))
    return f"update {event.get('step')}: validation loss {loss}, perplexity {perplexity}"


def _score(event: Event) -> str:
    error = f" ± {short(event['stderr'])}" if event.get("stderr") is not None else ""
    return f"{event['task']}: {event['metric']} {short(event['value'])}{error} ({count(event['examples'], 'question')})"


def _checkpoint(event: Event) -> str:
    took = f" in {event['seconds']:.1f} s" if event.get("seconds") else ""
    return f"update {event.get('step')} saved{took}" if event.get("path") else ""


def _profile(event: Event) -> str:
    return f"profiled {event.get('updates')} updates: {event.get('trace')}\n{event.get('operators')}"


def _outcome(event: Event) -> str:
    perplexity = (event.get("metrics") or {}).get("perplexity")
    result = f": perplexity {short(perplexity)}" if perplexity is not None else ""
    cause = f": {event['cause']}" if event.get("cause") else ""
    return f"{event.get('outcome')} at update {event.get('step')}{result}{cause}"


_LINES: dict[str, Callable[[Event], str]] = {
    "start": _start,
    "phase": _phase,
    "data": _data,
    "step": _step,
    "spike": _spike,
    "evaluation": _evaluation,
    "score": _score,
    "checkpoint": _checkpoint,
    "profile": _profile,
    "warning": lambda event: f"warning: {event.get('message')}",
    "outcome": _outcome,
}
