"""The base class of schedulers, the choice of one, how a run reports its progress and ends, and cancellation.

One scheduler object per status scan (`state.view`): it queries its queue once and answers for every claim.
"""

import signal
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Protocol, cast

from gpas_cli.errors import Exit, GpasError, nearest
from gpas_cli.grid.declared import Entry
from gpas_cli.plan.machine import Machine
from gpas_cli.plan.stage_jobs import StageJob
from gpas_cli.project import Project
from gpas_cli.schedule.process import Cancelling, cancel_process, failed
from gpas_cli.spec.run import Resources
from gpas_cli.state.claims import LOCAL, SLURM, Claim, read_claim
from gpas_cli.state.status import ALIVE, OUTCOMES, RESULTS, UNREADABLE, CellStatus, StageStatus
from gpas_cli.state.view import ClaimScheduler, SchedulerView, scheduler_class, scheduler_names
from gpas_cli.store.rundir import AttemptDir
from gpas_cli.structure import Frozen

# What says whether `auto` is this scheduler, where the scheduler itself need not be imported for that.
_AUTOMATIC = {SLURM: "gpas_cli.schedule.slurm:automatic"}


class Item(Frozen):
    """The ending of one entry, and its reason. `status`: of the stage that decided it."""

    entry: Entry
    reason: str
    status: StageStatus


class RunSummary(Frozen):
    """The outcome of a run: every entry in exactly one list, in the order given."""

    done: list[Item] = field(default_factory=list)
    diverged: list[Item] = field(default_factory=list)
    failed: list[Item] = field(default_factory=list)
    interrupted: list[Item] = field(default_factory=list)
    cancelled: list[Item] = field(default_factory=list)
    skipped: list[Item] = field(default_factory=list)

    def add(self, item: Item, *, skipped: bool = False) -> None:
        """Add an entry to the list of its state, or to `skipped` if requested or if the state is not a final one."""
        state = item.status.state
        into: list[Item] = self.skipped if skipped or state not in OUTCOMES else getattr(self, state)
        into.append(item)


class Ending(Frozen):
    """The ending of a stage in one run, and its reason. `skipped`: the run gave the stage up without starting it."""

    status: StageStatus
    reason: str
    skipped: bool = False


def reason_of(status: StageStatus) -> str:
    """Return why a stage has no result, "" if it has one or if its job saved and exited as asked."""
    return status.cause or ("" if status.state in RESULTS or status.source == "outcome" else status.evidence)


def summarise(entries: Iterable[Entry], endings: Mapping[str, Ending]) -> RunSummary:
    """Return the summary of a run, given the ending of each stage by its key.

    The first stage of an entry that is not done decides how the entry ended.
    """
    summary = RunSummary()
    for entry in entries:
        chain = [endings[stage.key] for stage in entry.cell.stages if stage.key in endings]
        last = next((ending for ending in chain if ending.status.state != "done"), chain[-1])
        summary.add(Item(entry, last.reason, last.status), skipped=last.skipped)
    return summary


class JobBatch(Frozen):
    """Jobs that a scheduler accepted together."""

    name: str  # the batch's name here
    job: str  # the scheduler's id, "" if unknown
    keys: tuple[tuple[str, ...], ...]  # the stage keys of each job
    text: str  # describes the batch to the user

    @property
    def elements(self) -> int:
        return sum(bool(keys) for keys in self.keys)


@dataclass
class Submitted:
    """The stages that were submitted to a scheduler, and those that were not."""

    batches: list[JobBatch] = field(default_factory=list)
    jobs: int = 0  # stages submitted
    followed: int = 0  # stages that were queued or running already
    over: int = 0  # stages that failed, were cancelled or became unknown earlier and are not retried
    unknown: int = 0  # of these, the unknown ones
    left: list[StageJob] = field(default_factory=list)  # stages for which the scheduler has no room yet
    blocked: list[StageJob] = field(default_factory=list)  # stages with a prerequisite that failed
    notes: list[str] = field(default_factory=list)
    seen: dict[str, StageStatus] = field(default_factory=dict)  # the status of every stage just before submission


