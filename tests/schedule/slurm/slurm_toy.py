"""A small project on a real cluster: `end_to_end.Toy` with resources, and queries for tests."""

import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from cluster import Cluster, until
from end_to_end import Toy

from gpas_cli.data.prepare import prepare
from gpas_cli.spec.data import Data

TIMEOUT_SECONDS = 400.0  # a long timeout costs nothing unless a test fails, and busy machines are slow
LONG = 600  # updates: enough seconds for a test to reach the job; see `paused` for slower actions
RESOURCES = "{{mem: 1000M, time: '0:10:00', notice: 20{more}}}"


@cache
def settled_text() -> Path:
    """Return a folder with the text of a toy, some seconds old."""
    folder = Path(tempfile.mkdtemp(prefix="gpas-text-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    Toy(folder / "toy")
    return folder / "toy/text"


class SlurmToy(Toy):
    """A toy whose commands see the cluster. `resources` is YAML that is added to the resources of every job.

    Its text is already tokenised, unless `tokenised` is false.
    """

    def __init__(self, folder: Path, cluster: Cluster, *, resources: str = "", tokenised: bool = True, **more: Any):
        super().__init__(folder, **more)
        self.cluster = cluster
        self.edit(
            "    table:", f"    resources: {RESOURCES.format(more=f', {resources}' if resources else '')}\n    table:"
        )

        if tokenised:
            self._tokenise()

    def _tokenise(self) -> None:
        for path in settled_text().iterdir():  # younger files might still change and would not count as tokenised
            (self.folder / "text" / path.name).unlink()
            (self.folder / "text" / path.name).symlink_to(path)
        data = Data(source="files", path="text/*.txt", tokenizer="bpe", layout="pack", length=16, eval_tokens=500)
        prepare(data, 280, self.folder / "cache", root=self.folder, rows=1)

    def environment(self) -> dict[str, str]:
        return {**super().environment(), **self.cluster.environment}

    def submit(self, *words: str, expect: int | None = 0) -> str:
        """Run `gpas run grid --executor slurm` and return its output."""
        return self("run", "grid", "--executor", "slurm", "--yes", *words, expect=expect).out

    def queue(self) -> dict[str, str]:
        """Return array_index -> state of everything SLURM has not finished."""
        words = self.cluster.run("squeue", "-h", "-r", "-o", "%F_%K %T").split()
        return dict(zip(words[::2], words[1::2], strict=True))

    def finish(self, timeout: float = TIMEOUT_SECONDS) -> None:
        """Wait until every cell is done; until then each must be shown as running or queued."""
        self.until(lambda states: set(states.values()) == {"done"}, timeout, ("queued", "running", "done"))

    def finish_once(self, attempts: int = 0, texts: int = 0) -> None:
        """Finish; check that nothing was done twice, and that there are so many attempts, 0 for any number."""
        self.finish()
        assert len(self.attempts()) == attempts or not attempts, self.said()
        self.trained_once(texts)

    def until(
        self,
        condition: Callable[[dict[str, str]], bool],
        timeout: float = TIMEOUT_SECONDS,
        allowed: tuple[str, ...] = (),
    ) -> dict[str, str]:
        """Wait until the states of the cells satisfy `wanted`; meanwhile no state outside `allowed` may appear."""
        deadline = time.monotonic() + timeout
        while True:
            cells = self.status()
            states = {name: cell["state"] for name, cell in cells.items()}
            if condition(states):
                return states
            wrong = [cell for cell in cells.values() if allowed and cell["state"] not in allowed]
            assert not wrong, f"{[(c['name'], c['state'], c['evidence'], c['cause']) for c in wrong]}\n{self.said()}"
            assert time.monotonic() < deadline, f"waited in vain: {states}\n{self.said()}"
            time.sleep(1)

    def said(self) -> str:
        """Return the output of SLURM and the supervisors."""
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.runs.glob(".slurm/*/*.out")))

    def recorded(self) -> list[dict[str, Any]]:
        """Return the recorded jobs of all elements of all submissions."""
        files = self.runs.glob(".slurm/gpas-*/elements.jsonl")
        return [job for path in files for line in path.read_text().splitlines() for job in json.loads(line)]

    def facts(self) -> list[dict[str, Any]]:
        """Return attempt.json of every attempt."""
        return [json.loads((path / "attempt.json").read_text()) for path in self.attempts()]

    def training(self) -> bool:
        """Return whether the newest attempt of every cell has trained beyond its first update."""
        newest = {path.parent: path for path in self.attempts()}
        return bool(newest) and all(map(self.has_stepped, newest.values()))

    def losses(self) -> dict[tuple[str, int], float]:
        """Return (cell, update) -> training loss; check that later attempts repeat earlier losses exactly."""
        found: dict[tuple[str, int], float] = {}
        for path in self.attempts():
            name = json.loads((path / "attempt.json").read_text())["name"]
            for event in self.events(path, kind="step"):
                assert found.setdefault((name, event["step"]), event["loss"]) == event["loss"]
        return found

    def supervisors(self) -> list[int]:
        """Return the process ids of the supervisors of running attempts."""
        pids = {json.loads((path / "attempt.json").read_text())["submitter"]["pid"] for path in self.attempts()}
        return sorted(pid for pid in pids if Path(f"/proc/{pid}").exists())

    def trained_once(self, texts: int = 0) -> None:
        """Check that each cell has exactly one `done`, and that `texts` texts do."""
        done = [event for event in self.events(kind="outcome") if event["outcome"] == "done"]
        assert len(done) == len(self.states()) + texts, self.said()


