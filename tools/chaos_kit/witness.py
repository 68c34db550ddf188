"""Observations during the faults: processes, files, and the answers of `gpas status` and squeue."""

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

SAMPLE, PAUSE, LOOK = 0.2, 1.0, 2.0  # seconds between process samples, between polls, and between looks at the files
LIVE = ("PENDING", "RUNNING")


class Witness:
    """Observes a project from `start` to `stop`, in threads. `stop` raises any exception of theirs."""

    def __init__(self, project: Project, seed: str):
        self.project = project
        self.census = Census(project.folder)
        self.polls: list[Poll] = []
        self.refused: list[Ended] = []  # polls without an answer
        self.files: dict[str, tuple[int, int]] = {}  # file of an attempt -> size and checksum when last seen
        self.locked: list[tuple[float, str, list[int]]] = []  # times at which two attempts at a stage held their locks
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
        """Run `gpas status --json`, occasionally with a wrong clock, with squeue before and after."""
        shift = self._chooser.choice(SHIFTS) if self._chooser.random() < SHIFTED else 0.0
        environment = {**self.project.environment(), **({"CHAOS_SHIFT": str(shift)} if shift else {})}
        before = self._squeue()
        began = time.time()
        asked = self.project.command("status", "--json", *GRIDS)
        done = subprocess.run(asked, cwd=self.project.folder, env=environment, capture_output=True, text=True)
        ended = time.time()
        after = self._squeue()
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
        """Return stage key -> (job, state) of SLURM's pending and running jobs, or {} if it does not answer."""
        if self.project.cluster is None:
            return {}
        try:
            lines = self.project.cluster.run("squeue", "-h", "-r", "-o", "%j %K %i %T").splitlines()
        except (RuntimeError, subprocess.TimeoutExpired):
            return {}
        found = dict[str, tuple[str, str]]()
        for name, index, job, state in (words for line in lines if len(words := line.split()) == 4):
            for key in self._keys(name, index) if state in LIVE else ():
                found[key] = (job, state)
        return found

    def _keys(self, name: str, index: str) -> list[str]:
        with suppress(OSError, ValueError, KeyError, IndexError):
            record = json.loads((self.project.runs / ".slurm" / name / "submission.json").read_text())
            return list(record["keys"][int(index)])
        return []

    def _look(self) -> None:
        """Record the size of every journal and attempt.json, and stages with two attempts holding their locks."""
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
        # The first locks may have been released before the last was checked.
        held = [path for path in held if probe(path) is Lock.HELD] if len(held) > 1 else []
        if len(held) > 1:
            self.locked.append((time.time(), stage.name, [int(path.parent.name) for path in held]))

    def seen(self) -> dict[str, str]:
        """Return file -> digest of the bytes seen."""
        return {path: f"{size} bytes, {checksum:08x}" for path, (size, checksum) in self.files.items()}

    def now(self) -> dict[str, str]:
        """Return file -> digest of the same number of bytes now, for files that still exist."""
        found = {}
        for path, (size, _) in self.files.items():
            with suppress(FileNotFoundError):
                data = Path(path).read_bytes()[:size]
                found[path] = f"{len(data)} bytes, {zlib.crc32(data):08x}"
        return found
