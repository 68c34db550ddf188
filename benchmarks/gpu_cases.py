"""The process of one case of `gpu.py`."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from gpu_exact import LENIENT, again, exact
from gpu_report import Result
from gpu_scale import Scale
from gpu_speed import speed

from gpas_cli.train.precision import choose_device, make_deterministic, use_expandable_segments


def measured(case: str, folder: Path, *, shrink: bool) -> Iterator[Result]:
    """Yield the results of a case. `folder`: where the cases leave what later ones read."""
    scale = Scale(shrink)
    # As `worker.job` does, and before torch._inductor is imported.
    make_deterministic(1 if shrink else os.cpu_count() or 1)
    use_expandable_segments()
    if (folder / LENIENT).exists():
        torch.use_deterministic_algorithms(True, warn_only=True)
    if case == "exact":
        yield from _machine()
        yield from exact(scale, folder)
    elif case == "again":
        yield from again(scale, folder)
    else:
        # Speeds of tiny networks say nothing about the goals.
        yield from (replace(one, goal="", met=None) if shrink else one for one in speed(scale, case))


def _machine() -> Iterator[Result]:
    name = torch.cuda.get_device_name() if choose_device().type == "cuda" else f"CPU, {platform.machine()}"
    versions = f"torch {torch.__version__}, CUDA {torch.version.cuda}, Python {platform.python_version()}"
    yield Result("exact", "device", name)
    yield Result("exact", "versions", versions)
