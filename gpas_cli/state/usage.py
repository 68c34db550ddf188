"""What attempts and stages have used: wall-clock seconds, and hours of devices.

The hours of a stage are divided into useful and repeated or useless work. A result may consist of several attempts,
each of which resumes from a checkpoint of an earlier one. What the earlier one computed after that checkpoint was
computed again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated

from gpas_cli.events import Checkpoint, Outcome, Phase, Removal, RemovalScore, Score, Started
from gpas_cli.state.attempt import conclude
from gpas_cli.state.status import RESULTS, UNREADABLE
from gpas_cli.store.journal import Line, lines_of, tail
from gpas_cli.store.rundir import AttemptDir, attempts, read_json
from gpas_cli.structure import HIDDEN

_GPU_HOURS = "GPU-hours"
_CORE_HOURS = "core-hours"
_LAST_EVENT_BYTES = 2048  # at the end of a journal, enough to contain its last event


@dataclass(frozen=True)
class Usage:
    """The usage of attempts: hours of GPUs, or of cores where no GPU was used."""

    seconds: float = field(default=0.0, metadata=HIDDEN)  # on the clock
    gpu_hours: float = 0.0
    core_hours: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.seconds + other.seconds, self.gpu_hours + other.gpu_hours, self.core_hours + other.core_hours)

    def times(self, factor: float) -> Usage:
        """Return the usage multiplied by `factor`."""
        return Usage(self.seconds * factor, self.gpu_hours * factor, self.core_hours * factor)

    @property
    def unit(self) -> str:
        """The unit of the hours: GPU-hours, or core-hours if no GPU was used."""
        return _GPU_HOURS if self.gpu_hours else _CORE_HOURS

    def hours(self, unit: str) -> str:
        """Return the hours in this unit as text: "1,204.5", "0.61", "0.0123"."""
        hours = self.gpu_hours if unit == _GPU_HOURS else self.core_hours
        return f"{hours:,.1f}" if hours >= 10 else f"{hours:.3g}" if 0 < hours < 0.1 else f"{hours:.2f}"


NOTHING = Usage()  # also the start of a sum


def usage_of(seconds: float, devices: Sequence[str]) -> Usage:
    """Return the usage of `devices` ("gpu-0", "cpu-1") for a time."""
    hours = seconds * len(devices) / 3600
    on_gpus = any(device.startswith("gpu") for device in devices)
    return Usage(seconds, hours if on_gpus else 0.0, 0.0 if on_gpus else hours)


def exit_time(attempt: AttemptDir) -> float | None:
    """Return the time in exit.json, None if it has none or does not exist. Raises the same errors as `end_of`."""
    try:
        recorded = read_json(attempt.exit_path).get("t")  # the whole record would take several times as long
    except FileNotFoundError:
        return None
    return recorded if isinstance(recorded, float) else None


def end_of(attempt: AttemptDir) -> float:
    """Return the unix time at which an attempt ended: the time of exit.json, or else of its last event.

    Raises OSError or StoreError if its files cannot be read.
    """
    recorded = exit_time(attempt)
    if recorded is not None:
        return recorded
    lines = tail(attempt.journal_path, _LAST_EVENT_BYTES)
    return lines[-1].t if lines else attempt.attempt_path.stat().st_mtime


_KINDS = ("start", "phase", "checkpoint", "score", "removal", "removal_score", "outcome")


@dataclass(frozen=True)
class Spent:
    """The usage of stages, by whether it contributed to the result."""

    trained: Annotated[Usage, "in the result, or in a running attempt"] = NOTHING
    lost: Annotated[Usage, "computed after the last checkpoint that was resumed from, and computed again"] = NOTHING
    failed: Annotated[Usage, "attempts that contributed nothing"] = NOTHING
    superseded: Annotated[Usage, "earlier results that a later one has replaced"] = NOTHING

    def __add__(self, other: Spent) -> Spent:
        return Spent(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(Spent)))

    @property
    def total(self) -> Usage:
        """The sum of all parts."""
        return self.trained + self.lost + self.failed + self.superseded


@dataclass
class _Segment:
    """One process of an attempt: from its start to its end, or to the next start in the same directory.

    saved: update -> unix time of its checkpoint. measured: it recorded scores or removals, which later attempts keep.
    """

    attempt: AttemptDir
    devices: tuple[str, ...]
    began: float
    ended: float
    resumed_from: int = 0
    outcome: str = ""
    running: bool = False
    measured: bool = False
    saved: dict[int, float] = field(default_factory=dict)

    def until(self, moment: float) -> Usage:
        """Return the usage from the start to a moment."""
        return usage_of(max(0.0, moment - self.began), self.devices)

    def since(self, moment: float) -> Usage:
        """Return the usage from a moment to the end."""
        return usage_of(max(0.0, self.ended - moment), self.devices)

    @property
    def whole(self) -> Usage:
        return self.until(self.ended)


def spent_on(runs: Path, keys: Sequence[str]) -> Spent:
    """Return the usage of the stages `keys` so far. Attempts that cannot be read are left out."""
    spent = Spent()
    for key in dict.fromkeys(keys):
        segments: list[_Segment] = []
        for attempt in attempts(runs, key):
            with suppress(*UNREADABLE):
                segments += _segments(attempt)
        spent += _split(segments)
    return spent


def _split(segments: Sequence[_Segment]) -> Spent:
    """Return the usage of the segments of one stage, oldest first."""
    last = _last_in_result(segments)
    # Without a result, the next attempt resumes from the checkpoint with the most updates.
    needed = max((step for segment in segments for step in segment.saved), default=0) if last is None else 0
    spent = Spent()
    for place in range(len(segments) - 1, -1, -1):
        segment = segments[place]
        if place == last:
            spent += Spent(trained=segment.whole)
            needed = segment.resumed_from
        elif needed in segment.saved and (last is None or place < last):
            saved = segment.saved[needed]
            spent += Spent(trained=segment.until(saved), lost=segment.since(saved))
            needed = segment.resumed_from
        else:
            spent += _without_update(segment)
    return spent


def _without_update(segment: _Segment) -> Spent:
    """Return the usage of a segment if no attempt in the result resumed from its checkpoints."""
    if segment.measured or segment.running:
        return Spent(trained=segment.whole)
    return Spent(superseded=segment.whole) if segment.outcome in RESULTS else Spent(failed=segment.whole)


def _last_in_result(segments: Sequence[_Segment]) -> int | None:
    """Return the index of the segment that ended with the result, else of the running one; None without either."""
    for holds in (lambda one: one.outcome in RESULTS, lambda one: one.running):
        places = [place for place, segment in enumerate(segments) if holds(segment)]
        if places:
            return places[-1]
    return None


def _segments(attempt: AttemptDir) -> Iterator[_Segment]:
    """Yield the segments of an attempt, at least one. Raises OSError or StoreError if its files cannot be read."""
    asked = attempt.read_attempt()
    running = conclude(attempt).state == "running"
    segment = _Segment(attempt, asked.devices, asked.created, asked.created)
    for line in lines_of(attempt.journal_path, _KINDS):
        if isinstance(line.event, Started) and segment.ended > segment.began:
            yield segment
            segment = _Segment(attempt, asked.devices, line.t, line.t)
        _follow(segment, line)
    segment.running = running
    segment.ended = time.time() if running else max(segment.ended, end_of(attempt))
    yield segment


def _follow(segment: _Segment, line: Line) -> None:
    event = line.event
    segment.ended = max(segment.ended, line.t)
    if isinstance(event, Phase) and event.resumed_from is not None:
        segment.resumed_from = event.resumed_from
    elif isinstance(event, Started):
        segment.resumed_from = event.resumed_from or 0
    elif isinstance(event, Checkpoint):
        segment.saved[event.step] = line.t
    elif isinstance(event, Score | Removal | RemovalScore):
        segment.measured = True
    segment.outcome = event.outcome if isinstance(event, Outcome) else segment.outcome
