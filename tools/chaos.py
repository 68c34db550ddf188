"""Inject faults into a toy grid for some minutes, let everything finish, and check the result.

    python tools/chaos.py --minutes 10 --seed 1                       on this machine, and on a SLURM where there is one
    python tools/chaos.py --minutes 2 --seed 1 --executor local       slurm, or both
    python tools/chaos.py --replay FOLDER/faults-local-1.jsonl        the same faults at the same seconds

Jobs, their children and commands are killed, interrupted and frozen; the disk fills up; clocks are wrong; SLURM
requeues, cancels and preempts jobs, and loses its controller and nodes. Meanwhile many commands work on the same grid.
The seed determines everything random. Faults are printed as they happen and written to a file that can be replayed,
even in part.

The last line is `0 lost, 0 doubled, 0 wrong` with exit code 0, or the violations and the folder with the evidence, with
exit code 4. A private SLURM cluster needs the packages of `tools/cluster.py install`; a full disk needs root. Anything
unavailable is left out, with a message. Changing the code during a run may break the run.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(1, str(Path(__file__).parents[1] / "tests"))  # whose helpers make the projects

NEEDED = ("gpas_cli", "torch", "sqlalchemy", "safetensors", "submitit", "typer", "yaml", "psutil", "pytest")
DISK = 256  # size in megabytes of the file system that holds a project
STEPS = 300  # updates of a cell, which take a few seconds
SHORTEST = 10.0  # least number of seconds left for which another round is started
EXIT_USAGE, EXIT_BROKEN = 2, 4

if TYPE_CHECKING:
    from chaos_kit.judge import Violation
    from chaos_kit.plan import Step
    from chaos_kit.project import Project
    from chaos_kit.storm import Reference
    from cluster import Cluster


def arguments() -> argparse.Namespace:
    summary, _, more = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=more, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="how long to inject faults (default: 10)")
    parser.add_argument("--seed", type=int, default=1, help="seed of all random choices (default: 1)")
    parser.add_argument(
        "--executor", choices=("local", "slurm", "both"), default="both", help="where jobs run (default: both)"
    )
    parser.add_argument("--pace", type=float, default=2.0, help="seconds between two faults or commands (default: 2)")
    parser.add_argument("--without", nargs="*", default=[], metavar="KIND", help="faults and commands to leave out")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="repeat the faults recorded in this file, once")
    parser.add_argument(
        "--folder", type=Path, help="working folder, with a short path because of unix sockets (default: in /tmp)"
    )
    parser.add_argument("--keep", action="store_true", help="keep the folder even if there was no violation")
    return parser.parse_args()


@dataclass(frozen=True)
class Given:
    """What all rounds share: the text, and the results of an undisturbed run."""

    text: Path
    reference: Reference


class Chaos:
    """A whole chaos run in `folder`."""

    def __init__(self, options: argparse.Namespace, folder: Path):
        self.options, self.folder = options, folder
        self.thrown: Counter[str] = Counter()
        self.cells = self.rounds = 0
        self._mounted: list[Path] = []

    def run(self) -> list[Violation]:
        """Run the rounds and return all violations; stop after the first round with any."""
        from chaos_kit.project import Project, write_text
        from chaos_kit.storm import make_reference

        text = write_text(self.folder / "text")
        say("An undisturbed run of the same cells comes first.")
        undisturbed = Project(self.folder / "reference", text, self.folder / "reference-logs", steps=STEPS)
        given = Given(text, make_reference(undisturbed))
        executors = self._executors()
        for executor in executors:
            seconds = 60 * self.options.minutes / len(executors)
            broken = self._on_slurm(seconds, given) if executor == "slurm" else self._storms("local", seconds, given)
            if broken:
                return broken
        return []

    def close(self) -> None:
        """Unmount every file system."""
        from disks import unmount

        while self._mounted:
            folder = self._mounted.pop()
            kept = folder.with_name(f"{folder.name}-kept")
            shutil.copytree(folder, kept, symlinks=True)
            unmount(folder)
            folder.rmdir()
            kept.rename(folder)

    def _executors(self) -> list[str]:
        """Return local, slurm, or both. Exit if SLURM was requested and is unavailable."""
        from cluster import why_unavailable

        wanted = ["local", "slurm"] if self.options.executor == "both" else [self.options.executor]
        if self.options.replay:
            first = self.options.replay.name.split("-")
            wanted = [first[1]] if len(first) == 3 else wanted[:1]
        reason = why_unavailable("light") if "slurm" in wanted else ""
        if reason and wanted == ["slurm"]:
            raise SystemExit(f"no SLURM cluster can be started here: {reason}")
        if reason:
            say(f"SLURM is left out: {reason}")
        return ["local"] if reason else wanted

    def _on_slurm(self, seconds: float, given: Given) -> list[Violation]:
        from chaos_kit.slurm_faults import repair
        from cluster import Cluster

        self.folder.chmod(0o755)  # munged needs its socket in a folder that every user can enter
        cluster = Cluster(self.folder / "c", "light", min_job_age=30)
        try:
            repair(cluster)
            return self._storms("slurm", seconds, given, cluster)
        finally:
            cluster.down()

    def _storms(self, executor: str, seconds: float, given: Given, cluster: Cluster | None = None) -> list[Violation]:
        """Run rounds, each in a new project, until the seconds are used up."""
        number = 0
        while seconds > 0 and (number == 0 or seconds > SHORTEST):
            number += 1
            steps = self._steps(executor, number, seconds)
            took, broken = self._round(f"{executor}-{number}", steps, seconds, given, cluster)
            seconds = 0.0 if self.options.replay else seconds - took
            if broken:
                return broken
        return []

    def _steps(self, executor: str, number: int, seconds: float) -> list[Step]:
        from chaos_kit.plan import make_plan, read

        options = self.options
        if options.replay:
            return read(options.replay)
        without = {*options.without, *([] if os.geteuid() == 0 else ["disk-full"])}
        if os.geteuid() != 0 and number == 1:
            say("disk-full is left out: only root can mount a small file system")
        return make_plan(f"{options.seed}-{executor}-{number}", seconds, executor, pace=options.pace, without=without)

    def _round(
        self, name: str, steps: list[Step], seconds: float, given: Given, cluster: Cluster | None
    ) -> tuple[float, list[Violation]]:
        """Run one round; return the seconds it took and its violations."""
        from chaos_kit.storm import Round

        place = self.folder / name
        say(f"\n{name}: {len(steps)} faults and commands for at most {seconds:.0f} s, in {place}")
        project = self._project(place, given, cluster)
        one = Round(project, given.reference, f"{self.options.seed}-{name}", say, self.folder / f"faults-{name}.jsonl")
        try:
            took = one.storm(steps, seconds)
            one.calm()
            broken = one.verdict()
        finally:
            one.end()
        self.thrown += one.done
        self.cells, self.rounds = self.cells + len(project.stages()), self.rounds + 1
        say(f"  {len(one.witness.polls)} answers of status were compared; {len(broken)} violations")
        if not broken and not self.options.keep:
            self._remove(place)
        return took, broken

    def _project(self, place: Path, given: Given, cluster: Cluster | None) -> Project:
        """Make a new project on its own disk. Every other round on SLURM starts with the text already tokenised."""
        from chaos_kit.project import Project
        from disks import mount

        if mount(place, DISK):
            self._mounted.append(place)
        project = Project(place / "p", given.text, self.folder / f"{place.name}-logs", steps=STEPS, cluster=cluster)
        if cluster and int(place.name.rpartition("-")[2]) % 2:
            project.tokenise()
        return project

    def _remove(self, place: Path) -> None:
        from disks import unmount

        if place in self._mounted:
            self._mounted.remove(place)
            unmount(place)
        shutil.rmtree(place)


def say(words: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {words}" if words.startswith("[") else words, flush=True)


def verdict(broken: list[Violation], chaos: Chaos) -> str:
    """Return the last line of the output."""
    from chaos_kit.plan import is_fault

    counts = Counter(violation.verdict for violation in broken)
    violations = ", ".join(f"{counts[word]} {word}" for word in ("lost", "doubled", "wrong"))
    faults = {kind: n for kind, n in chaos.thrown.most_common() if n and (is_fault(kind) or kind == "clock-shift")}
    commands = {kind: n for kind, n in chaos.thrown.most_common() if n and kind not in faults}
    words = [
        f"{sum(some.values())} {what}: {_list(some)}" for what, some in (("faults", faults), ("commands", commands))
    ]
    return f"{violations} ({chaos.cells} cells in {chaos.rounds} rounds; {'; '.join(words)})"


def _list(counts: dict[str, int]) -> str:
    return ", ".join(f"{kind} {n}" for kind, n in counts.items()) or "none"


def main() -> int:
    options = arguments()
    absent = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if absent:
        print(f"{sys.executable} has no {', '.join(absent)}: `make dev`, then .venv/bin/python tools/chaos.py")
        return EXIT_USAGE
    folder = (options.folder or Path(tempfile.mkdtemp(prefix="gpas-chaos-", dir="/tmp"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    say(f"seed {options.seed}, {options.minutes:g} minutes, in {folder}")
    chaos = Chaos(options, folder)
    whole = False
    try:
        broken = chaos.run()
        whole = not broken
    finally:
        chaos.close()
        if whole and not options.keep:
            shutil.rmtree(folder)
    for violation in broken:
        print(violation)
    if broken:
        print(f"The evidence is in {folder}; faults-*.jsonl can be replayed.")
    print(verdict(broken, chaos))
    return EXIT_BROKEN if broken else 0


if __name__ == "__main__":
    sys.exit(main())
