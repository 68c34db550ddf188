"""What the tests of launching share: small cells, a scheduler with fake jobs, other processes."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpas_cli.grid import Entry
from gpas_cli.plan.machine import ThisMachine
from gpas_cli.project import Project
from gpas_cli.schedule import scheduler as room
from gpas_cli.schedule.local import run as local
from gpas_cli.schedule.local.run import LocalRun
from gpas_cli.schedule.process import Cancelling
from gpas_cli.schedule.scheduler import Reporter, RunRequest, RunSnapshot, RunSummary, cancel
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.state.attempt import process_path
from gpas_cli.state.observe import cell_statuses, observe
from gpas_cli.state.status import StageStatus
from gpas_cli.store.rundir import AttemptDir, attempts, read_json
from gpas_cli.store.snapshot import Snapshot

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


def until(condition: Callable[[], Any], seconds: float = 120.0) -> Any:
    """Wait for something to become true, and return it."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    return found


def job_pid(status: StageStatus) -> int:
    return int(read_json(status.directory / "process.json")["pid"])


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


@dataclass(frozen=True)
class Lab:
    """A project whose jobs are fakes."""

    project: Project

    @property
    def runs(self) -> Path:
        return self.project.runs

    @property
    def folder(self) -> Path:
        return self.project.config.parent

    def scheduler(
        self, *entries: Entry, command: Sequence[str] = COMMAND, machine: ThisMachine = FOUR_CORES, **more: Any
    ) -> LocalRun:
        return LocalRun(RunRequest(project=self.project, entries=entries, **more), command=command, machine=machine)

    def run(self, *entries: Entry, **more: Any) -> RunSummary:
        return through(self.scheduler(*entries, **more))

    def ran(self) -> list[str]:
        """Return "name attempt" of every fake job that wrote a journal."""
        path = self.folder / "ran.txt"
        return [" ".join(line.split()[:2]) for line in path.read_text().splitlines()] if path.exists() else []

    def go(self) -> None:
        """Let the waiting fake jobs finish."""
        (self.folder / "go").touch()

    def observe(self, cell: Entry) -> StageStatus:
        return observe(self.runs, key(cell))

    def attempts(self, cell: Entry) -> list[AttemptDir]:
        return attempts(self.runs, key(cell))

    def cancel(self, *cells: Entry) -> list[Cancelling]:
        return cancel(self.runs, cell_statuses(self.runs, cells))

    def seen(self, cell: Entry, state: str) -> Callable[[], StageStatus | None]:
        """Return a condition: the cell's stage is in `state`."""
        return lambda: status if (status := self.observe(cell)).state == state else None

    def working(self, cell: Entry) -> Callable[[], StageStatus | None]:
        """Return a condition: the cell's job has journalled a step."""
        running = self.seen(cell, "running")
        return lambda: status if (status := running()) and status.progress and status.progress.step else None

    @contextmanager
    def other_run(self, *words: str) -> Iterator["Forked"]:
        """Start a `gpas run` in another process; words are act:seed."""
        from forking import Forked

        script, output = "import launching; launching.other()", self.folder / f"other-{time.monotonic_ns()}"
        child = Forked(script, str(self.project.config), *words, output=output)
        try:
            yield child
        finally:
            child.end()

    def orphaned(self, *cells: Entry) -> None:
        """Start the jobs of cells in another `gpas run`, and kill that once they work and it has recorded them."""
        with self.other_run(*(cell.name.replace("-", ":") for cell in cells)) as other:
            for cell in cells:
                attempt = AttemptDir(until(self.working(cell)).directory)
                until(process_path(attempt).exists)
            kill(other.pid)
            other.wait()


def other() -> None:
    """Be the other `gpas run`."""
    local._POLL_SECONDS, local._TICK_SECONDS = 0.01, 0.05
    # Neither is read here: copying the code takes 0.3 s, importing the database half a second.
    local.snapshot = lambda runs, project, uses: Snapshot("c0de", runs / ".code/c0de", {})
    RunRequest.ingest = lambda self: ""
    words = [word.split(":") for word in sys.argv[2:]]
    project = Project.find(Path(sys.argv[1]), environ={})
    made = Lab(project).scheduler(*(entry(act, int(seed)) for act, seed in words))
    with room.stop_on_signals(made):
        print(states(through(made)))
