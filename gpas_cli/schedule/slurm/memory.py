"""Evidence that memory ran out on a node: SIGKILL alone may have other causes.

1. the kernel's count of processes that its out-of-memory killer has ended in this task's control group
2. the memory of this task's jobs at the last check, compared with SLURM's limit for the task's node
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

NEAR_LIMIT = 0.9  # share of the memory limit at which jobs count as having filled it: checks are seconds apart
GROUPS = Path("/proc/self/cgroup")
MOUNT = Path("/sys/fs/cgroup")


class MemoryWatch:
    """The memory use of this task's jobs. `environ` is the environment that SLURM sets for a task."""

    def __init__(self, environ: Mapping[str, str] = os.environ):
        self.limit = limit(environ)
        self.reset()

    def reset(self) -> None:
        """Discard earlier measurements. Call it before jobs start."""
        self._used = 0
        self._kills = kernel_kills()

    def measure(self, pids: Iterable[int]) -> None:
        """Record the memory that the processes `pids` and their descendants use now."""
        self._used = sum(resident(pid) for pid in pids) or self._used

    def evidence(self) -> str:
        """Return why jobs that were killed since `reset` count as out of memory, "" without evidence."""
        if kernel_kills() > self._kills:
            return "the kernel's out-of-memory killer ended a process of the job"
        if self.limit and self._used >= NEAR_LIMIT * self.limit:
            return f"it used {self._used >> 20} MiB of {self.limit >> 20} MiB"
        return ""


def limit(environ: Mapping[str, str]) -> int:
    """Return the memory limit that SLURM sets for the job on this node in bytes, 0 if there is none."""
    node = _number(environ.get("SLURM_MEM_PER_NODE", ""))
    cpus = _number(environ.get("SLURM_CPUS_ON_NODE", ""))
    return (node or _number(environ.get("SLURM_MEM_PER_CPU", "")) * cpus) << 20


def resident(pid: int) -> int:
    """Return the resident memory of a process and its descendants in bytes, 0 if the process has ended."""
    found = 0
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):
                found += each.memory_info().rss
    return found


def kernel_kills(groups: Path = GROUPS, mount: Path = MOUNT) -> int:
    """Return how many processes of this control group the kernel's out-of-memory killer has ended, 0 if unknown."""
    with suppress(OSError):
        for line in groups.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            place = mount / controllers / path.lstrip("/")
            if not controllers or "memory" in controllers.split(","):
                name = "memory.oom_control" if controllers else "memory.events"
                with suppress(OSError):
                    words = (place / name).read_text().split()
                    return _number(dict(zip(words[::2], words[1::2], strict=False)).get("oom_kill", ""))
    return 0


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0
