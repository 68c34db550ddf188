"""The protocol of a scheduler, and the choice of one.

One scheduler object per status scan (`state.view`): it queries its queue once and answers for every claim.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol, cast, runtime_checkable

from gpas_cli.errors import GpasError, nearest
from gpas_cli.plan.machine import Machine
from gpas_cli.plan.stage_jobs import StageJob
from gpas_cli.project import Project
from gpas_cli.schedule.summary import Reporter, RunSummary, Silent, Submitted
from gpas_cli.spec.run import Resources
from gpas_cli.state.claims import LOCAL, Claim
from gpas_cli.state.status import CellStatus
from gpas_cli.state.view import ClaimScheduler, SchedulerView, scheduler_class, scheduler_names

if TYPE_CHECKING:
    from gpas_cli.grid.entry import Entry


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    what: str
    status: Annotated[str, ("ok", "note", "problem")]
    detail: str
    remedy: str = ""


_AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """The request that `gpas run` makes to a scheduler.

    `retry` names further states in which a stage is run again (failed, cancelled, unknown). `at_once` limits how many
    jobs run at the same time; None sets no limit. `ingest` is called after jobs have ended, and returns an error
    message ("" if there is none).
    """

    project: Project
    entries: Sequence[Entry]
    retry: Collection[str] = ()
    at_once: int | None = None
    reporter: Reporter = field(default_factory=Silent)
    ingest: Callable[[], str] = str


class Stoppable(Protocol):
    """An object that signals can stop."""

    def stop(self) -> None:
        """Request a stop. Called in the signal handler."""


class Run(Stoppable, Protocol):
    """The jobs submitted by one `gpas run`."""

    @property
    def submitted(self) -> Submitted: ...

    def follow(self) -> RunSummary:
        """Wait until every stage has ended, or until `stop` has been carried out."""

    def stop(self) -> None:
        """Stop waiting. If this process runs the jobs itself, ask them to save and exit; a second call kills them."""


class Scheduler(ClaimScheduler, Protocol):
    """A scheduler of jobs. `foreground`: the jobs need the submitting process, so `gpas run` always waits for them."""

    foreground: bool

    def machine(self) -> Machine:
        """Return the machine for which to plan; `plan.machine.Cluster` if it is unknown."""

    def prepare(self, project: Project, jobs: Iterable[StageJob]) -> Sequence[StageJob]:
        """Return `jobs`, preceded by the jobs that must run first, such as those that tokenise their text."""

    def submit(self, request: RunRequest) -> Run:
        """Claim every unclaimed stage without a result and submit it, as far as there is room.

        Raises GpasError before anything is submitted if some job can never run.
        """

    def cancel(self, status: CellStatus, claim: Claim) -> tuple[bool, str]:
        """Cancel a queued or running stage. Return whether it was asked to stop, and what was done, for the user."""

    def preview(self, project: Project, jobs: Sequence[StageJob]) -> Iterable[str]:
        """Return the lines that `gpas run --dry-run` prints about `jobs` in addition to the plan. Changes nothing."""

    def ask_start(self, project: Project, jobs: Sequence[StageJob]) -> Iterable[str]:
        """Return the lines of `gpas run --test-only`: when `jobs` would start. Raises GpasError if that is unknown."""


@runtime_checkable
class CancelsTogether(Protocol):
    """A scheduler that cancels many stages at once. Optional."""

    def cancel_all(self, stages: Mapping[str, Claim]) -> Mapping[str, tuple[bool, str]]:
        """Cancel stages by key, whose claims have a submission. Return by key what `Scheduler.cancel` returns."""


@runtime_checkable
class Examinable(Protocol):
    """A scheduler that `gpas doctor` can examine. Optional."""

    def findings(self, project: Project, resources: Mapping[str, Resources], *, nodes: bool) -> Iterable[Finding]:
        """Yield findings about the scheduler, its configuration and, with `nodes`, the machines that run its jobs.

        `resources`: name -> the resources of each stage of a declared cell; empty if the experiments file is invalid.
        """


@dataclass(frozen=True)
class ProfileUse:
    """What SLURM jobs that asked for the same used. Bytes and seconds; 0 if unknown."""

    memory: int
    cpus: int
    limit: int
    jobs: int
    used_memory: Annotated[int, "the largest of a job"]
    used_cores: Annotated[float, "on average"]
    longest: float


@runtime_checkable
class Accountant(Protocol):
    """A scheduler that knows what its jobs used. Optional."""

    def used_by_profile(self, keys: Collection[str]) -> list[ProfileUse]:
        """Return the use of the ended jobs of these stages. Raises GpasError if it is unknown at present."""


@dataclass(frozen=True)
class Choice:
    """The name of a scheduler, and a note for the user on why it was chosen ("" if none is needed)."""

    name: str
    note: str = ""


@runtime_checkable
class Selectable(Protocol):
    """A scheduler whose class can check whether it is usable from this machine. Optional."""

    @staticmethod
    def require(environ: Mapping[str, str]) -> None:
        """Raise GpasError if no job can be submitted from here."""

    @staticmethod
    def automatic(environ: Mapping[str, str]) -> Choice | None:
        """Return the choice of `auto`: this scheduler, another one with a note why, or None to let the next scheduler
        decide.
        """


def scheduler_named(name: str, runs: Path) -> Scheduler:
    """Return the scheduler `name`. Raises GpasError if it is unknown or cannot be loaded."""
    return cast(Scheduler, SchedulerView(runs).scheduler(name))


def used_by_profile(runs: Path, keys: Collection[str]) -> list[ProfileUse]:
    """Return what the ended jobs of these stages asked for and used, as far as schedulers know. Raises GpasError."""
    schedulers = (scheduler_named(name, runs) for name in scheduler_names())
    return [use for each in schedulers if isinstance(each, Accountant) for use in each.used_by_profile(keys)]


def scheduler_of(view: SchedulerView, claim: Claim) -> Scheduler:
    """Return the scheduler that a claim names. Raises GpasError if it is unknown or cannot be loaded."""
    return cast(Scheduler, view.scheduler(claim.scheduler))


def choose(word: str, environ: Mapping[str, str] = os.environ) -> Choice:
    """Return the scheduler for the option's value `word`: auto, or a scheduler's name. Raises GpasError if it is
    unknown or unusable here.

    auto is the first registered scheduler that chooses itself (SLURM does if its controller answers), else this
    machine.
    """
    names = (_AUTO, *scheduler_names())
    if word not in names:
        raise GpasError(f"unknown executor '{word}'; {nearest(word, names)}")
    if word == _AUTO:
        return _automatic(environ)
    if isinstance(found := scheduler_class(word), Selectable):
        found.require(environ)
    return Choice(word)


def _automatic(environ: Mapping[str, str]) -> Choice:
    for name in scheduler_names():
        with suppress(GpasError):  # a scheduler that cannot be loaded is a finding of `gpas doctor`
            if isinstance(found := scheduler_class(name), Selectable) and (choice := found.automatic(environ)):
                return choice
    return Choice(LOCAL)


@contextmanager
def stop_on_signals(run: Stoppable) -> Iterator[None]:
    """Call `run.stop` on SIGINT and SIGTERM within the block."""

    def handle(_number: int, _frame: object) -> None:
        run.stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
