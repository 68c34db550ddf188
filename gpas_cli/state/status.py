"""The status of a stage and of a cell: a state, and the evidence for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpas_cli.errors import GpasError
from gpas_cli.schedule.slurm.array_task import Job
from gpas_cli.state.claims import Claim
from gpas_cli.state.progress import Progress

if TYPE_CHECKING:
    from gpas_cli.grid.entry import Entry


RESULTS = ("done", "diverged")  # nothing is left to do


ALIVE = ("queued", "running")  # somebody is at it


# What reading a file raises that somebody else wrote: one stage that cannot be told must not stop a command.
UNREADABLE = (OSError, GpasError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


EXIT_INTERRUPTED, EXIT_CANCELLED = 75, 130  # a job's exit codes beside 0 (done or diverged) and 1 (failed)


EXIT_NODE = 76  # interrupted, and to be run on another machine


@dataclass(frozen=True, kw_only=True)
class StageStatus:
    """What is known of one stage, and from what.

    `age` is seconds since the newest evidence. `outcome` is what the journal says, "" when it says nothing, `cause` why
    a stage did not come to a result. `attempt` and `directory` are those of the attempt that decided. `source` is the
    kind of that evidence: outcome, exit, lock, ending (a lock after one of the first two) or silence. `submission` is
    the SLURM submission that made an attempt without a result, `job` what SLURM says of it. `blocker` is the key of the
    stage for whose failure it was not started. `signal` is the number of the signal that ended the process, if known.
    `stands` is how an earlier attempt ended whose result counts until the stage has been run again, as was asked for.
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
    job: Job | None = None
    blocker: str = ""
    stands: str = ""
    signal: int | None = None

    @property
    def fraction(self) -> float | None:
        """The share of the stage's steps that is done, None when nothing tells."""
        seen = self.progress
        return seen.step / seen.steps if seen and seen.step is not None and seen.steps else None


@dataclass(frozen=True, kw_only=True)
class CellStatus(StageStatus):
    """A cell is in the state of its first stage that lacks a result, or of its last stage."""

    entry: Entry
    stage: str
    key: str
