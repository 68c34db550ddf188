"""The status of a stage and of a cell: a state, the evidence for it, and the progress at the end of the journal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, fields
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from gpas_cli.errors import GpasError
from gpas_cli.events import Checkpoint, Outcome, Phase, Scoring, Skipped, Spike, Started, Step
from gpas_cli.grid.declared import Entry
from gpas_cli.spec.cell import Stage
from gpas_cli.state.claims import Claim
from gpas_cli.store.journal import Line, lines_in
from gpas_cli.store.rundir import AttemptDir, read_json
from gpas_cli.structure import HIDDEN, Frozen, Number
from gpas_cli.words import ordinal

_EVALUATING = "evaluating"  # the phase of a training after its last update

# A longer gap between two events than this many usual ones is no training: an evaluation takes less.
_MOST_USUAL = 50
OUTCOMES = ("done", "diverged", "failed", "interrupted", "cancelled")
RESULTS = ("done", "diverged")
RETRIED = ("failed", "cancelled", "unknown")  # states that `gpas run` leaves to `gpas retry`
ALIVE = ("queued", "running")
# Exceptions that a damaged file may cause. Commands catch them: one unreadable stage must not stop a command.
UNREADABLE = (OSError, GpasError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class Progress(Frozen):
    """The newest value of each quantity in a journal; None if it has none.

    `losses` are the training losses of the last log lines, oldest first; `spikes` and `skipped` count the spikes and
    the skipped updates among the same events.
    """

    phase: str = field(default="", metadata=HIDDEN)
    step: int | None = None
    steps: int | None = None
    loss: Annotated[Number | None, "of the newest update"] = None
    lr: float | None = field(default=None, metadata=HIDDEN)
    tokens_per_second: Number | None = None
    losses: tuple[float, ...] = field(default=(), metadata=HIDDEN)
    eta: Annotated[Number | None, "seconds"] = None
    grad_norm: float | None = field(default=None, metadata=HIDDEN)
    mfu: Number | None = None
    spikes: int | None = None
    skipped: int | None = None
    memory: Annotated[Number | None, "bytes"] = None
    saved: int | None = field(default=None, metadata=HIDDEN)
    """The update of the newest checkpoint."""
    share: float | None = field(default=None, metadata=HIDDEN)
    """The completed fraction of a stage that scores tasks; None for other stages."""

    @property
    def counted(self) -> str:
        """The progress as text: "340/600", "600/600, evaluating", or where tasks are scored "piqa (3 of 7) 45 %"."""
        if self.share is None:
            return f"{self.step}/{self.steps}{f', {self.phase}' if self.phase == _EVALUATING else ''}"
        return f"{self.phase} {math.floor(100 * (self.step or 0) / (self.steps or 1))} %"


def _progress(lines: Sequence[Line]) -> Progress | None:
    """Return the progress from the last lines of a journal since its last start, None if they contain none."""
    starts = [i for i, line in enumerate(lines) if isinstance(line.event, Started)]
    lines = lines[starts[-1] :] if starts else lines
    events = [line.event for line in lines]
    phases = [event.name for event in events if isinstance(event, Phase)]
    steps = [(line.t, line.event) for line in lines if isinstance(line.event, Step)]
    scoring = [(line.t, line.event) for line in lines if isinstance(line.event, Scoring)]
    if scoring:
        return _scoring(scoring)
    if not steps:
        return Progress(phase=phases[-1], saved=checkpoint_step(lines)) if phases else None
    last, phase = steps[-1][1], phases[-1] if phases else "training"
    shares = [(t, step.step / step.steps if step.steps else None) for t, step in steps]
    return Progress(
        phase=phase,
        step=last.step,
        steps=last.steps,
        loss=last.loss,
        lr=last.lr,
        tokens_per_second=last.tokens_per_second,
        losses=tuple(step.loss for _, step in steps if step.loss is not None),
        eta=None if phase == _EVALUATING else _eta(shares),
        grad_norm=last.grad_norm,
        mfu=last.mfu,
        memory=last.memory,
        spikes=sum(isinstance(event, Spike) for event in events),
        skipped=sum(isinstance(event, Skipped) for event in events),
        saved=checkpoint_step(lines),
    )


def _scoring(events: Sequence[tuple[float, Scoring]]) -> Progress:
    """Return the progress of a stage that scores tasks, from its last events of that kind with their times."""
    last = events[-1][1]
    return Progress(
        phase=f"{last.task} ({last.place} of {last.tasks})",
        step=last.done,
        steps=last.total,
        share=_share(last),
        eta=_eta([(t, _share(event)) for t, event in events]),
    )


def _share(event: Scoring) -> float | None:
    """Return the fraction of all tasks that is done, if each takes as long as the others."""
    if not event.tasks or not event.total:
        return None
    return (event.place - 1 + event.done / event.total) / event.tasks


def checkpoint_step(lines: Sequence[Line]) -> int | None:
    """Return the step of the newest checkpoint in the lines, None if there is none."""
    newest = (line.event for line in reversed(lines))
    return next((event.step for event in newest if isinstance(event, Checkpoint)), None)


def _eta(shares: Sequence[tuple[float, float | None]]) -> float | None:
    """Return the seconds to the end, at the mean rate over the events (time, completed share); None if unknown.

    Two events between which the clock was set, or the job suspended, count for nothing.
    """
    gaps = [(t - s, b - a) for (s, a), (t, b) in pairwise(shares) if a is not None and b is not None]
    usual = sorted(seconds for seconds, _ in gaps)[len(gaps) // 2] if gaps else 0.0
    kept = [gap for gap in gaps if 0 <= gap[0] <= _MOST_USUAL * usual]
    seconds, share, now = sum(gap[0] for gap in kept), sum(gap[1] for gap in kept), shares[-1][1]
    return max(0.0, 1 - now) * seconds / share if now is not None and share > 0 and seconds > 0 else None


class SchedulerJob(Frozen):
    """A job as its scheduler reports it. `str()` returns one line for people.

    Strings are "" and numbers 0 if the scheduler does not report them.
    """

    id: str
    state: str  # the scheduler's word
    reason: str = ""  # why a pending job has not started
    nodes: str = ""
    start: float = 0.0  # the expected start of a pending job, as unix time
    partition: str = ""
    place: int = 0  # the position among the `waiting` jobs of its partition or queue, from 1
    waiting: int = 0

    @property
    def pending(self) -> bool:
        """Whether the job is waiting to start, or to start again."""
        return self.place > 0

    @property
    def held(self) -> str:
        """What the user can do to start a held job, "" if the job is not held."""
        return ""

    @property
    def suspended(self) -> bool:
        """Whether the job's processes exist, but do not run."""
        return False

    @property
    def in_line(self) -> str:
        """The position as text, such as "4th of 31 in low"; "" if it has none."""
        return f"{ordinal(self.place)} of {self.waiting} in {self.partition}" if self.place else ""


