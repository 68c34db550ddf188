"""GPUs to plan for, whether or not this machine has them: `gpas plan --gpu H100:8`.

Peaks are those of the data sheets (`spec.cost.PEAK_TFLOPS`); the share that training reaches (MFU) is assumed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from gpas_cli.errors import GpasError, nearest
from gpas_cli.plan.machine import GpuKind, Machine
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.cost import parameters, peak_flops
from gpas_cli.spec.run import Resources

# MosaicML's published training benchmarks (llm-foundry; H100, bf16, rows of 512 tokens) reach 40, 43 and 46 % at 0.76,
# 1.3 and 2.7B parameters. Smaller networks follow the same slope; larger ones are assumed to reach no more.
MFU_AT_1B = 0.42
MFU_PER_DOUBLING = 0.035
MFU_RANGE = (0.05, 0.46)
MFU_SOURCE = "by size, from MosaicML's numbers for 0.76B to 2.7B on H100s"
# The memory of one device in GB, from NVIDIA's data sheets; of several versions, that of the largest.
MEMORY_GB: dict[str, int] = {
    "B200": 180, "GH200": 96, "H200": 141, "H100 PCIe": 80, "H100 NVL": 94, "H100": 80, "H800": 80, "H20": 96,
    "A100": 80, "A800": 80, "L40S": 48, "L40": 48, "L4": 24, "A40": 48, "A10G": 24, "A10": 24, "RTX A6000": 48,
    "RTX 4090": 24, "RTX 3090": 24,
}  # fmt: skip


@dataclass(frozen=True)
class NamedGpus(Machine):
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

    def threads(self, resources: Resources) -> int:
        return resources.threads

    def check(self, resources: Resources, who: str) -> str:
        return f"{who} asks for {resources.gpus} GPUs, but {self.seen()}" if self.too_few(resources) else ""

    def too_few(self, resources: Resources) -> bool:
        return bool(self.number) and resources.gpus > self.number

    def seen(self) -> str:
        return f"--gpu names {self.number}"

    def gpu_kind(self) -> GpuKind:
        return GpuKind(self.name, MEMORY_GB[self.name] * 10**9)

    def share(self, parameters: int) -> float:
        """Return the share of the peak that a training of a network with this many parameters is assumed to reach."""
        return self.mfu or assumed_mfu(parameters)

    def flops(self, cell: Cell) -> float:
        """Return the assumed FLOP/s of one device that trains `cell`."""
        peak = peak_flops(self.name, cell.precision)
        assert peak is not None
        return self.share(parameters(cell)) * peak

    def basis(self, cells: Iterable[Cell]) -> str:
        """Return the assumptions of the estimate as a sentence."""
        every = list(cells)
        shares = sorted({self.share(parameters(cell)) for cell in every})
        reached = " to ".join(f"{100 * share:g}" for share in dict.fromkeys((shares[0], shares[-1])))
        source = "" if self.mfu else f" ({MFU_SOURCE})"
        peaks = self.peaks(sorted({cell.precision for cell in every}))
        return f"assumed, not measured: {reached} % of the peak of one {self.name}{source}, {peaks}; --mfu changes it"

    def peaks(self, precisions: Iterable[str]) -> str:
        """Return the peaks of one device in words."""
        peaks = [(peak_flops(self.name, precision) or 0, precision) for precision in precisions]
        return " and ".join(f"{peak / 1e12:g} TFLOP/s in {precision}" for peak, precision in peaks)


def assumed_mfu(parameters: int) -> float:
    """Return the share of the peak that training is assumed to reach, rounded to whole per cent."""
    low, high = MFU_RANGE
    return round(min(high, max(low, MFU_AT_1B + MFU_PER_DOUBLING * math.log2(parameters / 1e9))), 2)


def named_gpus(words: str, mfu: float | None = None) -> NamedGpus:
    """Return the GPUs of `NAME` or `NAME:NUMBER`, in any case and spacing. Raises GpasError for an unknown name."""
    name, colon, number = words.partition(":")
    known = {_plain(known): known for known in MEMORY_GB}
    if _plain(name) not in known:
        hint = nearest(name, MEMORY_GB)
        raise GpasError(f"--gpu: unknown GPU '{name}'; {hint}")
    if colon and (not number.isascii() or not number.isdigit() or not 1 <= int(number[:7]) <= 100_000):
        raise GpasError(f"--gpu: '{number}' is not a number of GPUs; write for example {known[_plain(name)]}:8")
    return NamedGpus((), (), known[_plain(name)], int(number) if colon else 0, mfu)


def _plain(name: str) -> str:
    return "".join(name.lower().split()).replace("-", "").removeprefix("nvidia").removeprefix("rtx")
