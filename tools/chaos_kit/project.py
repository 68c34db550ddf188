"""The toy project of a chaos run: its grids, the commands run in it, and an undisturbed reference."""

from __future__ import annotations

import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from end_to_end import Toy, toy

from gpas_cli.data.prepare import prepare
from gpas_cli.grid.expand import expand
from gpas_cli.grid.load import load

if TYPE_CHECKING:
    from cluster import Cluster

KIT = Path(__file__).parent
GRIDS = ("chaos", "layers", "pair")
# Every update is logged, so that all can be compared. `layers` shares a training with `chaos` and has a second stage;
# the jobs of `pair` have two processes.
DECLARED = """\
default: chaos
{resources}
grids:
  chaos:
    base: &base {{size: toy, data: notes}}
    axes: {{norm: [pre], gate: [none, gpas], seed: [1, 2]}}
    cadence: &often {{log_every: 1, stats_every: 20, eval_every: 100, checkpoint_every: 20}}
    table: {{title: Chaos, rows: [norm, gate], columns: size, against: {{gate: none}}}}
  layers:
    base: {{<<: *base, importance: {{}}}}
    axes: {{norm: [pre], gate: [gpas], seed: [1]}}
    cadence: *often
    table: {{title: Importance, rows: [norm, gate], columns: size, value: mean_importance}}
  pair:
    base: *base
    axes: {{norm: [pre], gate: [gpas], seed: [3]}}
    cadence: *often
    resources: {pair}
    table: {{title: Pair, rows: [norm, gate], columns: size}}
"""
ON_SLURM = "mem: 1000M, time: '0:10:00', notice: 20"
KEPT_OUTPUT = 20_000  # characters kept of a command's output


@dataclass
class Command:
    """A running `gpas` command; `killed` is set when a fault kills it."""

    words: tuple[str, ...]
    process: subprocess.Popen[bytes]
    log: Path
    shift: float = 0.0
    killed: bool = False
    began: float = field(default_factory=time.time)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def output(self) -> str:
        """Return the end of its output."""
        return self.log.read_text(errors="replace")[-KEPT_OUTPUT:]


class Project(Toy):
    """A project in `folder` with the text of `text`; its commands see `cluster`, if there is one."""

    def __init__(self, folder: Path, text: Path, logs: Path, *, steps: int, cluster: Cluster | None = None):
        self.folder = folder
        self.cluster = cluster
        self._logs = logs
        logs.mkdir(parents=True, exist_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "text").symlink_to(text)
        asked = f"resources:\n  toy: {{{ON_SLURM}}}" if cluster else ""
        pair = f"{{ranks: 2, cpus: 2{f', {ON_SLURM}' if cluster else ''}}}"
        (folder / "experiments.yaml").write_text(toy(steps) + DECLARED.format(resources=asked, pair=pair))
        self.commands: list[Command] = []
        self._starting = threading.Lock()

    def environment(self) -> dict[str, str]:
        """Return the environment of commands: this checkout, one thread, the cluster."""
        here = {**super().environment(), "PYTHONPATH": f"{KIT / 'shifted'}:{KIT.parents[1]}"}
        return {**here, **self.cluster.environment} if self.cluster else here

    def give(self, *words: str, shift: float = 0.0) -> Command:
        """Start a command in the background; its clock is off by `shift` seconds."""
        with self._starting:
            log = self._logs / f"{len(self.commands):04d}-{words[0]}.txt"
            environment = {**self.environment(), **({"CHAOS_SHIFT": str(shift)} if shift else {})}
            with log.open("wb") as out:
                process = subprocess.Popen(
                    self.command(*words), cwd=self.folder, env=environment, start_new_session=True,
                    stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                )  # fmt: skip
            command = Command(words, process, log, shift)
            self.commands.append(command)
            return command

    def running(self, *names: str) -> list[Command]:
        """Return the live commands with these names, or all of them."""
        return [command for command in self.commands if (not names or command.words[0] in names) and command.alive]

    def run_words(self, *, wait: bool = False) -> tuple[str, ...]:
        """Return the words of the command that runs every grid."""
        return ("run", "grid", *GRIDS, "--yes", "--executor", self.executor, *(["--wait"] if wait else []))

    def retry_words(self) -> tuple[str, ...]:
        """Return the words of the command that retries failed and cancelled cells."""
        return ("retry", "--yes", "--executor", self.executor)

    @property
    def executor(self) -> str:
        return "slurm" if self.cluster else "local"

    def states(self) -> dict[str, str]:
        """Return cell -> state from `gpas status`."""
        cells = self("status", "--json", *GRIDS).json["cells"]
        return {f"{cell['grid']}/{cell['name']}": cell["state"] for cell in cells}

    def tokenise(self) -> None:
        """Tokenise the text first; on SLURM this would otherwise be a job that all others wait for."""
        for entry in expand(load(self.folder / "experiments.yaml"), list(GRIDS)):
            prepare(entry.cell.data, entry.cell.model.size.vocab, self.folder / "cache", root=self.folder, rows=1)

    def stages(self) -> dict[str, dict[str, str]]:
        """Return cell -> kind of stage -> key for every declared cell."""
        entries = expand(load(self.folder / "experiments.yaml"), list(GRIDS))
        return {entry.id: {stage.kind: stage.key for stage in entry.cell.stages} for entry in entries}


def write_text(folder: Path) -> Path:
    """Write the text of all projects of a chaos run."""
    Toy(folder, steps=1)
    return folder / "text"


def names_of(stages: dict[str, dict[str, str]]) -> dict[str, str]:
    """Return stage key -> display name."""
    named: dict[str, str] = {}
    for cell, kinds in stages.items():
        for kind, key in kinds.items():
            named.setdefault(key, cell if kind == "pretrain" else f"{cell} ({kind})")
    return named
