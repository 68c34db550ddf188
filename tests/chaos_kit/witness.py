"""What could be seen while the faults came: processes, files, and what `gpas status` and squeue said."""

from __future__ import annotations

import json
import random
import subprocess
import threading
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from chaos_kit.judge import Ended, Poll, Shown
from chaos_kit.plan import SHIFTED, SHIFTS
from chaos_kit.processes import Census
from chaos_kit.project import GRIDS, Project
from gpas_cli.state.locks import Lock, probe

SAMPLE, PAUSE, LOOK = 0.2, 1.0, 2.0  # seconds between two samples of processes, two polls, two looks at the files
LIVE = ("PENDING", "RUNNING")


class Witness:
    """Watches a project from `start` to `stop`, in threads. A mistake of its own is raised by `stop`."""

    def __init__(self, project: Project, seed: str):
        self.project = project
        self.census = Census(project.folder)
        self.polls: list[Poll] = []
        self.refused: list[Ended] = []  # polls that gave no answer
        self.files: dict[str, tuple[int, int]] = {}  # file of an attempt -> size and checksum when it was last seen
        self.locked: list[tuple[float, str, list[int]]] = []  # when two attempts at a stage held their locks
        self._stages = project.stages()
        self._chooser = random.Random(seed)
        self._over = threading.Event()
        self._errors: list[BaseException] = []
        jobs = ((self.census.sample, SAMPLE), (self._poll, PAUSE), (self._look, LOOK))
        self._threads = [threading.Thread(target=self._repeat, args=job, daemon=True) for job in jobs]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop watching. The last sample is newer than the last poll."""
        if self._over.is_set():
            return
        self._over.set()
        for thread in self._threads:
            thread.join()
        self.census.sample()
        self._look()
        if self._errors:
            raise self._errors[0]

    def _repeat(self, act: Any, seconds: float) -> None:
        while not self._over.wait(seconds):
            try:
                act()
            except BaseException as error:
                self._errors.append(error)
                return

    def _poll(self) -> None:
        """Ask `gpas status --json`, now and then with a wrong clock, and squeue before and after."""
        shift = self._chooser.choice(SHIFTS) if self._chooser.random() < SHIFTED else 0.0
        environment = {**self.project.environment(), **({"CHAOS_SHIFT": str(shift)} if shift else {})}
        before, began = self._squeue(), time.time()
        asked = self.project.command("status", "--json", *GRIDS)
        done = subprocess.run(asked, cwd=self.project.folder, env=environment, capture_output=True, text=True)
        ended, after = time.time(), self._squeue()
        if done.returncode:
            self.refused.append(Ended(" ".join(asked[1:]), done.returncode, done.stdout + done.stderr))
            return
        same = {key: state for key, (job, state) in before.items() if after.get(key) == (job, state)}
        shown = [self._shown(cell) for cell in json.loads(done.stdout)["cells"]]
        self.polls.append(Poll(began, ended, shown, same, shift))

    def _shown(self, cell: Mapping[str, Any]) -> Shown:
        name = f"{cell['grid']}/{cell['name']}"
        key = self._stages[name][cell["stage"]]
        return Shown(name, key, cell["state"], str(cell["evidence"]), str(cell["cause"] or ""))

    def _squeue(self) -> dict[str, tuple[str, str]]:
        """Stage key -> (job, state) of what SLURM has pending or running; nothing where it does not answer."""
        if self.project.cluster is None:
            return {}
        try:
            told = self.project.cluster.run("squeue", "-h", "-r", "-o", "%j %K %i %T").splitlines()
        except (RuntimeError, subprocess.TimeoutExpired):
            return {}
        found = dict[str, tuple[str, str]]()
        for name, index, job, state in (words for line in told if len(words := line.split()) == 4):
            for key in self._keys(name, index) if state in LIVE else ():
                found[key] = (job, state)
        return found

    def _keys(self, name: str, index: str) -> list[str]:
        with suppress(OSError, ValueError, KeyError, IndexError):
            record = json.loads((self.project.runs / ".slurm" / name / "submission.json").read_text())
            return list(record["keys"][int(index)])
        return []

    def _look(self) -> None:
        """Note how far every journal and attempt.json has grown, and where two attempts at a stage hold their locks."""
        for stage in self.project.runs.glob("??/*"):
            self._look_at_locks(stage)
        for path in [*self.project.runs.glob("??/*/*/journal.jsonl"), *self.project.runs.glob("??/*/*/attempt.json")]:
            size, checksum = self.files.get(str(path), (0, 0))
            with suppress(FileNotFoundError), path.open("rb") as file:
                file.seek(size)
                more = file.read()
                self.files[str(path)] = (size + len(more), zlib.crc32(more, checksum))

    def _look_at_locks(self, stage: Path) -> None:
        locks = sorted(stage.glob("*/alive.lock"))
        held = [path for path in locks if probe(path) is Lock.HELD]
        # The first ones may have been let go before the last was taken.
        held = [path for path in held if probe(path) is Lock.HELD] if len(held) > 1 else []
        if len(held) > 1:
            self.locked.append((time.time(), stage.name, [int(path.parent.name) for path in held]))

    def seen(self) -> dict[str, str]:
        """File -> digest of what was seen of it."""
        return {path: f"{size} bytes, {checksum:08x}" for path, (size, checksum) in self.files.items()}

    def now(self) -> dict[str, str]:
        """File -> digest of as many bytes as were seen of it, of the files that are still there."""
        found = {}
        for path, (size, _) in self.files.items():
            with suppress(FileNotFoundError):
                data = Path(path).read_bytes()[:size]
                found[path] = f"{len(data)} bytes, {zlib.crc32(data):08x}"
        return found
