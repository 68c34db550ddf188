"""The processor's name."""

from __future__ import annotations

import platform
from pathlib import Path


def cpu_model(path: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's name as the kernel gives it, "" where it gives none."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.lower().startswith(("model name", "hardware")))
    return next(names, platform.processor())