def gated(toy: SlurmToy) -> None:
    """Declare the cells with a gate alone."""
    toy.edit("gate: [none, gpas]", "gate: [gpas]")
    toy.edit("against: {gate: none}", "against: {gate: gpas}")


def one_cell(cluster: Cluster, folder: Path, *, resources: str = "", **more: Any) -> SlurmToy:
    """Return a project of a single cell, pre-gpas-s1."""
    toy = SlurmToy(folder, cluster, resources=resources, **{"steps": LONG, "checkpoint_every": 100, **more})
    gated(toy)
    return toy


def started(cluster: Cluster, folder: Path, **more: Any) -> SlurmToy:
    """Return a project of a single cell whose job is training."""
    toy = one_cell(cluster, folder, **more)
    toy.submit()
    wait(toy.training)
    return toy


@contextmanager
def paused(toy: SlurmToy) -> Iterator[int]:
    """Stop the training process during the block, so that it cannot finish before the block ends."""
    pid = int(next(event["pid"] for event in reversed(toy.events()) if event["kind"] == "start"))
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def pending(pid: int) -> int:
    """Return the mask of the signals that wait for a process, all of them if it has exited."""
    try:
        return int(Path(f"/proc/{pid}/status").read_text().partition("ShdPnd:")[2].split()[0], 16)
    except FileNotFoundError:
        return -1


def job_of(toy: SlurmToy) -> str:
    """Return the SLURM job of a project of one cell."""
    return next(iter(toy.queue()))


def node_of(cluster: Cluster) -> str:
    """Return the node of the only running job; earlier ones may still be completing."""
    (node,) = cluster.run("squeue", "-h", "-t", "RUNNING", "-o", "%N").split()
    return node


def wait(condition: Callable[[], object], timeout: float = TIMEOUT_SECONDS) -> None:
    """Wait until `condition` holds."""
    until(condition, timeout, "what the test waits for")


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    os.kill(pid, number)


INSTANTS = (
    "claimed", "recorded", "script", "first-claim", "last-claim", "before-sbatch", "sbatch-running", "after-sbatch",
    "before-answer", "answer-recorded",
)  # fmt: skip


def die_at(instant: str, toy: SlurmToy, *where: str) -> None:
    """Run a submitter that is killed at the named instant."""
    driver = [sys.executable, str(Path(__file__).with_name("dying_submitter.py")), instant]
    command = [*driver, "run", "grid", "--executor", "slurm", "--yes", *where]
    died = subprocess.run(command, cwd=toy.folder, env=toy.environment(), capture_output=True, text=True)
    assert died.returncode == -9, died.stdout + died.stderr
