"""The accelerators and cores that jobs may use: on this machine, on the nodes behind a scheduler, or named for a plan.

`gpas plan --gpu H100:8` plans for GPUs whether or not this machine has them. Their peaks come from the data sheets
(`processor`); the share that training reaches (MFU) is assumed.
"""

from __future__ import annotations

import math
import os
import shutil
import socket
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, Protocol, final

from gpas_cli.errors import GpasError, nearest
from gpas_cli.processor import GPUS, peak_flops, usable_cores
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.cost import parameters
from gpas_cli.spec.run import Resources
from gpas_cli.structure import Frozen
from gpas_cli.words import count, listed

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")
# Measured on one H200 (benchmarks/RESULTS.md): 34 and 44 % of 71M and 350M on padded rows, 52 % of 1B on full ones.
# Networks of 100,000 parameters are assumed to reach 5 %, networks above 1.3B no more than 52 %. Parameters -> share:
_MFU = {1e5: 0.05, 71e6: 0.34, 0.37e9: 0.44, 1.3e9: 0.52}
_MFU_SOURCE = "by size, from the 34, 44 and 52 % of 71M, 350M and 1B on one H200"


class GpuKind(Frozen):
    """A kind of GPU; `memory` in bytes."""

    name: str
    memory: int


class Machine(Protocol):
    """Where jobs run: `ThisMachine`, the `Cluster` behind a scheduler, or `NamedGpus`, for which a plan is made."""

    here: ClassVar[bool] = False  # whether jobs run on this machine, with the texts that it has

    @property
    def slots(self) -> int:
        """The number of smallest jobs that can run at once: GPUs, or cores without a GPU. 0 if it is unknown."""
        return 0

    def device(self, resources: Resources) -> str:
        """Return the type of device that a job computes on: cuda or cpu."""

    def needs(self, resources: Resources) -> int:
        """Return the number of slots that a job takes."""

    def check(self, resources: Resources, who: str) -> str:
        """Return why a job can never run here, "" if it can."""
        return ""

    def gpu_kind(self) -> GpuKind | None:
        """Return the kind of GPU; None if there is none or it is unknown."""
        return None

    def assumed_speed(self) -> NamedGpus | None:
        """Return the GPUs whose speed is assumed for every job; None if speeds that were measured apply."""
        return None


@final
class ThisMachine(Frozen, Machine):
    """The devices of this machine: `gpus` as in CUDA_VISIBLE_DEVICES, and `cores` by number."""

    gpus: tuple[str, ...]
    cores: tuple[int, ...]
    here: ClassVar[bool] = True

    @property
    def slots(self) -> int:
        return len(self.gpus) or len(self.cores)

    def device(self, resources: Resources) -> str:
        return "cuda" if self.gpus else "cpu"

    def needs(self, resources: Resources) -> int:
        return max(1, resources.gpus) if self.gpus else self.threads(resources)

    def threads(self, resources: Resources) -> int:
        """Return the threads of a job over all its processes: as many as it requests, at most the number of cores."""
        return min(max(resources.cpus, resources.processes), len(self.cores))

    def check(self, resources: Resources, who: str) -> str:
        asked = count(max(1, resources.gpus), "GPU")
        if self.gpus and resources.processes > max(1, resources.gpus):
            return f"{who} asks for {resources.processes} ranks on {asked}: each needs its own"
        seen = f"{len(self.gpus) or 'none'} can be seen on {socket.gethostname()}"
        return f"{who} asks for {asked}, but {seen}" if resources.gpus > len(self.gpus) else ""

    def gpu_kind(self) -> GpuKind | None:
        """Return the kind of the first GPU; None if there is none, or only a part of one (MIG)."""
        return None if not self.gpus or self.gpus[0].startswith("MIG") else _queried_kind(self.gpus[0])


@final
class Cluster(Machine):
    """The nodes behind a scheduler. Each job gets what it requests; the number of concurrent jobs is unknown."""

    def device(self, resources: Resources) -> str:
        return "cuda" if resources.gpus else "cpu"

    def needs(self, resources: Resources) -> int:
        return resources.gpus or resources.threads


