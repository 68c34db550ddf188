"""The slots of this machine: its accelerators, or its cores where it has none. Shared by every `gpas run` on `runs`.

A slot is a lock file `runs/.slots/<host>/<device>.lock`. The job inherits the descriptor, so that a job which outlives
the process that started it still occupies its slot.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpas_cli.errors import GpasError
from gpas_cli.launch import locks
from gpas_cli.processor import usable_cores
from gpas_cli.spec.run import Resources
from gpas_cli.words import count

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")


@dataclass(frozen=True)
class Machine:
    """What jobs may use here: `gpus` as CUDA_VISIBLE_DEVICES names them, and the numbers of the cores."""

    gpus: tuple[str, ...]
    cores: tuple[int, ...]

    @property
    def slots(self) -> int:
        """How many of the smallest jobs run at once."""
        return len(self.gpus) or len(self.cores)

    def device(self, resources: Resources) -> str:
        """What a job computes on: cuda or cpu."""
        return "cuda" if self.gpus else "cpu"

    def needs(self, resources: Resources) -> int:
        """How many slots a job takes."""
        return max(1, resources.gpus) if self.gpus else self.threads(resources)

    def threads(self, resources: Resources) -> int:
        """Threads of a job, over all its processes: those it asks for, as far as there are cores."""
        return min(max(resources.cpus, resources.processes), len(self.cores))

    def check(self, resources: Resources, who: str) -> str:
        """Why a job can never run here, "" when it can."""
        asked = count(max(1, resources.gpus), "GPU")
        if self.gpus and resources.processes > max(1, resources.gpus):
            return f"{who} asks for {resources.processes} ranks on {asked}: each needs its own"
        if resources.gpus <= len(self.gpus):
            return ""
        have = f"{len(self.gpus)} can be seen" if self.gpus else "none can be seen"
        return f"{who} asks for {asked}, and {have} on {socket.gethostname()}"


class Cluster(Machine):
    """Stands for the nodes behind a scheduler: each job has what it asks for, and how many run at once nobody knows."""

    def __init__(self) -> None:
        super().__init__(gpus=(), cores=())

    def device(self, resources: Resources) -> str:
        return "cuda" if resources.gpus else "cpu"

    def needs(self, resources: Resources) -> int:
        return resources.gpus or resources.threads

    def check(self, resources: Resources, who: str) -> str:
        return ""

    def threads(self, resources: Resources) -> int:
        return resources.threads


@dataclass(frozen=True)
class Lease:
    """Slots taken for one job. `fds` keep them; `variables` go into the job's environment."""

    fds: tuple[int, ...]
    devices: tuple[str, ...]
    threads: int
    variables: Mapping[str, str]

    def close(self) -> None:
        """Let go of this process's copies: the slots are free when the job's copies are closed too."""
        for fd in self.fds:
            with suppress(OSError):
                os.close(fd)


def machine(environ: Mapping[str, str] = os.environ) -> Machine:
    """The accelerators and cores that this process may use. Asks nvidia-smi, never torch."""
    cores = usable_cores()
    return Machine(gpus=visible_gpus(environ), cores=cores[: cpu_quota(len(cores))])


def visible_gpus(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The devices of CUDA_VISIBLE_DEVICES, else those nvidia-smi counts, as CUDA_VISIBLE_DEVICES would name them."""
    mask = environ.get("CUDA_VISIBLE_DEVICES")
    installed = _installed_gpus()
    if mask is None:
        return tuple(str(i) for i in range(installed))
    named: list[str] = []
    for word in (part.strip() for part in mask.split(",")):
        # CUDA stops at the first device that does not exist: "0,-1,1" shows one.
        if not word or word.startswith("-") or (word.isdigit() and int(word) >= installed):
            break
        if word not in named:
            named.append(word)
    return tuple(named) if installed else ()


def cpu_quota(cores: int, path: Path = CGROUP_QUOTA) -> int:
    """`cores`, or fewer where a container's quota gives less time than that many cores have; at least 1."""
    try:
        quota, period = path.read_text().split()
        return max(1, min(cores, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):
        return cores


class Slots:
    """Takes slots of one machine for jobs."""

    def __init__(self, runs: Path, machine: Machine):
        self.machine = machine
        self._folder = runs / ".slots" / socket.gethostname()
        self._folder.mkdir(parents=True, exist_ok=True)

    def take(self, resources: Resources, environ: Mapping[str, str] = os.environ) -> Lease | None:
        """The slots that a job needs, or None when too few are free. Raises GpasError where locks do not work."""
        wanted, taken = self.machine.needs(resources), dict[str, int]()
        with locks.locked(self._folder / ".lock"):  # or two takers could each hold half of what both need
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
        """How many slots nobody holds now."""
        return sum(locks.probe(self._path(device)) is not locks.Lock.HELD for device in self._devices())

    def _devices(self) -> list[str]:
        return [f"gpu-{gpu}" for gpu in self.machine.gpus] or [f"cpu-{core}" for core in self.machine.cores]

    def _path(self, device: str) -> Path:
        return self._folder / f"{re.sub(r'[^A-Za-z0-9-]', '_', device)}.lock"

    def _lease(self, taken: Mapping[str, int], resources: Resources) -> Lease:
        threads = self.machine.threads(resources)
        gpus = [device.removeprefix("gpu-") for device in taken] if self.machine.gpus else []
        variables = {name: str(threads) for name in THREAD_VARIABLES} | {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}
        return Lease(fds=tuple(taken.values()), devices=tuple(taken), threads=threads, variables=variables)


def require(machine: Machine, wanted: Mapping[str, Resources]) -> None:
    """Raise GpasError that names every job (id -> resources) which can never run on `machine`."""
    reasons = [reason for who, resources in wanted.items() if (reason := machine.check(resources, who))]
    if reasons:
        shown = reasons[:5] + ([f"and {len(reasons) - 5} more"] if len(reasons) > 5 else [])
        raise GpasError("\n".join([*shown, "lower resources.gpus or resources.ranks, or run where there are as many"]))


def _installed_gpus() -> int:
    """How many devices nvidia-smi lists, MIG slices apart; without it, how many the driver has made files for."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return sum(path.name.removeprefix("nvidia").isdigit() for path in Path("/dev").glob("nvidia[0-9]*"))
    try:
        listed = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.startswith("GPU ") for line in listed.splitlines())
