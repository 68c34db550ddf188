"""Convert journal events into changes of the database. Pure functions: no database and no file is touched.

Applying the changes of consecutive stretches of a journal gives the same rows as applying those of the whole journal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Event = Mapping[str, Any]

STEP_CURVES = (
    *("loss", "lr", "grad_norm", "tokens_per_second"),
    *("seconds_per_step", "flops_per_second", "mfu", "memory"),
)
SPIKE_CURVES = {"loss": "spike_loss", "grad_norm": "spike_grad_norm"}  # a point for each spike, with its value
EVALUATION_CURVES = {"loss": "eval_loss", "perplexity": "eval_perplexity", "bits_per_byte": "eval_bits_per_byte"}


@dataclass
class Changes:
    """Columns of the attempt to set, points that replace those with the same name and step, and scores."""

    columns: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] | None = None  # all metrics of the attempt; None leaves them unchanged
    curves: dict[str, dict[int, float]] = field(default_factory=dict)
    layers: dict[str, dict[tuple[int, int], float]] = field(default_factory=dict)
    scores: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)  # rows of `score` by task and metric
    malformed: int = 0  # events with a right checksum and invalid content

    def reach(self, step: int) -> None:
        self.columns["last_step"] = max(step, self.columns.get("last_step", 0))


def project_events(events: Iterable[Event]) -> Changes:
    """Return the changes that `events` make; later events win. Unknown kinds are ignored, malformed events counted."""
    changes = Changes()
    for event in events:
        handler = _HANDLERS.get(event["kind"])
        if handler is None:
            continue
        try:
            handler(event, changes)
        except (KeyError, TypeError, ValueError, AttributeError):
            changes.malformed += 1
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


def optional(convert: Callable[[Any], Any], value: Any) -> Any:
    """Return `convert(value)`, or None for None."""
    return None if value is None else convert(value)


def _start(event: Event, changes: Changes) -> None:
    environment, git = event.get("environment") or {}, event.get("git") or {}
    started = {
        "started": number(event["t"]),
        "host": optional(string, event.get("host")),
        "device": optional(string, event.get("device")),
        "gpu": optional(string, environment.get("gpu")),
        "threads": optional(integer, event.get("threads")),
        "precision": optional(string, event.get("precision")),
        "parameters": optional(lambda n: integer(n, 64), event.get("parameters")),
        "environment": dict(environment),
        "git_commit": optional(string, git.get("commit")),
        "git_dirty": optional(bool, git.get("dirty")),
        "code": optional(string, event.get("code")),
        "resumed_from": optional(integer, event.get("resumed_from")),
    }
    # A requeued job continues in the same directory: its first start counts, and its earlier outcome does not.
    first = changes.columns.get("started", started["started"])
    changes.columns |= {**started, "started": first, "outcome": None, "cause": None, "ended": None}
    changes.metrics = {}


def _data(event: Event, changes: Changes) -> None:
    changes.columns |= {
        "fingerprint": optional(string, event.get("fingerprint")),
        "validation_fingerprint": optional(string, event.get("validation_fingerprint")),
    }


def _step(event: Event, changes: Changes) -> None:
    step = integer(event["step"])
    points = {name: number(event[name]) for name in STEP_CURVES if event.get(name) is not None}
    _draw(changes, step, points)


def _evaluation(event: Event, changes: Changes) -> None:
    step = integer(event["step"])
    points = {curve: number(event[n]) for n, curve in EVALUATION_CURVES.items() if event.get(n) is not None}
    _draw(changes, step, points)


def _draw(changes: Changes, step: int, points: Mapping[str, float]) -> None:
    for name, value in points.items():
        changes.curves.setdefault(name, {})[step] = value
    changes.reach(step)


def _layers(event: Event, changes: Changes) -> None:
    step = integer(event["step"])
    points = {
        string(name): {(step, layer): number(value) for layer, value in enumerate(values) if value is not None}
        for name, values in event["values"].items()
    }
    for name, curve in points.items():
        changes.layers.setdefault(name, {}).update(curve)


def _spike(event: Event, changes: Changes) -> None:
    _draw(changes, integer(event["step"]), {SPIKE_CURVES[event["of"]]: number(event["value"])})


def _score(event: Event, changes: Changes) -> None:
    row = {
        "task": string(event["task"]),
        "metric": string(event["metric"]),
        "value": number(event["value"]),
        "stderr": optional(number, event.get("stderr")),
        "examples": integer(event["examples"]),
        "shots": integer(event.get("shots", 0)),
        "task_version": string(event.get("task_version") or ""),
        "harness": string(event.get("harness") or ""),
    }
    changes.scores[row["task"], row["metric"]] = row


def _checkpoint(event: Event, changes: Changes) -> None:
    changes.reach(integer(event["step"]))


def _outcome(event: Event, changes: Changes) -> None:
    metrics = {string(name): number(value) for name, value in (event.get("metrics") or {}).items() if value is not None}
    ended = {
        "outcome": string(event["outcome"]),
        "cause": string(event.get("cause") or ""),
        "ended": number(event["t"]),
    }
    if event.get("step") is not None:
        changes.reach(integer(event["step"]))
    changes.columns |= ended
    changes.metrics = metrics


_HANDLERS: dict[str, Callable[[Event, Changes], None]] = {
    "start": _start,
    "data": _data,
    "step": _step,
    "layers": _layers,
    "spike": _spike,
    "evaluation": _evaluation,
    "score": _score,
    "checkpoint": _checkpoint,
    "outcome": _outcome,
}