@final
class NamedGpus(Frozen, Machine):
    """A machine with `number` GPUs called `name`. If `number` is 0, each job gets as many as it requests.

    `mfu`: the assumed share of the peak that training reaches; None assumes one by size (`assumed_mfu`).
    """

    name: str
    number: int
    mfu: float | None

    @property
    def slots(self) -> int:
        return self.number

    def device(self, resources: Resources) -> str:
        return "cuda"

    def needs(self, resources: Resources) -> int:
        return max(1, resources.gpus)

    def check(self, resources: Resources, who: str) -> str:
        too_few = self.number and resources.gpus > self.number
        return f"{who} asks for {resources.gpus} GPUs, but --gpu names {self.number}" if too_few else ""

    def gpu_kind(self) -> GpuKind:
        return GpuKind(self.name, GPUS[self.name].memory * 10**9)

    def assumed_speed(self) -> NamedGpus:
        return self

    def flops(self, cell: Cell) -> float:
        """Return the FLOP/s of one GPU that trains `cell`."""
        peak = peak_flops(self.name, cell.precision)
        assert peak is not None
        return self.share(parameters(cell)) * peak

    def share(self, parameters: int) -> float:
        """Return the share of the peak that a training of a network with this many parameters is assumed to reach."""
        return self.mfu or _assumed_mfu(parameters)

    def basis(self, cells: Iterable[Cell]) -> str:
        """Return the assumptions as a sentence."""
        every = list(cells)
        shares = sorted({self.share(parameters(cell)) for cell in every})
        reached = " to ".join(f"{100 * share:g}" for share in dict.fromkeys((shares[0], shares[-1])))
        source = "" if self.mfu else f" ({_MFU_SOURCE})"
        peaks = [(peak_flops(self.name, one) or 0, one) for one in sorted({cell.precision for cell in every})]
        each = " and ".join(f"{peak / 1e12:g} TFLOP/s in {precision}" for peak, precision in peaks)
        return f"assumed, not measured: {reached} % of the peak of one {self.name}{source}, {each}; --mfu changes it"


def machine(environ: Mapping[str, str] = os.environ) -> ThisMachine:
    """Return the accelerators and cores that this process may use. Queries nvidia-smi, not torch."""
    cores = usable_cores()
    return ThisMachine(gpus=_visible_gpus(environ), cores=cores[: _cpu_quota(len(cores))])


def _visible_gpus(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the devices of CUDA_VISIBLE_DEVICES, or the indices of the GPUs that nvidia-smi lists."""
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


def _cpu_quota(cores: int, path: Path = _CGROUP_QUOTA) -> int:
    """Return `cores`, or fewer if a container's CPU quota is lower; at least 1."""
    with suppress(OSError, ValueError):
        quota, period = path.read_text().split()
        return max(1, min(cores, math.ceil(int(quota) / int(period))))
    return cores


def require(machine: Machine, wanted: Mapping[str, Resources]) -> None:
    """Raise GpasError with every job (id -> resources) that can never run on `machine`."""
    reasons = [reason for who, resources in wanted.items() if (reason := machine.check(resources, who))]
    if reasons:
        remedy = "lower resources.gpus or resources.ranks, or run where there are as many"
        raise GpasError("\n".join([listed(reasons, 5, "\n"), remedy]))


def _installed_gpus() -> int:
    """Return the number of GPUs that nvidia-smi lists, without MIG slices. Without nvidia-smi, count device files."""
    if shutil.which("nvidia-smi") is None:
        return sum(path.name.removeprefix("nvidia").isdigit() for path in Path("/dev").glob("nvidia[0-9]*"))
    return sum(line.startswith("GPU ") for line in _nvidia_smi("-L").splitlines())


def _queried_kind(gpu: str) -> GpuKind | None:
    """Return the kind of a GPU as nvidia-smi reports it, None if it does not."""
    answer = _nvidia_smi(f"--id={gpu}", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
    name, _, mebibytes = answer.strip().partition("\n")[0].rpartition(",")
    return GpuKind(name.strip(), int(mebibytes) * 2**20) if mebibytes.strip().isdigit() else None


def _nvidia_smi(*words: str) -> str:
    """Return the output of nvidia-smi, "" if it fails."""
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(("nvidia-smi", *words), capture_output=True, text=True, timeout=20, check=True).stdout
    return ""


def _assumed_mfu(parameters: int) -> float:
    """Return the share of the peak that training is assumed to reach, rounded to whole per cent."""
    for (small, low), (large, high) in pairwise(_MFU.items()):
        if parameters <= large:
            return round(low + max(0.0, math.log(parameters / small) / math.log(large / small)) * (high - low), 2)
    return high


def named_gpus(words: str, mfu: float | None = None) -> NamedGpus:
    """Return the GPUs of `NAME` or `NAME:NUMBER`, in any case and spacing. Raises GpasError for an unknown name."""
    name, colon, number = words.partition(":")
    known = {_plain(known): known for known in GPUS}
    if _plain(name) not in known:
        hint = nearest(name, GPUS)
        raise GpasError(f"--gpu: unknown GPU '{name}'; {hint}")
    if colon and (not number.isascii() or not number.isdigit() or not 1 <= int(number[:7]) <= 100_000):
        raise GpasError(f"--gpu: '{number}' is not a number of GPUs; write for example {known[_plain(name)]}:8")
    return NamedGpus(known[_plain(name)], int(number) if colon else 0, mfu)


def _plain(name: str) -> str:
    return "".join(name.lower().split()).replace("-", "").removeprefix("nvidia").removeprefix("rtx")
