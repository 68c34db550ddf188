"""What a run tells while it goes on, and what it came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from gpas_cli.errors import Exit
from gpas_cli.plan.stage_jobs import StageJob
from gpas_cli.state.status import StageStatus
from gpas_cli.store.rundir import AttemptDir

if TYPE_CHECKING:
    from gpas_cli.grid.entry import Entry

ENDINGS = ("done", "diverged", "failed", "interrupted", "cancelled")


@dataclass(frozen=True)
class Item:
    """How one entry came out, and why. `status` is that of the stage which decided."""

    entry: Entry
    reason: str
    status: StageStatus


@dataclass(frozen=True)
class RunSummary:
    """Every entry of a run in exactly one list, in the order given."""

    done: list[Item] = field(default_factory=list)
    diverged: list[Item] = field(default_factory=list)
    failed: list[Item] = field(default_factory=list)
    interrupted: list[Item] = field(default_factory=list)
    cancelled: list[Item] = field(default_factory=list)
    skipped: list[Item] = field(default_factory=list)

    def add(self, item: Item, *, skipped: bool = False) -> None:
        """File an entry under the state of its status; under `skipped` when told so or when that is no ending."""
        state = item.status.state
        into: list[Item] = self.skipped if skipped or state not in ENDINGS else getattr(self, state)
        into.append(item)


def exit_code(summary: RunSummary) -> Exit:
    """DONE when every cell has a result (a divergence is one), FAILED when some failed, else INCOMPLETE."""
    if summary.failed:
        return Exit.FAILED
    return Exit.INCOMPLETE if summary.interrupted or summary.cancelled or summary.skipped else Exit.DONE


@dataclass(frozen=True)
class RunSnapshot:
    """A run at one moment. `running` are this run's jobs, `followed` those that another `gpas run` has."""

    running: tuple[tuple[StageJob, StageStatus], ...]
    followed: tuple[tuple[StageJob, StageStatus], ...]
    waiting: tuple[StageJob, ...]
    ended: Mapping[str, int]
    slots: int
    starved: bool  # a job is ready, and others hold the slots it needs
    stopping: bool


class Reporter(Protocol):
    """Who is told of a run as it goes on. Calls come from the scheduler's own thread and should be quick."""

    def started(self, job: StageJob, attempt: AttemptDir) -> None:
        """A process was started for the next attempt at a stage."""

    def finished(self, job: StageJob, status: StageStatus) -> None:
        """A stage that this run waited for came to an end, here or under another `gpas run`."""

    def tick(self, board: RunSnapshot) -> None:
        """About once a second."""

    def notice(self, message: str) -> None:
        """Something that the user should know and that stops nothing."""


class Silent:
    """A reporter that tells nobody."""

    def started(self, job: StageJob, attempt: AttemptDir) -> None: ...

    def finished(self, job: StageJob, status: StageStatus) -> None: ...

    def tick(self, board: RunSnapshot) -> None: ...

    def notice(self, message: str) -> None: ...
