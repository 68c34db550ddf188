"""Updates on made-up text, for measuring: the trainer itself, without data, checkpoints or events."""

from __future__ import annotations

import math
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from gpas_cli.data.loader import IGNORED, Batch
from gpas_cli.data.rows import Ints
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.flops import flops_per_token
from gpas_cli.spec.run import Resources
from gpas_cli.train.assemble import DEFAULT_RESOURCES, assemble, settle_matmul
from gpas_cli.train.loop import Loop

# Of C4's documents under T5's tokenizer about half fill a row of 256, and 76 % of all positions hold a token.
FULL_ROWS = 0.5
SHORTEST = 20
WARM_UP = 2  # updates not timed: the first compiles where layers are compiled, the second for another number of tokens


class SyntheticBatches:
    """Batches of random tokens, as `data.loader.Batches` would serve them: full rows, or with `padded` rows of which
    half are shorter, as C4's documents are."""

    def __init__(self, cell: Cell, *, padded: bool):
        self._shape, self._vocab, self._padded = (cell.optim.batch, cell.data.length), cell.model.size.vocab, padded

    def at(self, step: int) -> Batch:
        """The batch of update `step`."""
        generator = np.random.default_rng([17, step])
        inputs, targets = generator.integers(0, self._vocab, (2, *self._shape))
        if self._padded:
            targets[np.arange(self._shape[1]) >= self._lengths(generator)[:, None]] = IGNORED
        return Batch(inputs, targets)

    def _lengths(self, generator: np.random.Generator) -> Ints:
        """Full rows, then short ones: one of each part of the range, so that every batch is as full as the next."""
        rows, time = self._shape
        lengths = np.full(rows, time)
        short = rows - math.ceil(FULL_ROWS * rows)
        places, shortest = (np.arange(short) + generator.random(short)) / max(1, short), min(SHORTEST, time)
        lengths[rows - short :] = shortest + places * (time + 1 - shortest)
        return lengths


@dataclass(frozen=True)
class Speed:
    """What updates of a cell cost here. Seconds are the median's; tokens are real ones; memory in bytes, the device's
    where there is one, else the whole process's. `rows` of each update were computed."""

    seconds_per_step: float
    tokens_per_second: float
    flops_per_second: float
    peak_memory: int
    steps: int
    micro_batch: int
    gemm: str
    rows: int


def synthetic_loop(cell: Cell, resources: Resources = DEFAULT_RESOURCES, *, padded: bool) -> Loop:
    """A training of `cell` on made-up batches, at update 0."""
    return assemble(cell, SyntheticBatches(cell, padded=padded), resources)


def measure(
    cell: Cell,
    resources: Resources,
    *,
    seconds: float,
    cache: Path | None = None,
    rows: int = 0,
    tell: Callable[[str], None] = lambda message: None,
) -> Speed:
    """Do updates of `cell` for about so many seconds, after two that are not counted, and at least three.

    `rows`: so many rows of each update are computed, after one update that is not counted, and at least twice; the time
    of a whole update follows from theirs and from that of the optimizer. 0: all. The float32 product is the one that
    runs of this machine use which share `cache`. `tell` is told what is being done.
    """
    part = rows if 0 < rows < cell.optim.batch else cell.optim.batch
    whole = part == cell.optim.batch
    tell("building the network")
    shown = cell if whole else replace(cell, optim=replace(cell.optim, batch=part, mean_rows=0))
    loop = synthetic_loop(shown, resources, padded=cell.data.layout == "pad")
    settle_matmul(cell, loop, cache)
    for number in range(WARM_UP if whole else 1):
        tell(f"update {number + 1}, not counted")
        timed_update(loop)
    times, tokens = list[float](), loop.position.tokens
    while len(times) < (3 if whole else 2) or sum(times) < seconds:
        tell(f"update {len(times) + 1}" + (f", the last took {times[-1]:.2g} s" if times else ""))
        times.append(timed_update(loop))
    scale = cell.optim.batch / part
    per_step, real = statistics.median(times), scale * (loop.position.tokens - tokens) / len(times)
    if not whole:
        fixed = min(per_step, _optimizer_seconds(loop))
        per_step = fixed + scale * (per_step - fixed)
    return Speed(
        per_step, real / per_step, flops_per_token(cell) * real / per_step, peak_memory(loop.precision.device),
        len(times), loop.micro_batch, loop.position.gemm, part,
    )  # fmt: skip


def _optimizer_seconds(loop: Loop) -> float:
    """Seconds of the optimizer's part of an update, which does not depend on the number of rows."""
    began = time.perf_counter()
    loop.optimizer.step()
    return time.perf_counter() - began


def timed_update(loop: Loop) -> float:
    """Seconds of the next update, until the device has done it."""
    began = time.perf_counter()
    loop.update().loss.item()
    return time.perf_counter() - began


def peak_memory(device: torch.device) -> int:
    """Bytes at most, so far: allocated on the GPU, or resident of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # Not getrusage: a process inherits the peak of the one that forked it.
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert peak is not None
    return int(peak[1]) * 1024
