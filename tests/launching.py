"""What the tests of launching share: small cells, a scheduler with fake jobs, other processes."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpas_cli.grid import Entry
from gpas_cli.plan.machine import ThisMachine
from gpas_cli.project import Project
from gpas_cli.schedule.local.run import LocalRun
from gpas_cli.schedule.scheduler import Reporter, RunRequest, RunSnapshot, RunSummary
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.state.attempt import process_path
from gpas_cli.state.observe import observe
from gpas_cli.state.status import StageStatus
from gpas_cli.store.rundir import AttemptDir, read_json

if TYPE_CHECKING:
    from forking import Forked

HERE = Path(__file__).parent
COMMAND = (sys.executable, "-S", "-P", str(HERE / "fake_job.py"))
FOUR_CORES = ThisMachine(gpus=(), cores=(0, 1, 2, 3))


def entry(act: str = "done", seed: int = 1, **more: Any) -> Entry:
    """Return a cell for a seed, whose fake job does `act`."""
    cell = cell_from(
        {
            "size": "quickstart", "data": "quickstart", "seed": seed,
            "optim": {"lr": 1e-3, "warmup": 1, "steps": 3, "batch": 2}, **more,
        }
    )  # fmt: skip
    return Entry(cell=cell, grid="g", name=f"{act}-{seed}", axes={"act": act, "seed": seed})


def key(cell: Entry) -> str:
    return cell.cell.stages[0].key


def scheduler(
    project: Project, *entries: Entry, command: Sequence[str] = COMMAND, machine: ThisMachine = FOUR_CORES, **more: Any
) -> LocalRun:
    request = RunRequest(project=project, entries=entries, **more)
    return LocalRun(request, command=command, machine=machine)


def run(project: Project, *entries: Entry, **more: Any) -> RunSummary:
    return through(scheduler(project, *entries, **more))


def through(run: LocalRun) -> RunSummary:
    """Submit a run, and wait until every stage has ended."""
    run.submit()
    return run.follow()


class Background:
    """A scheduler that runs in a thread of this process, so that a test can act meanwhile."""

    def __init__(self, run: LocalRun):
        self.scheduler = run
        self.summary = RunSummary()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.summary = through(self.scheduler)

    def result(self) -> RunSummary:
        self._thread.join(10)
        assert not self._thread.is_alive()
        return self.summary


class Notices(Reporter):
    """A reporter that keeps what the user should know, and counts its reports."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.ticks = 0

    def tick(self, board: RunSnapshot) -> None:
        self.ticks += 1

    def round(self) -> None:
        """Wait until the scheduler has once more tried to start everything."""
        after = self.ticks + 2
        until(lambda: self.ticks >= after)

    def notice(self, message: str) -> None:
        self.heard.append(message)


def states(summary: RunSummary) -> dict[str, list[str]]:
    """Return the names in each list of a summary, empty lists left out."""
    lists = {name: [item.entry.name for item in items] for name, items in vars(summary).items()}
    return {name: names for name, names in lists.items() if names}


def ran(project: Project) -> list[str]:
    """Return "name attempt" of every fake job that wrote a journal."""
    path = project.config.parent / "ran.txt"
    return [" ".join(line.split()[:2]) for line in path.read_text().splitlines()] if path.exists() else []


def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait for something to become true, and return it."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    return found


def orphaned(project: Project, *cells: Entry) -> None:
    """Start the jobs of cells in another `gpas run`, and kill that once they work and it has recorded them."""
    with other_run(project, *(cell.name.replace("-", ":") for cell in cells)) as other:
        for cell in cells:
            attempt = AttemptDir(until(working(project, cell)).directory)
            until(process_path(attempt).exists)
        kill(other.pid)
        other.wait()


def seen(project: Project, cell: Entry, state: str) -> Callable[[], StageStatus | None]:
    """Return a condition: the cell's stage is in `state`."""

    def look() -> StageStatus | None:
        status = observe(project.runs, key(cell))
        return status if status.state == state else None

    return look


def working(project: Project, cell: Entry) -> Callable[[], StageStatus | None]:
    """Return a condition: the cell's job has journalled a step."""

    def look() -> StageStatus | None:
        status = observe(project.runs, key(cell))
        return status if status.state == "running" and status.progress and status.progress.step else None

    return look


OTHER = """
import sys
from pathlib import Path
import launching
from gpas_cli.schedule import scheduler as room
from gpas_cli.schedule.local import run as local
from gpas_cli.schedule.scheduler import stop_on_signals
from gpas_cli.project import Project
from gpas_cli.store.snapshot import Snapshot
local._POLL_SECONDS, local._TICK_SECONDS = 0.01, 0.05
# Neither is read here: copying the code takes 0.3 s, importing the database half a second.
local.snapshot = lambda runs, project, uses: Snapshot("c0de", runs / ".code/c0de", {})
room.ingest = lambda project: ""
project = Project.find(Path(sys.argv[1]), environ={})
entries = [launching.entry(word.split(":")[0], int(word.split(":")[1])) for word in sys.argv[2:]]
scheduler = launching.scheduler(project, *entries)
with stop_on_signals(scheduler):
    print(launching.states(launching.through(scheduler)))
"""


@contextmanager
def other_run(project: Project, *words: str) -> Iterator["Forked"]:
    """Start a `gpas run` in another process; words are act:seed."""
    from forking import Forked

    child = Forked(OTHER, str(project.config), *words, output=project.config.parent / f"other-{time.monotonic_ns()}")
    try:
        yield child
    finally:
        child.end()


def job_pid(status: StageStatus) -> int:
    return int(read_json(status.directory / "process.json")["pid"])


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def go(project: Project) -> None:
    """Let the waiting fake jobs finish."""
    (project.config.parent / "go").touch()
