"""The slots of this machine: its accelerators, or its cores if it has none. Shared by every `gpas run` on `runs`.

A slot is a lock file `runs/.slots/<host>/<device>.lock`. The job inherits the descriptor, so that a job which outlives
the process that started it still occupies its slot.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpas_cli.plan.machine import THREAD_VARIABLES, Machine
from gpas_cli.spec.run import Resources
from gpas_cli.state import locks


@dataclass(frozen=True)
class Lease:
    """Slots taken for one job. The open descriptors `fds` hold them; `variables` go into the job's environment."""

    fds: tuple[int, ...]
    devices: tuple[str, ...]
    threads: int
    variables: Mapping[str, str]

    def close(self) -> None:
        """Close this process's descriptors; the slots are released when the job's copies close too."""
        for fd in self.fds:
            with suppress(OSError):
                os.close(fd)


class Slots:
    """The slots of one machine, from which jobs take theirs."""

    def __init__(self, runs: Path, machine: Machine):
        self.machine = machine
        self._folder = runs / ".slots" / socket.gethostname()
        self._folder.mkdir(parents=True, exist_ok=True)

    def take(self, resources: Resources, environ: Mapping[str, str] = os.environ) -> Lease | None:
        """Return the slots that a job needs, None if too few are free. Raises GpasError if locks do not work."""
        wanted = self.machine.needs(resources)
        taken = dict[str, int]()
        with locks.locked(self._folder / ".lock"):  # otherwise two processes could each hold half of what both need
            for device in self._devices():
                fd = locks.try_hold(self._path(device))
                if fd is not None:
                    taken[device] = fd
                if len(taken) == wanted:
                    return self._lease(taken, resources)
            for fd in taken.values():
                os.close(fd)
        return None

    def free(self) -> int:
        """Return how many slots are free."""
        return sum(locks.probe(self._path(device)) is not locks.Lock.HELD for device in self._devices())

    def _devices(self) -> list[str]:
        return [f"gpu-{gpu}" for gpu in self.machine.gpus] or [f"cpu-{core}" for core in self.machine.cores]

    def _path(self, device: str) -> Path:
        return self._folder / f"{re.sub(r'[^A-Za-z0-9-]', '_', device)}.lock"

    def _lease(self, taken: Mapping[str, int], resources: Resources) -> Lease:
        gpus = [device.removeprefix("gpu-") for device in taken] if self.machine.gpus else []
        threads = self.machine.threads(resources)
        variables = dict.fromkeys(THREAD_VARIABLES, str(threads)) | {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}
        return Lease(fds=tuple(taken.values()), devices=tuple(taken), threads=threads, variables=variables)
