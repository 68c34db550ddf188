"""The steps of sessions with the `gpas` command, in a project whose cells have made-up attempts."""

import shlex
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cases import file_text
from face import FOUR, START, TRAINED, Face, alive, step, tiny
from scored import finish_cells
from sessions import Commands

from gpas_cli.checkpoints import path_of
from gpas_cli.state.claim_set import ClaimSet, run_again
from gpas_cli.store.rundir import AttemptDir, attempts, stage_dir

OLD = Path(__file__).parents[1] / "store/data/version_1"


def other_project(face: Face) -> Path:
    """Move the run directories made so far to a folder of another project, and return it."""
    there = face.folder.parent / "there"
    there.mkdir()
    face.runs.rename(there / "runs")
    for database in face.folder.glob("gpas.db*"):
        database.unlink()
    return there


@dataclass
class Steps(Commands):
    """Each method is a step. The cells are those of the grid `small`."""

    patch: pytest.MonkeyPatch = field(kw_only=True)
    others: ExitStack = field(kw_only=True)  # what other processes hold
    before: dict[str, object] = field(default_factory=dict)  # what `same` and `unchanged` have found

    def states(self, which: str, **wanted: str) -> None:
        """Check the states of some cells of a grid, or of those that another choice of `gpas status` has."""
        found = {cell["name"]: cell["state"] for cell in self.face("status", which, "--json").json["cells"]}
        assert found.items() >= wanted.items(), found

    def lists(self, words: str, are: Sequence[str]) -> None:
        """Check which cells a command lists, in their order."""
        first = (line.split()[0] for line in self.face(*shlex.split(words)).out.splitlines() if line.split())
        assert [word for word in first if "-s" in word] == are

    def same(self, words: str) -> None:
        """Check that a command prints what it has printed before."""
        out = self.face(*shlex.split(words)).out
        assert self.before.setdefault(words, out) == out

    def unchanged(self, pattern: str) -> None:
        """Check that the same files match as before."""
        found = sorted(str(path) for path in self.face.folder.glob(pattern))
        assert self.before.setdefault(pattern, found) == found

    def declare(self, file: str) -> None:
        """Replace the experiments file by this one of the tests' folder."""
        self.face.declare(file_text(file))

    def tiny(self, perplexities: Sequence[float] = (), steps: int = 40, more: str = "") -> None:
        """Declare the grid `tiny` with what a file has more, and train its cells to these perplexities."""
        self.face.declare(tiny(FOUR).replace("steps: 40", f"steps: {steps}") + (file_text(more) if more else ""))
        for entry, perplexity in zip(self.face.cells(), perplexities, strict=False):
            self.face.trained(entry, perplexity, stop=steps)

    def ended(self, name: str, how: str = "done", perplexity: float | None = None, cause: str = "") -> None:
        self.face.ended(name, how, perplexity, cause)

    def attempt(
        self, name: str, grid: str = "small", trained: int = 0, events: Sequence[tuple[str, dict[str, Any]]] = ()
    ) -> None:
        """Make an attempt with so many of the events of one that has trained, and with these."""
        self.face.recorded(self.face.entry(name, grid), *TRAINED[:trained], *events)

    def all_ended(self, perplexity: float) -> None:
        for entry in self.face.entries():
            self.ended(entry.name, perplexity=perplexity)

    def running(self, name: str, grid: str = "small", steps: int = 2) -> None:
        """Make an attempt whose process is alive."""
        events = (("step", step(number)) for number in range(1, steps + 1))
        attempt = self.face.recorded(self.face.entry(name, grid), ("start", START), *events)
        self.others.enter_context(alive(attempt))

    def claimed(self) -> None:
        """Let another `gpas run` claim all cells."""
        claims = self.others.enter_context(ClaimSet(self.face.runs))
        claims.take([entry.key for entry in self.face.entries()])

    def over(self) -> None:
        """Let the other processes end."""
        self.others.close()

    def _attempts(self, name: str) -> list[AttemptDir]:
        return attempts(self.face.runs, self.face.entry(name).key)

    def attempts(self, name: str, are: Sequence[int]) -> None:
        assert [attempt.number for attempt in self._attempts(name)] == are

    def checkpoints(self, name: str, steps: Sequence[int]) -> None:
        """Give the newest attempt at a cell checkpoints of 10,000 bytes."""
        for number in steps:
            folder = path_of(self._attempts(name)[-1].checkpoints, number)
            folder.mkdir(parents=True)
            (folder / "weights").write_bytes(bytes(10_000))

    def left(self, name: str, are: Sequence[int]) -> None:
        """Check the checkpoints of the newest attempt at a cell."""
        folder = self._attempts(name)[-1].checkpoints
        assert sorted(path.name for path in folder.iterdir()) == [path_of(folder, number).name for number in are]

    def asked_again(self, names: Sequence[str], of: Sequence[str]) -> None:
        """Ask for new runs of those cells that have a result, as `gpas retry --done` does before it starts them."""
        keys = {name: self.face.entry(name).key for name in names}
        assert run_again(self.face.runs, list(keys.values())) == [keys[name] for name in of]

    def scored(self) -> None:
        finish_cells(self.face)

    def write(self, path: str, text: str) -> None:
        file = self.face.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def writable(self, path: str) -> None:
        """Let every user write to a file."""
        (self.face.folder / path).chmod(0o666)

    def remove(self, pattern: str) -> None:
        """Remove the files that match."""
        for path in self.face.folder.glob(pattern):
            path.unlink()

    def move(self, path: str, to: str) -> None:
        (self.face.folder / path).rename(self.face.folder / to)

    def elsewhere(self) -> None:
        """Let what was made so far be of another project, in ../there."""
        other_project(self.face)

    def aside(self, name: str) -> None:
        """Take the run directories of a cell away."""
        stage_dir(self.face.runs, self.face.entry(name).key).rename(self.face.folder / "aside")

    def back(self, name: str) -> None:
        (self.face.folder / "aside").rename(stage_dir(self.face.runs, self.face.entry(name).key))

    def files(self, pattern: str, are: Sequence[str]) -> None:
        """Check the names of the files that match."""
        assert sorted(path.name for path in self.face.folder.glob(pattern)) == are

    def content(self, pattern: str, says: str) -> None:
        """Check what the only file that matches begins with."""
        (path,) = self.face.folder.glob(pattern)
        assert path.read_text().startswith(says)

    def old(self) -> None:
        """Have the run directories that version 1 of the records wrote, and no SLURM."""
        shutil.copytree(OLD, self.face.folder, dirs_exist_ok=True)
        self.variable("PATH", str(self.face.folder))

    def variable(self, name: str, value: str) -> None:
        self.patch.setenv(name, value)
