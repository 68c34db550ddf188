"""The status of a stage and of a cell: a state, and the evidence for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from gpas_cli.errors import GpasError
from gpas_cli.state.claims import Claim
from gpas_cli.state.progress import Progress

if TYPE_CHECKING:
    from gpas_cli.grid.entry import Entry


RESULTS = ("done", "diverged")


ALIVE = ("queued", "running")


# What reading a damaged file may raise: one unreadable stage must not stop a command.
UNREADABLE = (OSError, GpasError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class SchedulerJob(Protocol):
    """What a scheduler reports about one of its jobs; `str()` of it is one line for people. Times are unix times.

    Strings are "" and numbers 0 where the scheduler reports nothing.
    """

    @property
    def id(self) -> str: ...

    @property
    def state(self) -> str:
        """The state in the scheduler's own word."""

    @property
    def nodes(self) -> str:
        """Where the job runs."""

    @property
    def partition(self) -> str:
        """The part of the cluster, or the queue, that the job is in."""

    @property
    def pending(self) -> bool:
        """Whether the job has not started yet, or is going to be started again."""

    @property
    def reason(self) -> str:
        """Why a pending job has not started."""

    @property
    def held(self) -> str:
        """What makes a job start that waits for a person, "" for any other job."""

    @property
    def start(self) -> float:
        """When a pending job is expected to start."""

    @property
    def place(self) -> int:
        """The position among the `waiting` jobs of the partition, from 1 on."""

    @property
    def waiting(self) -> int: ...

    @property
    def in_line(self) -> str:
        """The position in words, such as "4th of 31 in low"."""


@dataclass(frozen=True, kw_only=True)
class StageStatus:
    """The state of one stage, and the evidence for it.

    `age` is in seconds since the newest evidence. `outcome` is that of the journal, "" without one; `cause` is why the
    stage has no result. `attempt` and `directory` are those of the attempt that decided. `source` is the kind of that
    evidence: outcome, exit, lock, ending (a lock after one of the first two) or silence. `submission` is the SLURM
    submission that made an attempt without a result, `job` what the scheduler reports about its job. `blocker` is the
    key of the stage whose failure kept this one from starting. `signal` is the number of the signal that ended the
    process, if known. `stands` is how an earlier attempt ended whose result counts until the stage has been run again.
    """

    state: str
    evidence: str
    age: float | None = None
    outcome: str = ""
    cause: str = ""
    attempt: int | None = None
    directory: Path | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    progress: Progress | None = None
    claim: Claim | None = None
    source: str = ""
    submission: str = ""
    job: SchedulerJob | None = None
    blocker: str = ""
    stands: str = ""
    signal: int | None = None

    @property
    def fraction(self) -> float | None:
        """The share of the stage's steps that is done, None if unknown."""
        seen = self.progress
        return seen.step / seen.steps if seen and seen.step is not None and seen.steps else None


@dataclass(frozen=True, kw_only=True)
class CellStatus(StageStatus):
    """The state of a cell: that of its first stage without a result, or of its last stage."""

    entry: Entry
    stage: str
    key: str
