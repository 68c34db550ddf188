"""The processor's name, and the cores that this process may use."""

import os
import platform
from pathlib import Path


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