class StageStatus(Frozen, kw_only=True):
    """The state of one stage, and the evidence for it."""

    state: str
    evidence: str
    age: float | None = None
    """Seconds since the newest evidence."""
    outcome: str = ""
    """The journal's, "" without one."""
    cause: str = ""
    """Why the stage has no result."""
    attempt: int | None = None
    """The number of the attempt that decides the state."""
    directory: Path | None = None
    """The run directory of that attempt."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    journal_end: Sequence[bytes] = ()
    """The last lines of the attempt's journal, for `progress`."""
    counted: int | None = None
    """The number of warnings in the journal, if its outcome says it."""
    reached: Progress | None = None
    """The progress, if it is not what these lines say."""
    claim: Claim | None = None
    source: str = ""
    """The kind of the evidence: outcome, exit, lock, ending (a lock still held after one of the first two), silence."""
    submission: str = ""
    """The submission to a scheduler, or the `gpas run`, that made an attempt without a result."""
    job: SchedulerJob | None = None
    """The job as the scheduler reports it."""
    blocker: str = ""
    """The key of the stage whose failure keeps this one from starting."""
    stands: str = ""
    """The outcome of an earlier attempt whose result counts until the new run has one."""
    signal: int | None = None
    """The number of the signal that ended the process, if known."""
    claimed_for: str = ""
    """The grid for which the claim was made, "" without one."""

    @cached_property
    def progress(self) -> Progress | None:
        """The newest numbers at the end of the journal. Decoded on access: few of many statuses need it."""
        return self.reached or _progress(lines_in(self.journal_end))

    @cached_property
    def warnings(self) -> int:
        """The number of warnings in the journal, by its newest event that counts them."""
        if self.counted is not None:
            return self.counted
        newest = (line.event for raw in reversed(self.journal_end) for line in lines_in([raw]))
        return next((event.warnings or 0 for event in newest if isinstance(event, Step | Scoring | Outcome)), 0)

    @cached_property
    def grid(self) -> str:
        """The grid for which the claim or the attempt was made, "" if unknown. The attempt is read on access."""
        if self.claimed_for or self.directory is None:
            return self.claimed_for
        with suppress(*UNREADABLE):
            return str(read_json(AttemptDir(self.directory).attempt_path)["grid"])
        return ""

    @property
    def fraction(self) -> float | None:
        """The completed share of the stage, None if unknown."""
        seen = self.progress
        if seen and seen.share is not None:
            return seen.share
        return seen.step / seen.steps if seen and seen.step is not None and seen.steps else None


_SHARED = tuple(each.name for each in fields(StageStatus))


class CellStatus(StageStatus, kw_only=True):
    """The status of a cell: of its first stage that is not done, or of its last stage."""

    entry: Entry
    stage: str
    key: str

    @classmethod
    def of(cls, entry: Entry, stage: Stage, status: StageStatus) -> CellStatus:
        """Return the status of a cell whose stage `stage` has this status."""
        shared = {name: getattr(status, name) for name in _SHARED}
        return cls(**shared, entry=entry, stage=stage.kind, key=stage.key)


def by_run(states: Iterable[CellStatus]) -> list[CellStatus]:
    """Return one status per run, of the cell in the grid for which it was started, else of the first cell with it.

    A cell without a run is one by itself.
    """
    found: dict[str, CellStatus] = {}
    for state in states:
        key = state.entry.key if state.state == "missing" else state.key
        known = found.setdefault(key, state)
        if state.entry.grid != known.entry.grid and state.entry.grid == known.grid:
            found[key] = state
    return list(found.values())


def started_grids(states: Iterable[CellStatus]) -> set[str]:
    """Return the grids for which a run was started, and those whose cells all have results."""
    states = list(states)
    open_grids = {state.entry.grid for state in states if state.state not in RESULTS}
    started = {state.entry.grid for state in by_run(states) if state.state != "missing"}
    return started | ({state.entry.grid for state in states} - open_grids)