def exit_code(summary: RunSummary) -> Exit:
    """Return DONE if every cell has a result (a divergence is one), FAILED if some failed, else INCOMPLETE."""
    if summary.failed:
        return Exit.FAILED
    return Exit.INCOMPLETE if summary.interrupted or summary.cancelled or summary.skipped else Exit.DONE


class RunSnapshot(Frozen):
    """A run at one moment. `running` are this run's jobs, `followed` the jobs of another `gpas run`."""

    running: tuple[tuple[StageJob, StageStatus], ...]
    waiting: tuple[StageJob, ...]
    ended: Mapping[str, int]
    followed: tuple[tuple[StageJob, StageStatus], ...] = ()
    slots: int = 0
    starved: bool = False  # a job is ready, but the slots it needs are taken
    stopping: bool = False


class Reporter:
    """A receiver of a run's progress; this one does nothing. Its methods are called in the run's own thread and should
    return quickly."""

    def started(self, job: StageJob, attempt: AttemptDir) -> None:
        """Called when the process of the next attempt at a stage has started."""

    def finished(self, job: StageJob, status: StageStatus) -> None:
        """Called when a stage that this run waited for has ended, here or under another `gpas run`."""

    def tick(self, snapshot: RunSnapshot) -> None:
        """Called about once a second."""

    def notice(self, message: str) -> None:
        """Called with a message for the user about something that does not stop the run."""


class Finding(Frozen):
    """The result of one check."""

    what: str
    status: Annotated[str, ("ok", "note", "problem")]
    detail: str
    remedy: str = ""


class RunRequest(Frozen, kw_only=True):
    """The request that `gpas run` makes to a scheduler."""

    project: Project
    entries: Sequence[Entry]
    retry: Collection[str] = ()  # further states in which a stage is run again (failed, cancelled, unknown)
    at_once: int | None = None  # how many jobs may run at the same time; None sets no limit
    stop_at_failure: bool = False  # whether no further job of the run, or of the job array, starts once one has failed
    reporter: Reporter = field(default_factory=Reporter)

    def ingest(self) -> str:
        """Copy the results of ended jobs into the database. Return an error message ("" if there is none)."""
        from gpas_cli.store.refresh import ingest  # here, because most commands submit no job

        return ingest(self.project)


class Run(Protocol):
    """The jobs submitted by one `gpas run`."""

    @property
    def submitted(self) -> Submitted: ...

    def follow(self) -> RunSummary:
        """Wait until every stage has ended, or until `stop` has been carried out."""

    def stop(self) -> None:
        """Stop waiting. If this process runs the jobs itself, ask them to save and exit; a second call kills them.

        Called in a signal handler.
        """


class ProfileUse(Frozen):
    """What SLURM jobs with the same request used. Bytes and seconds; 0 if unknown."""

    memory: int
    cpus: int
    limit: int
    jobs: int
    used_memory: Annotated[int, "the largest of a job"]
    used_cores: Annotated[float, "on average"]
    longest: float


class Choice(Frozen):
    """The name of a scheduler, and a note for the user on why it was chosen ("" if none is needed)."""

    name: str
    note: str = ""


