"""The accelerators and cores that jobs may use: those of this machine, or of the nodes behind a scheduler."""

from __future__ import annotations

import math
import os
import shutil
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpas_cli.errors import GpasError
from gpas_cli.processor import usable_cores
from gpas_cli.spec.run import Resources
from gpas_cli.words import count, listed

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")


@dataclass(frozen=True)
class GpuKind:
    """A kind of GPU; `memory` in bytes."""

    name: str
    memory: int


@dataclass(frozen=True)
class Machine:
    """The devices available to jobs: `gpus` as in CUDA_VISIBLE_DEVICES, and `cores` by number."""

    gpus: tuple[str, ...]
    cores: tuple[int, ...]

    @property
    def slots(self) -> int:
        """The number of smallest jobs that can run at once: GPUs, or cores without a GPU."""
        return len(self.gpus) or len(self.cores)

    def device(self, resources: Resources) -> str:
        """Return the type of device that a job computes on: cuda or cpu."""
        return "cuda" if self.gpus else "cpu"

    def needs(self, resources: Resources) -> int:
        """Return the number of slots that a job takes."""
        return max(1, resources.gpus) if self.gpus else self.threads(resources)

    def threads(self, resources: Resources) -> int:
        """Return the threads of a job over all its processes: as many as it requests, at most the number of cores."""
        return min(max(resources.cpus, resources.processes), len(self.cores))

    def check(self, resources: Resources, who: str) -> str:
        """Return why a job can never run here, "" if it can."""
        asked = count(max(1, resources.gpus), "GPU")
        if self.gpus and resources.processes > max(1, resources.gpus):
            return f"{who} asks for {resources.processes} ranks on {asked}: each needs its own"
        return f"{who} asks for {asked}, but {self.seen()}" if self.too_few(resources) else ""

    def too_few(self, resources: Resources) -> bool:
        """Return whether a job asks for more GPUs than there are."""
        return resources.gpus > len(self.gpus)

    def gpu_kind(self) -> GpuKind | None:
        """Return the kind of the first GPU; None if there is none, or only a part of one (MIG)."""
        return None if not self.gpus or self.gpus[0].startswith("MIG") else _queried_kind(self.gpus[0])

    def seen(self) -> str:
        """Return how many GPUs can be seen: "none can be seen on HOST"."""
        return f"{len(self.gpus) or 'none'} can be seen on {socket.gethostname()}"


class Cluster(Machine):
    """The nodes behind a scheduler. Each job gets what it requests; the number of concurrent jobs is unknown."""

    def __init__(self) -> None:
        super().__init__(gpus=(), cores=())

    def device(self, resources: Resources) -> str:
        return "cuda" if resources.gpus else "cpu"

    def needs(self, resources: Resources) -> int:
        return resources.gpus or resources.threads

    def check(self, resources: Resources, who: str) -> str:
        return ""

    def too_few(self, resources: Resources) -> bool:
        return False

    def gpu_kind(self) -> GpuKind | None:
        return None

    def threads(self, resources: Resources) -> int:
        return resources.threads


def machine(environ: Mapping[str, str] = os.environ) -> Machine:
    """Return the accelerators and cores that this process may use. Queries nvidia-smi, not torch."""
    cores = usable_cores()
    return Machine(gpus=visible_gpus(environ), cores=cores[: cpu_quota(len(cores))])


def visible_gpus(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the devices of CUDA_VISIBLE_DEVICES, or the indices of those that nvidia-smi lists."""
    mask = environ.get("CUDA_VISIBLE_DEVICES")
    installed = _installed_gpus()
    if mask is None:
        return tuple(str(i) for i in range(installed))
    named: list[str] = []
    for device in (part.strip() for part in mask.split(",")):
        # CUDA ignores everything from the first nonexistent device on: "0,-1,1" is one device.
        if not device or device.startswith("-") or (device.isdigit() and int(device) >= installed):
            break
        if device not in named:
            named.append(device)
    return tuple(named) if installed else ()


def cpu_quota(cores: int, path: Path = CGROUP_QUOTA) -> int:
    """Return `cores`, or fewer if a container's CPU quota is lower; at least 1."""
    try:
        quota, period = path.read_text().split()
        return max(1, min(cores, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):
        return cores


def require(machine: Machine, wanted: Mapping[str, Resources]) -> None:
    """Raise GpasError with every job (id -> resources) that can never run on `machine`."""
    reasons = [reason for who, resources in wanted.items() if (reason := machine.check(resources, who))]
    if reasons:
        remedy = "lower resources.gpus or resources.ranks, or run where there are as many"
        raise GpasError("\n".join([listed(reasons, 5, "\n"), remedy]))


def _installed_gpus() -> int:
    """Return the number of GPUs that nvidia-smi lists, without MIG slices. Without nvidia-smi, count device files."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return sum(path.name.removeprefix("nvidia").isdigit() for path in Path("/dev").glob("nvidia[0-9]*"))
    try:
        answer = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.startswith("GPU ") for line in answer.splitlines())


def _queried_kind(gpu: str) -> GpuKind | None:
    """Return the kind of a GPU as nvidia-smi reports it, None if it does not."""
    command = ("nvidia-smi", f"--id={gpu}", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
        name, _, mebibytes = answer.strip().partition("\n")[0].rpartition(",")
        return GpuKind(name.strip(), int(mebibytes) * 2**20)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
