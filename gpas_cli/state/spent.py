"""The hours that a stage has used, divided into useful and repeated or useless work.

A result may consist of several attempts, each of which resumes from a checkpoint of an earlier one. What the earlier
one computed after that checkpoint was computed again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from gpas_cli.events import Checkpoint, Outcome, Phase, Removal, RemovalScore, Score, Started
from gpas_cli.state.attempt import conclude_or_unknown
from gpas_cli.state.status import RESULTS, UNREADABLE
from gpas_cli.state.usage import NOTHING, Usage, end_of, usage_of
from gpas_cli.store.journal import Line, lines_of
from gpas_cli.store.rundir import AttemptDir, attempts

_KINDS = ("start", "phase", "checkpoint", "score", "removal", "removal_score", "outcome")


@dataclass(frozen=True)
class Spent:
    """The usage of stages.

    trained: what is in the result, or will be in that of a running attempt. lost: what was computed after the last
    checkpoint that a later attempt resumed from, and was computed again. failed: attempts that contributed nothing.
    superseded: earlier results that a later one has replaced.
    """

    trained: Usage = NOTHING
    lost: Usage = NOTHING
    failed: Usage = NOTHING
    superseded: Usage = NOTHING

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
    return sum((_split(_segments_of(runs, key)) for key in dict.fromkeys(keys)), Spent())


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


def _segments_of(runs: Path, key: str) -> list[_Segment]:
    segments: list[_Segment] = []
    for attempt in attempts(runs, key):
        try:
            segments += _segments(attempt)
        except UNREADABLE:
            continue
    return segments


def _segments(attempt: AttemptDir) -> Iterator[_Segment]:
    """Yield the segments of an attempt, at least one. Raises OSError or StoreError if its files cannot be read."""
    asked = attempt.read_attempt()
    running = conclude_or_unknown(attempt).state == "running"
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
