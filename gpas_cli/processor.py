"""The processor's name, the cores that this process may use, and the GPUs whose memory and peak speed are known."""

import os
import platform
from pathlib import Path
from typing import NamedTuple


def usable_cores() -> tuple[int, ...]:
    """Return the numbers of the cores that this process may run on, at least one.

    Its CPU affinity, which SLURM and taskset restrict; all cores on systems without affinity (macOS, where psutil does
    not report one either).
    """
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def cpu_model(path: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's name as the kernel reports it, "" if it reports none."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.lower().startswith(("model name", "hardware")))
    return next(names, platform.processor())


class Gpu(NamedTuple):
    """The memory of a GPU in GB, of several versions the largest; its dense peak in TFLOP/s in bfloat16 with float32
    sums, in TensorFloat-32, and in float32 without tensor cores."""

    memory: int
    bf16: float
    tf32: float
    fp32: float


# From NVIDIA's data sheets, without sparsity, by CUDA's name of the device. The first name in a device's name counts,
# so longer names come first.
GPUS = {
    "B200": Gpu(180, 2250.0, 1125.0, 80.0),
    "GH200": Gpu(96, 989.5, 494.7, 67.0),
    "H200": Gpu(141, 989.5, 494.7, 67.0),
    "H100 PCIe": Gpu(80, 756.0, 378.0, 51.0),
    "H100 NVL": Gpu(94, 835.5, 417.7, 60.0),
    "H100": Gpu(80, 989.5, 494.7, 67.0),
    "H800": Gpu(80, 989.5, 494.7, 67.0),
    "H20": Gpu(96, 148.0, 74.0, 44.0),
    "A100": Gpu(80, 312.0, 156.0, 19.5),
    "A800": Gpu(80, 312.0, 156.0, 19.5),
    "L40S": Gpu(48, 362.0, 183.0, 91.6),
    "L40": Gpu(48, 181.0, 90.5, 90.5),
    "L4": Gpu(24, 121.0, 60.0, 30.3),
    "A40": Gpu(48, 149.7, 74.8, 37.4),
    "A10G": Gpu(24, 70.0, 35.0, 35.0),
    "A10": Gpu(24, 125.0, 62.5, 31.2),
    "RTX A6000": Gpu(48, 154.8, 77.4, 38.7),
    "RTX 4090": Gpu(24, 165.2, 82.6, 82.6),
    "RTX 3090": Gpu(24, 71.0, 35.6, 35.6),
}


def peak_flops(name: str, precision: str, *, tf32: bool = False) -> float | None:
    """Return the peak FLOP/s of a device called `name` in a precision, None if unknown.

    `tf32`: float32 products may use tensor cores. MIG slices and laptop chips are unknown: they are slower than the
    device whose name they contain.
    """
    words = f" {name} ".replace("-", " ")
    found = next((gpu for known, gpu in GPUS.items() if f" {known} " in words), None)
    if found is None or any(lesser in words for lesser in (" MIG ", " Laptop ", " D ")):
        return None
    return 1e12 * (found.bf16 if precision != "fp32" else found.tf32 if tf32 else found.fp32)
