"""Convert events of a journal into changes of the database. Pure functions: no database and no file is touched.

Applying the changes of consecutive stretches of a journal gives the same rows as applying all changes at once.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpas_cli import events
from gpas_cli.store.journal import Line

# The curves that an event adds a point to, by the field that has its value.
STEP_CURVES = {
    name: name
    for name in (
        *("loss", "mean_loss", "lr", "grad_norm", "tokens_per_second"),
        *("seconds_per_step", "flops_per_second", "mfu", "memory", "loss_scale"),
    )
}
SKIPPED_CURVE = "skipped"  # a point for each skipped update, with its loss scale
SPIKE_CURVES = {"loss": "spike_loss", "grad_norm": "spike_grad_norm"}  # a point for each spike, with its value
_EVALUATION_CURVES = {
    name: f"eval_{name}"
    for name in (
        *("loss", "perplexity", "bits_per_byte"),
        *("masked_loss", "masked_perplexity", "denoising_loss", "denoising_perplexity"),
        *("translation_loss", "translation_perplexity"),
    )
}


@dataclass
class Changes:
    """Columns of the attempt to set, points that replace those with the same name and step, and scores."""

    columns: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] | None = None  # all metrics of the attempt; None leaves them unchanged
    curves: defaultdict[str, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    layers: dict[str, dict[tuple[int, int], float]] = field(default_factory=dict)
    scores: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)  # rows of `score` by task and metric
    events: int = 0
    damaged: int = 0  # lines, and events with a right checksum and invalid content

    def reach(self, step: int) -> None:
        self.columns["last_step"] = max(step, self.columns.get("last_step", 0))


def project_events(lines: Iterable[Line | None]) -> Changes:
    """Return the changes that events make; later events win.

    Unknown kinds are ignored; malformed events, and None for a damaged line, are counted.
    """
    changes = Changes()
    for line in lines:
        if line is None:
            changes.damaged += 1
            continue
        changes.events += 1
        event = events.event_of(line.values)  # not line.event, which keeps it: a stretch has thousands
        handler = _HANDLERS.get(type(event))
        if handler is None:
            continue
        try:
            handler(event, line.t, changes)
        except ValueError:  # a number or a name that the database does not have
            changes.damaged += 1
    return changes


def number(value: Any) -> float:
    """Return a journalled number, which may be the string "nan", "inf" or "-inf". Raises ValueError for others."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"not a number: {value!r}")
    try:
        return float(value)
    except OverflowError as error:  # an integer of more than 308 digits
        raise ValueError("not a number of 64 bits") from error


def integer(value: Any, bits: int = 32) -> int:
    """Return a count that fits a signed integer of `bits` bits. Raises ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2 ** (bits - 1):
        raise ValueError(f"not a count of {bits} bits: {value!r}")
    return value


def string(value: Any) -> str:
    """Return text that every database can hold: NUL, which Postgres cannot, and lone surrogates are escaped."""
    return str(value).replace("\0", "\\0").encode("utf-8", "backslashreplace").decode("utf-8")


def _optional(convert: Callable[[Any], Any], value: Any) -> Any:
    """Return `convert(value)`, or None for None."""
    return None if value is None else convert(value)


def _started(event: events.Started, t: float, changes: Changes) -> None:
    environment = event.environment or {}
    git = event.git or {}
    started = {
        "started": t,
        "host": _optional(string, event.host),
        "device": _optional(string, event.device),
        "gpu": _optional(string, environment.get("gpu")),
        "threads": _optional(integer, event.threads),
        "precision": _optional(string, event.precision),
        "parameters": _optional(lambda n: integer(n, 64), event.parameters),
        "environment": dict(environment),
        "git_commit": _optional(string, git.get("commit")),
        "git_dirty": _optional(bool, git.get("dirty")),
        "code": _optional(string, event.code),
        "resumed_from": _optional(integer, event.resumed_from),
    }
    # A requeued job continues in the same directory: its first start counts, and its earlier outcome does not.
    first = changes.columns.get("started", started["started"])
    changes.columns |= {**started, "started": first, "outcome": None, "cause": None, "ended": None}
    changes.metrics = {}


def _phase(event: events.Phase, t: float, changes: Changes) -> None:
    if event.resumed_from is not None:  # set in the phase in which training begins
        changes.columns["resumed_from"] = integer(event.resumed_from)


def _text_facts(event: events.TextFacts, t: float, changes: Changes) -> None:
    changes.columns |= {
        "fingerprint": _optional(string, event.fingerprint),
        "validation_fingerprint": _optional(string, event.validation_fingerprint),
    }


def _step(event: events.Step, t: float, changes: Changes) -> None:
    _draw(changes, integer(event.step), event, STEP_CURVES)


def _evaluation(event: events.Evaluation, t: float, changes: Changes) -> None:
    _draw(changes, integer(event.step), event, _EVALUATION_CURVES)


def _draw(changes: Changes, step: int, event: events.Event, curves: Mapping[str, str]) -> None:
    """Add a point to each of `curves`, by the name of the event's field, unless that is None."""
    for name, curve in curves.items():
        value = getattr(event, name)
        if value is not None:
            changes.curves[curve][step] = float(value)
    changes.reach(step)


def _layers(event: events.Layers, t: float, changes: Changes) -> None:
    step = integer(event.step)
    for name, values in event.values.items():
        points = {(step, layer): float(value) for layer, value in enumerate(values) if value is not None}
        changes.layers.setdefault(string(name), {}).update(points)


def _spike(event: events.Spike, t: float, changes: Changes) -> None:
    if event.of not in SPIKE_CURVES:
        raise ValueError(f"no curve for spikes of {event.of}")
    _draw(changes, integer(event.step), event, {"value": SPIKE_CURVES[event.of]})


def _skipped(event: events.Skipped, t: float, changes: Changes) -> None:
    _draw(changes, integer(event.step), event, {"loss_scale": SKIPPED_CURVE})


def _score(event: events.Score, t: float, changes: Changes) -> None:
    task = string(event.task)
    metric = string(event.metric)
    changes.scores[task, metric] = {
        "task": task,
        "metric": metric,
        "value": float(event.value),
        "stderr": None if event.stderr is None else float(event.stderr),
        "examples": integer(event.examples),
        "shots": integer(event.shots),
        "task_version": string(event.task_version),
        "harness": string(event.harness),
    }


def _checkpoint(event: events.Checkpoint, t: float, changes: Changes) -> None:
    changes.reach(integer(event.step))


def _outcome(event: events.Outcome, t: float, changes: Changes) -> None:
    changes.reach(integer(event.step))
    changes.columns |= {"outcome": string(event.outcome), "cause": string(event.cause), "ended": t}
    changes.metrics = {string(name): float(value) for name, value in event.metrics.items() if value is not None}


def _malformed(event: events.Malformed, t: float, changes: Changes) -> None:
    raise ValueError(event.problem)


_HANDLERS: dict[type[events.Event], Callable[[Any, float, Changes], None]] = {
    events.Started: _started,
    events.Phase: _phase,
    events.TextFacts: _text_facts,
    events.Step: _step,
    events.Layers: _layers,
    events.Spike: _spike,
    events.Skipped: _skipped,
    events.Evaluation: _evaluation,
    events.Score: _score,
    events.Checkpoint: _checkpoint,
    events.Outcome: _outcome,
    events.Malformed: _malformed,
}
