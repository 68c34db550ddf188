"""Progress reports during a run, and its final summary."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpas_cli.errors import Exit
from gpas_cli.grid.entry import Entry
from gpas_cli.plan.stage_jobs import StageJob
from gpas_cli.state.status import OUTCOMES, RESULTS, StageStatus
from gpas_cli.store.rundir import AttemptDir


@dataclass(frozen=True)
class Item:
    """The ending of one entry, and its reason. `status`: of the stage that decided it."""

    entry: Entry
    reason: str
    status: StageStatus


@dataclass(frozen=True)
class RunSummary:
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


@dataclass(frozen=True)
class Ending:
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


@dataclass(frozen=True)
class JobBatch:
    """Jobs that a scheduler accepted together.

    `name` is the batch's name here, `job` the scheduler's id ("" if unknown). `keys` has the stage keys of each job,
    and `text` describes the batch to the user.
    """

    name: str
    job: str
    keys: tuple[tuple[str, ...], ...]
    text: str

    @property
    def elements(self) -> int:
        return sum(bool(keys) for keys in self.keys)


@dataclass
class Submitted:
    """The stages that were submitted to a scheduler, and those that were not.

    `seen` has the status of every stage just before submission. `left` has the stages for which the scheduler has no
    room yet, `blocked` those with a prerequisite that failed.
    """

    batches: list[JobBatch] = field(default_factory=list)
    jobs: int = 0  # stages submitted
    followed: int = 0  # stages that were queued or running already
    over: int = 0  # stages that failed, were cancelled or became unknown earlier and are not retried
    unknown: int = 0  # of these, the unknown ones
    left: list[StageJob] = field(default_factory=list)
    blocked: list[StageJob] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seen: dict[str, StageStatus] = field(default_factory=dict)


def exit_code(summary: RunSummary) -> Exit:
    """Return DONE if every cell has a result (a divergence is one), FAILED if some failed, else INCOMPLETE."""
    if summary.failed:
        return Exit.FAILED
    return Exit.INCOMPLETE if summary.interrupted or summary.cancelled or summary.skipped else Exit.DONE


@dataclass(frozen=True)
class RunSnapshot:
    """A run at one moment. `running` are this run's jobs, `followed` the jobs of another `gpas run`."""

    running: tuple[tuple[StageJob, StageStatus], ...]
    followed: tuple[tuple[StageJob, StageStatus], ...]
    waiting: tuple[StageJob, ...]
    ended: Mapping[str, int]
    slots: int
    starved: bool  # a job is ready, but the slots it needs are taken
    stopping: bool


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
