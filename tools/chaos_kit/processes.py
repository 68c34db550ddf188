"""The processes of a project and their lifetimes, sampled from /proc several times a second."""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

JOB = "gpas_cli.worker.job"
ELEMENT = "gpas_cli.schedule.slurm.supervisor"


@dataclass(frozen=True)
class Process:
    """A live process. `start` is its start time in clock ticks; it distinguishes processes that reuse an id."""

    pid: int
    start: int
    parent: int
    words: tuple[str, ...]

    def lives(self) -> bool:
        found = look_at(self.pid)
        return found is not None and found.start == self.start

    def send(self, number: int) -> bool:
        """Send the process a signal; return False if it is gone."""
        if not self.lives():
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def kill(self) -> bool:
        return self.send(signal.SIGKILL)

    @property
    def directory(self) -> str:
        """Return the attempt directory of a job's process, or "" for any other process."""
        for module, word in zip(self.words, self.words[1:], strict=False):
            if module == JOB:
                return word
        return ""


@dataclass
class Life:
    """The observed lifetime of an attempt's process: alive at least from `first` to `last` (unix time)."""

    process: Process
    key: str
    attempt: int
    first: float
    last: float


@dataclass
class Census:
    """Everything that `sample` has seen of the processes below one folder."""

    folder: Path
    lives: dict[tuple[int, int], Life] = field(default_factory=dict)
    commands: dict[tuple[int, int], tuple[float, float]] = field(default_factory=dict)
    times: list[float] = field(default_factory=list)  # start times of the samples

    def sample(self) -> None:
        """Look at every process once."""
        self.times.append(time.time())
        for process in all_processes():
            identity = (process.pid, process.start)
            if process.directory.startswith(f"{self.folder}/"):
                self._see(identity, process, time.time())
            elif is_command(process) and in_folder(process, self.folder):
                first, _ = self.commands.get(identity, (time.time(), 0.0))
                self.commands[identity] = (first, time.time())

    def _see(self, identity: tuple[int, int], process: Process, now: float) -> None:
        if identity in self.lives:
            self.lives[identity].last = now
        else:
            path = Path(process.directory)
            self.lives[identity] = Life(process, path.parent.name, int(path.name), now, now)


def all_processes() -> Iterator[Process]:
    """Return every process of this machine with a command line; kernel threads and zombies have none."""
    for path in Path("/proc").iterdir():
        if path.name.isdecimal() and (found := look_at(int(path.name))) is not None:
            yield found


def look_at(pid: int) -> Process | None:
    """Return the process with that id, or None if there is none or it is a zombie."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    if len(words) < 2 or stat[0] in "ZX":
        return None
    return Process(pid, int(stat[19]), int(stat[1]), tuple(words[:-1]))


def is_command(process: Process) -> bool:
    """Return whether the process is a `gpas` command that starts or follows jobs."""
    words = process.words
    return "gpas_cli" in words and any(word in words for word in ("run", "retry"))


def in_folder(process: Process, folder: Path) -> bool:
    """Return whether the process runs in the folder or names something in it."""
    try:
        where = str(Path(f"/proc/{process.pid}/cwd").readlink())
    except OSError:
        where = ""
    inside = f"{folder}/"
    return f"{where}/".startswith(inside) or any(inside in f"{word}/" for word in process.words)


def of_folder(folder: Path) -> list[Process]:
    """Return the gpas processes in the folder and all that name something in it, except this one and its ancestors."""
    spared = set[int]()
    pid = os.getpid()
    while pid and (found := look_at(pid)) is not None:
        spared.add(pid)
        pid = found.parent
    others = (process for process in all_processes() if process.pid not in spared)
    return [process for process in others if in_folder(process, folder) and _is_ours(process, folder)]


def _is_ours(process: Process, folder: Path) -> bool:
    """Return whether it belongs to gpas or works on files in the folder, unlike a shell that was opened in it."""
    return any(word.startswith("gpas_cli") or f"{folder}/" in word for word in process.words)


def jobs_of(folder: Path) -> list[Process]:
    """Return the processes of a project's jobs by attempt directory, the top process of each first."""
    found = [process for process in all_processes() if process.directory.startswith(f"{folder}/")]
    return sorted(found, key=lambda process: (process.directory, process.start, process.pid))
