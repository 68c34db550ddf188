"""The process of one case of `gpu.py`."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from gpu_exact import LENIENT, again, exact
from gpu_facts import facts
from gpu_report import Result
from gpu_rivals import rivals
from gpu_scale import Scale, begin
from gpu_speed import compare, speed

from gpas_cli.train.device import make_deterministic, use_expandable_segments


def measured(case: str, folder: Path, *, shrink: bool, seconds: float = math.inf) -> Iterator[Result]:
    """Yield the results of a case. folder: where the cases leave what later ones read. seconds: until its deadline."""
    begin(seconds)
    scale = Scale(shrink)
    # As `worker.job` does, and before torch._inductor is imported.
    make_deterministic(1 if shrink else os.cpu_count() or 1)
    use_expandable_segments()
    if (folder / LENIENT).exists():
        torch.use_deterministic_algorithms(True, warn_only=True)
    if case == "exact":
        yield from exact(scale, folder)
    elif case == "again":
        yield from again(scale, folder)
    else:
        part = {"facts": facts, "speed": speed, "compare": compare, "rivals": rivals}[case]
        # Speeds of tiny networks say nothing about the goals.
        yield from (replace(one, goal="", met=None) if shrink else one for one in part(scale))
