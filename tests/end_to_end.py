"""A small real project for tests: text, grids, and the `gpas` command as users run it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any
from unittest import mock

import pytest
from cases import file_text
from documents import write_documents
from face import Face
from once import made_once

from gpas_cli.schedule.local.process import Lease, Spawner
from gpas_cli.schedule.process import job_environment
from gpas_cli.store.rundir import AttemptDir
from gpas_cli.store.snapshot import Snapshot


def toy(steps: int) -> str:
    """Return the first lines of the experiments file of a toy project with so many updates."""
    return Template(file_text("experiments/toy.yaml")).substitute(steps=steps)


class Toy(Face):
    """A project directory and the commands run in it, whose jobs train."""

    def __init__(
        self,
        folder: Path,
        *,
        steps: int = 20,
        norms: str = "pre",
        gates: str = "none, gpas",
        seeds: str = "1",
        checkpoint_every: int = 50,
    ):
        first = gates.partition(",")[0]
        more = {"norms": norms, "gates": gates, "seeds": seeds, "first": first, "checkpoint_every": checkpoint_every}
        super().__init__(folder, toy(steps) + Template(file_text("experiments/toy_grid.yaml")).substitute(more))

    def copied(self, folder: Path) -> Toy:
        """Return a copy of the project, which the test may change; its database is made anew."""
        shutil.copytree(self.folder, folder, ignore=shutil.ignore_patterns("gpas.db*"))
        return Toy.at(folder)

    @classmethod
    def at(cls, folder: Path) -> Toy:
        """Return the project that lies in `folder`."""
        made = cls.__new__(cls)
        made.folder = folder
        return made

    def write_text(self) -> None:
        write_documents(self.folder / "text")

    def environment(self) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("GPAS_")}
        return {**clean, "PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "gpas_cli", *words]

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a command in a new session in the background; its output is appended to said.txt."""
        with (self.folder / "said.txt").open("ab") as said:
            return subprocess.Popen(
                self.command(*words), cwd=self.folder, env=self.environment(), text=True, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT,
            )  # fmt: skip

    @contextmanager
    def edited(self, old: str, new: str) -> Iterator[None]:
        """Edit experiments.yaml for the time of the block."""
        before = (self.folder / "experiments.yaml").read_text()
        self.edit(old, new)
        try:
            yield
        finally:
            (self.folder / "experiments.yaml").write_text(before)

    def status(self) -> dict[str, dict[str, Any]]:
        """Return name -> cell from `gpas status --json`."""
        return {cell["name"]: cell for cell in self("status", "--json").json["cells"]}

    def states(self) -> dict[str, str]:
        return {name: cell["state"] for name, cell in self.status().items()}

    def attempts(self) -> list[Path]:
        """Return the folders of all attempts, without those that are just being made."""
        return sorted(path.parent for path in self.runs.glob("??/*/[0-9]*/attempt.json"))

    def events(self, *attempts: Path, kind: str = "") -> list[dict[str, Any]]:
        """Return the events in the journals of these or of all attempts, all or those of a kind."""
        journals = [path / "journal.jsonl" for path in attempts or self.attempts()]
        lines = [line for path in journals if path.exists() for line in path.read_text(errors="replace").splitlines()]
        found = [json.loads(line[9:]) for line in lines if line.endswith("}")]
        return [event for event in found if kind in ("", event["kind"])]

    def has_stepped(self, attempt: Path) -> bool:
        """Return whether an attempt has gone beyond its first update."""
        return any(event["step"] > 1 for event in self.events(attempt, kind="step"))

    def stepping(self) -> list[int]:
        """Return the live processes of attempts that have trained beyond their first update."""
        pids = []
        for path in sorted(self.runs.glob("??/*/*/process.json")):
            pid = json.loads(path.read_text())["pid"]
            if alive(pid) and self.has_stepped(path.parent):
                pids.append(pid)
        return pids


@dataclass(frozen=True)
class Done:
    """What `LocalRun` asks of the process of a job, after the job has run in this process."""

    returncode: int
    pid: int = os.getpid()

    def poll(self) -> int:
        return self.returncode


@contextmanager
def jobs_run_here() -> Iterator[None]:
    """Within the context, jobs run in this process, one after the other: a new one imports torch for three seconds."""
    import torch  # noqa: F401  (its log keeps the stderr of its import)

    from gpas_cli.worker import job

    def launch(spawner: Spawner, attempt: AttemptDir, code: Snapshot, lease: Lease, _alive: int) -> Done:
        variables = job_environment(code.path, {**lease.variables, **spawner.project.variables})
        environment = mock.patch.dict(os.environ, variables, clear=True)
        handlers = {number: signal.getsignal(number) for number in job.STOP_SIGNALS}
        with attempt.log_path.open("a") as log, redirect_stdout(log), redirect_stderr(log), environment:
            returned = job.main(attempt.path)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        return Done(returned)

    with mock.patch.object(Spawner, "_launch", launch):
        yield


def trained_toy(folders: pytest.TempPathFactory) -> Toy:
    """Return a project whose two cells are trained, which all tests share."""

    def train(folder: Path) -> None:
        with jobs_run_here():
            Toy(folder / "toy")("run", "grid")

    return Toy.at(made_once(folders, "trained", train) / "toy")


def alive(pid: int) -> bool:
    """Return whether the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
