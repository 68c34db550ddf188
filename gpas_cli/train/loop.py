"""The update: micro-batches, gradients, clipping, optimizer. It is a pure function of the state and its number."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor, nn

from gpas_cli.data.loader import IGNORED, Batch
from gpas_cli.data.rows import Ints
from gpas_cli.errors import GpasError
from gpas_cli.model.llama import Llama
from gpas_cli.model.probe import activation_variance
from gpas_cli.spec.depth import ActiveLayers
from gpas_cli.spec.optim import Optim
from gpas_cli.train.checkpoint import Position
from gpas_cli.train.depth import DepthTraining
from gpas_cli.train.gradient_sum import GradientSum
from gpas_cli.train.lisa import LayerSelection
from gpas_cli.train.loss import DeviceRows, summed_loss
from gpas_cli.train.optim import clip, set_learning_rate
from gpas_cli.train.parallel import ALONE, World
from gpas_cli.train.precision import Precision
from gpas_cli.train.strategy import ParallelLayout
from gpas_cli.train.update import GradientNorms, Update, embedding_rows, measure_layers


class BatchSource(Protocol):
    """Provides the batch of every update, as `data.loader.Batches` does."""

    def at(self, step: int) -> Batch:
        """Return the batch of update `step` = 0, 1, ..."""
        ...


def micro_batches(
    targets: Ints, micro_batch: int, mean_rows: int = 0, world: World = ALONE
) -> Iterator[tuple[slice, float]]:
    """Yield this process's rows of each micro-batch, and the divisor of their summed loss: the number of targets in the
    `mean_rows` rows that they belong to (all rows if 0), over all processes, times the number of such means.

    targets: (rows, time), of all processes. If the number of means is a multiple of that of the processes, each process
    has whole means, as in the reference; else process r has rows r, r + size, ... of each mean. All processes get the
    same number of micro-batches, as sharded networks need: a process without rows left gets one row with an infinite
    divisor, which contributes nothing.
    """
    rows = len(targets)
    group = mean_rows or rows
    own_means = rows // group % world.size == 0
    for number, first in enumerate(range(0, rows, group)):
        end = min(first + group, rows)
        weight = int((targets[first:end] != IGNORED).sum()) * (rows // group)
        if own_means:
            if number % world.size == world.rank:
                starts = range(first, end, micro_batch)
                yield from ((slice(start, min(start + micro_batch, end), 1), max(1, weight)) for start in starts)
            continue
        for start in range(first, end, micro_batch * world.size):
            own = start + (world.rank - (start - first)) % world.size
            stop = min(start + micro_batch * world.size, end)
            yield (slice(own, stop, world.size), max(1, weight)) if own < stop else (slice(first, first + 1), math.inf)


@dataclass
class Loop:
    """The state of one training: network, optimizer, batches, and the position reached.

    `selection`: the layers that train in each update, None if all parameters that have gradients do. `depth`: the
    layers that each update applies, None if it applies all.
    """

    network: Llama
    optimizer: torch.optim.Optimizer
    spec: Optim
    batches: BatchSource
    precision: Precision
    micro_batch: int
    position: Position = field(default_factory=Position)
    layout: ParallelLayout = field(default_factory=ParallelLayout)
    selection: LayerSelection | None = None
    depth: DepthTraining | None = None
    warn: Callable[[str], None] = print

    def update(self, *, observe: bool = False) -> Update:
        """Do the next update and advance `position`; if `observe`, also measure every layer."""
        began = time.perf_counter()
        step = self.position.step + 1
        rate = self.spec.learning_rate(step)
        if self.selection:
            self.selection.apply(self.network, self.optimizer, step - 1)
        active = self._start_layers(step)
        loss, tokens, variance = self._gradients(self.batches.at(step - 1), observe, active)
        self.layout.world.sum(loss)
        if self.depth:
            self.depth.fill_skipped(self.network, active)
        layers = measure_layers(self.network, variance, active) if observe else None
        rows = embedding_rows(self.network)
        norm, norms = clip(self._parameters, self._gates, self.spec)
        gradients = GradientNorms(self.network, tuple(p.grad is not None for p in self._parameters), norms, rows)
        set_learning_rate(self.optimizer, rate)
        self.optimizer.step()
        seconds = self.position.seconds + time.perf_counter() - began
        self.position = replace(
            self.position, step=step, tokens=self.position.tokens + tokens, seconds=seconds,
            micro_batch=self.micro_batch, processes=self.layout.world.size, steps=self.spec.updates,
        )  # fmt: skip
        return Update(step, loss, rate, norm, layers, gradients)

    def compile_for_first_update(self) -> None:
        """Compile the layers for the batch of the first update, as an uninterrupted run does. Collective.

        Only a resumed run needs it. The gradients are discarded. Without it Inductor would choose kernels by the sizes
        of another batch, and sums over tokens, as in the gradient of a norm, could have another order.
        """
        if not self.layout.compiled or self.selection is not None:
            return
        self._gradients(self.batches.at(0), False, self.depth.active(1) if self.depth else None)
        self._clear_gradients()

    @cached_property
    def _parameters(self) -> list[nn.Parameter]:
        return list(self.network.parameters())

    @cached_property
    def _gates(self) -> list[Tensor]:
        return [gate.alpha for gate in self.network.gates()]

    def _clear_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def evaluated_layers(self) -> ActiveLayers | None:
        """Return the layers that an evaluation applies now, None for all."""
        return self.depth.evaluated(self.position.step) if self.depth else None

    def _start_layers(self, step: int) -> ActiveLayers | None:
        """Return the layers that update `step` applies, None for all, after growing the network if this update adds
        layers.
        """
        if self.depth is None:
            return None
        self.depth.grow(self.network, self.optimizer, step)
        return self.depth.active(step)

    def _gradients(self, batch: Batch, observe: bool, active: ActiveLayers | None) -> tuple[Tensor, int, list[Tensor]]:
        """Accumulate gradients and sum them over processes, halving the micro-batch and starting over while it does not
        fit the device of each.

        Raises GpasError if a single row does not fit, or, under fsdp, if the micro-batch does not.
        """
        while True:
            self._clear_gradients()
            gradients = self.layout.gradient_sum(self.network, active)
            try:
                result = self._accumulate(batch, observe, active, gradients)
            except torch.OutOfMemoryError as error:
                if self.micro_batch == 1:
                    more = "set resources.activation_checkpointing to blocks, or strategy to fsdp on more GPUs"
                    raise GpasError(f"not even one row fits the device's memory; {more}") from error
                if self.layout.strategy == "fsdp":
                    # The other processes are waiting inside a layer. The scheduler starts the job again.
                    raise GpasError(f"out of memory: {self.micro_batch} rows at once do not fit the device") from error
                result = None
                self._clear_gradients()
            gradients.finish()
            if not self.layout.world.any(result is None):
                assert result is not None
                return result
            self._halve()

    def _halve(self) -> None:
        before = self.micro_batch
        self.micro_batch = max(1, before // 2)
        torch.cuda.empty_cache()
        self.warn(f"{before} rows at once do not fit the device's memory; continuing with {self.micro_batch}")

    def _accumulate(
        self, batch: Batch, observe: bool, active: ActiveLayers | None, gradients: GradientSum
    ) -> tuple[Tensor, int, list[Tensor]]:
        """Compute gradients of the batch's mean loss (`Optim.mean_rows`), the same for any split into micro-batches.

        Returns the loss, the number of tokens read, and the activation variances of the first micro-batch if `observe`.
        """
        total = torch.zeros((), device=self.precision.device)
        variance: list[Tensor] = []
        parts = list(micro_batches(batch.targets, self.micro_batch, self.spec.mean_rows, self.layout.world))
        for number, (part, weight) in enumerate(parts, 1):
            rows = DeviceRows.of_batch(batch, part, self.precision.device)
            watched = observe and not variance
            with activation_variance(self.network, wanted=watched) as seen:
                loss = summed_loss(self.network, rows, self.precision, weight, self.spec.z_loss, active)
            variance.extend(seen)
            with gradients.during_backward() if number == len(parts) else nullcontext():
                loss.backward()  # type: ignore[no-untyped-call]
            total = total + loss.detach()
        return total, batch.tokens_read, variance
