"""Measure updates on synthetic batches: the trainer itself, without data, checkpoints or events."""

from __future__ import annotations

import math
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from gpas_cli.data.loader import Batch, Draw
from gpas_cli.data.objective import reader_of
from gpas_cli.data.rows import Ints
from gpas_cli.errors import GpasError
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.cost import USABLE_FRACTION, state_bytes, whole_flops_per_token
from gpas_cli.spec.depth import Depth
from gpas_cli.spec.run import Resources
from gpas_cli.structure import Frozen
from gpas_cli.train.assemble import DEFAULT_RESOURCES, assemble, settle_matmul
from gpas_cli.train.device import choose_device
from gpas_cli.train.loop import Loop
from gpas_cli.words import byte_size

# About half of C4's documents fill a row of 256 under T5's tokenizer, and 76 % of all positions hold a token.
_FULL_ROWS_FRACTION = 0.5
_SHORTEST_TOKENS = 20
# Not timed: the first update compiles the layers and creates the optimizer's state; in the second one the allocator
# still gets memory, as padded batches differ in size.
WARMUP_UPDATES = 2
_FEWEST_UPDATES = 3


class SyntheticBatches:
    """Batches of random tokens, in place of `data.loader.Batches`: full rows, or if `padded`, rows of which half are
    shorter, as C4's documents are. The objective makes batches of them as of text without end tokens.

    An id whose embedding stays 0 is left out: gradients of rows that begin with it overflow, and text hardly has it.
    """

    def __init__(self, cell: Cell, *, padded: bool):
        self._shape = (cell.optim.batch, cell.data.length)
        self._vocab = min(cell.text_vocab, cell.model.size.vocab - cell.model.init.zero_last_row)
        self._padded = padded
        self._reader = reader_of(cell)

    def at(self, step: int) -> Batch:
        """Return the batch of update `step`."""
        generator = np.random.default_rng([17, step])
        rows, time = self._shape
        tokens = generator.integers(0, self._vocab, (rows, time + 1))
        sizes = 1 + (self._lengths(generator) if self._padded else np.full(rows, time))
        return self._reader.batch(tokens, sizes, np.arange(rows), Draw.training(17, step))

    def _lengths(self, generator: np.random.Generator) -> Ints:
        """Return the rows' lengths: full ones, then short ones spread evenly, so that all batches are equally full."""
        rows, time = self._shape
        lengths = np.full(rows, time)
        short = rows - math.ceil(_FULL_ROWS_FRACTION * rows)
        fractions = (np.arange(short) + generator.random(short)) / max(1, short)
        shortest = min(_SHORTEST_TOKENS, time)
        lengths[rows - short :] = shortest + fractions * (time + 1 - shortest)
        return lengths


class Speed(Frozen):
    """The measured cost of a cell's updates on this machine.

    Seconds are medians; tokens exclude padding and are those of the process; `peak_memory` is in bytes, of the GPU if
    there is one, else of the process; `gemm` is the float32 matrix product used.
    """

    seconds_per_step: float
    tokens_per_second: float
    flops_per_second: float
    peak_memory: int
    steps: int
    micro_batch: int
    gemm: str


def synthetic_loop(cell: Cell, resources: Resources = DEFAULT_RESOURCES, *, padded: bool) -> Loop:
    """Return a training of `cell` on synthetic batches, at update 0."""
    return assemble(cell, SyntheticBatches(cell, padded=padded), resources)


def measure(
    cell: Cell,
    resources: Resources,
    *,
    seconds: float,
    processes: int = 1,
    notify: Callable[[str], None] = lambda message: None,
    then: Callable[[Cell, Loop], None] = lambda cell, loop: None,
) -> Speed:
    """Measure updates of all layers of `cell` for about `seconds`, at least three, after WARMUP_UPDATES.

    `processes`: measure one of this many, without communication: its share of the rows and the whole optimizer, as if
    each process had a copy of the network.
    `notify` is called with a description of each step, `then` with the training at the end. Raises GpasError if the
    network does not fit the device.
    """
    device = choose_device()
    require_fit(cell, torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0)
    notify("building the network")
    measured = replace(cell, depth=Depth())
    if processes > 1:
        optim = replace(cell.optim, batch=cell.optim.share(processes), mean_rows=0)
        measured = replace(measured, optim=optim)
    loop = synthetic_loop(measured, resources, padded=cell.data.layout == "pad")
    settle_matmul(cell, loop)
    for number in range(WARMUP_UPDATES):
        notify(f"update {number + 1}, not counted")
        timed_update(loop)
    times: list[float] = []
    tokens_before = loop.position.tokens
    while len(times) < _FEWEST_UPDATES or sum(times) < seconds:
        notify(f"update {len(times) + 1}" + (f", the last took {times[-1]:.2g} s" if times else ""))
        times.append(timed_update(loop))
    per_step = statistics.median(times)
    tokens = (loop.position.tokens - tokens_before) / len(times)
    speed = Speed(
        per_step, tokens / per_step, whole_flops_per_token(cell) * tokens / per_step,
        peak_memory(loop.precision.device), len(times), loop.micro_batch, loop.position.gemm,
    )  # fmt: skip
    then(measured, loop)
    return speed


def require_fit(cell: Cell, device_bytes: int) -> None:
    """Raise GpasError if weights, gradients and optimizer state need more memory than a device has (0: unknown)."""
    states = state_bytes(cell)
    if device_bytes and states > device_bytes:
        devices = math.ceil(states / (USABLE_FRACTION * device_bytes))
        taken = f"weights, gradients and optimizer state take {byte_size(states)}"
        remedy = f"they fit sharded over {devices} or more, but gpas bench measures one GPU alone"
        raise GpasError(f"{taken}, and the GPU has {byte_size(device_bytes)}: {remedy}")


def timed_update(loop: Loop) -> float:
    """Do the next update and return the seconds until the device has finished it."""
    began = time.perf_counter()
    loop.update().loss.item()
    return time.perf_counter() - began


def peak_memory(device: torch.device) -> int:
    """Return the peak so far, in bytes: allocated on the GPU, or the process's resident set."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # Not getrusage: a process inherits the peak of its parent.
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert peak is not None
    return int(peak[1]) * 1024