class Scheduler(ClaimScheduler):
    """A scheduler of jobs. A subclass has at least `machine` and `submit`.

    `foreground`: the jobs need the submitting process, so `gpas run` always waits for them.
    """

    foreground = True

    @staticmethod
    def require() -> None:
        """Raise GpasError if no job can be submitted from this machine."""

    @staticmethod
    def automatic() -> Choice | None:
        """Return the choice of `auto`: this scheduler, another one with a note why, or None to let the next scheduler
        decide.
        """
        return None

    def machine(self) -> Machine:
        """Return the machine for which to plan; `plan.machine.Cluster` if it is unknown."""
        raise NotImplementedError

    def prepare(self, project: Project, jobs: Iterable[StageJob]) -> Sequence[StageJob]:
        """Return `jobs`, preceded by the jobs that must run first, such as those that tokenise their text."""
        return tuple(jobs)

    def submit(self, request: RunRequest) -> Run:
        """Claim every unclaimed stage without a result and submit it, as far as there is room.

        Raises GpasError before anything is submitted if some job can never run.
        """
        raise NotImplementedError

    def cancel(self, stages: Sequence[tuple[CellStatus, Claim]]) -> Iterable[Cancelling]:
        """Cancel the queued or running stages of cells, which claims assign to this scheduler. Return each outcome."""
        return [cancel_process(self.scan, status, claim) for status, claim in stages]

    def preview(self, project: Project, jobs: Sequence[StageJob]) -> Iterable[str]:
        """Return the lines that `gpas run --dry-run` prints about `jobs` in addition to the plan. Changes nothing."""
        return ()

    def findings(self, project: Project, resources: Mapping[str, Resources], *, nodes: bool) -> Iterable[Finding]:
        """Yield findings about the scheduler, its configuration and, with `nodes`, the machines that run its jobs.

        `resources`: name -> the resources of each stage of a declared cell; empty if the experiments file is invalid.
        """
        return ()

    def used_by_profile(self, keys: Collection[str]) -> list[ProfileUse]:
        """Return the use of the ended jobs of these stages. Raises GpasError if it is unknown at present."""
        return []


def scheduler_named(name: str, runs: Path) -> Scheduler:
    """Return the scheduler `name`. Raises GpasError if it is unknown or cannot be loaded."""
    return cast(Scheduler, SchedulerView(runs).scheduler(name))


def used_by_profile(runs: Path, keys: Collection[str]) -> list[ProfileUse]:
    """Return what the ended jobs of these stages asked for and used, as far as schedulers know. Raises GpasError."""
    return [use for name in scheduler_names() for use in scheduler_named(name, runs).used_by_profile(keys)]


def choose(word: str, runs: Path) -> tuple[Scheduler, str]:
    """Return the scheduler for the option's value `word`: auto, or a scheduler's name; and a note for the user on why
    auto chose it ("" if none is needed). Raises GpasError if it is unknown or unusable here.

    auto is the first registered scheduler that chooses itself (SLURM does if its controller answers), else this
    machine. The note is left out if `runs` has only jobs that ran on this machine: then it is no news.
    """
    names = ("auto", *scheduler_names())
    if word not in names:
        raise GpasError(f"unknown executor '{word}'; {nearest(word, names)}")
    if word != "auto":
        scheduler_class(word).require()
        return scheduler_named(word, runs), ""
    choice = Choice(LOCAL)
    for name in scheduler_names():
        with suppress(GpasError):  # a scheduler that cannot be loaded is a finding of `gpas doctor`
            answer = resolve_name(_AUTOMATIC[name]) if name in _AUTOMATIC else scheduler_class(name).automatic
            if automatic := answer():
                choice = automatic
                break
    known = runs.is_dir() and not any((runs / f".{name}").is_dir() for name in scheduler_names())
    return scheduler_named(choice.name, runs), "" if known else choice.note


def cancel(runs: Path, states: Iterable[CellStatus]) -> list[Cancelling]:
    """Cancel the current stage of each cell; a stage that several cells share is cancelled once."""
    states = list(states)
    view = SchedulerView(runs, max_age_seconds=0.0)
    done: list[Cancelling] = []
    claimed: dict[str, list[tuple[CellStatus, Claim]]] = {}  # by scheduler
    for state in {state.key: state for state in states}.values():
        claim = read_claim(runs, state.key) if state.state in ALIVE else None
        if claim is None:  # a process may run although its `gpas run` died and another one removed the claim
            done.append(cancel_process(view, state, None))
        else:
            claimed.setdefault(claim.scheduler, []).append((state, claim))
    for name, stages in claimed.items():
        try:
            done += cast(Scheduler, view.scheduler(name)).cancel(stages)
        except UNREADABLE as error:
            done += [failed(state, error) for state, _ in stages]
    by_key = {one.state.key: one for one in done}
    return [replace(by_key[state.key], state=state) for state in states]


@contextmanager
def stop_on_signals(run: Run) -> Iterator[None]:
    """Call `run.stop` on SIGINT and SIGTERM within the block."""
    before = {number: signal.signal(number, lambda *_: run.stop()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
