"""The update: micro-batches, gradients, clipping, optimizer. It is a pure function of the state and its number.

Its loss, gradient norm and, when observed, statistics of every layer stay on the device.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Protocol

import torch
from torch import Tensor, nn

from gpas_cli.data.loader import IGNORED, Batch, Draw
from gpas_cli.data.rows import Ints
from gpas_cli.errors import GpasError
from gpas_cli.model.dtensors import is_shard, local, sum_of_shards
from gpas_cli.model.llama import Llama
from gpas_cli.model.stream import RANK, effective_rank, stream_statistics
from gpas_cli.spec.depth import ActiveLayers
from gpas_cli.spec.optim import Optim
from gpas_cli.spec.run import SHARDED
from gpas_cli.structure import Frozen
from gpas_cli.train.checkpoint import Position
from gpas_cli.train.depth import DepthTraining, LayerSelection
from gpas_cli.train.loss import DeviceRows, summed_loss
from gpas_cli.train.optim import clip, set_learning_rate, unscale
from gpas_cli.train.parallel import ALONE, GradientSum, ParallelLayout, World
from gpas_cli.train.precision import LossScale, Precision

# Part of a parameter's name within its layer -> the series of its weight norm. (`gate` alone is a GPAS gate.)
_WEIGHT_NORM_SERIES = {
    "q_proj": "weight_norm_q",
    "k_proj": "weight_norm_k",
    "v_proj": "weight_norm_v",
    "o_proj": "weight_norm_o",
    "gate_proj": "weight_norm_ffn_gate",
    "up_proj": "weight_norm_ffn_up",
    "down_proj": "weight_norm_ffn_down",
    "norm": "weight_norm_norms",
}
_DIGITS = 7  # significant ones in the journal: float32 has no more

_SeriesIndex = tuple[tuple[str, ...], int]  # the series that a number belongs to, and its index in each


class _LayerStatistics(Frozen):
    """Numbers on the device, shape (n,), and the series and index of each, or of as many as `sizes` says.

    Norms with the same index are combined as norms of the parts of one vector. An effective rank has the numbers of a
    Gram matrix.
    """

    indices: tuple[_SeriesIndex, ...]
    sizes: tuple[int, ...]
    numbers: Tensor

    def series(self, numbers: Sequence[float]) -> dict[str, list[float | None]]:
        """Return the series by layer, from the fetched `self.numbers`; None for a layer without the part."""
        found: dict[str, dict[int, float]] = {}
        given = iter(numbers)
        for (names, index), size in zip(self.indices, self.sizes, strict=True):
            own = list(islice(given, size))
            number = own[0] if names != (RANK,) else effective_rank(_square(own))
            for name in names:
                at = found.setdefault(name, {})
                at[index] = math.hypot(at[index], number) if index in at else number
        return {name: [_rounded(at.get(i)) for i in range(max(at) + 1)] for name, at in found.items()}


class GradientNorms(Frozen):
    """Where an update's gradients are not finite, on the device."""

    network: Llama
    held: tuple[bool, ...]  # which parameters of `network` have a gradient
    norms: Tensor  # of each of these gradients (for a shard, of its part here), before clipping, shape (gradients,)

    def first_fault(self, world: World) -> str:
        """Return the name of the first parameter by depth whose gradient is not finite; "" if there is none. Waits for
        the device. Collective.
        """
        held = [name for (name, _), has in zip(self.network.named_parameters(), self.held, strict=True) if has]
        faulty = (place for place, norm in enumerate(self.norms.tolist()) if not math.isfinite(norm))
        first = world.min(next(faulty, len(held)))
        return held[first] if first < len(held) else ""


class Update(Frozen):
    """The result of one update. Its tensors stay on the device until the observer fetches them."""

    step: int
    loss: Tensor
    rate: float
    grad_norm: Tensor
    layers: _LayerStatistics | None
    gradients: GradientNorms | None = None
    loss_scale: float | None = None  # None in precisions without one
    skipped: bool = False  # the weights are unchanged, because the gradients were not finite with this scale


_Streams = Sequence[Mapping[str, Tensor]]


def measure_layers(network: Llama, streams: _Streams, active: ActiveLayers | None = None) -> _LayerStatistics:
    """Return l2 norms of gradients and weights: of every layer, in total and by module, of the embedding, the final
    norm and the head; the gates' values act(alpha) and their alpha; and `streams`, the `stream_statistics` of this
    process's first micro-batch, of the layers in `active` (None: all) and of the final norm.

    Call it when the gradients are complete and not yet clipped. Collective if the network is sharded.
    """
    norms = list(_norms(network))
    rest = [
        *_values("gate", (gate.value() for gate in network.gates())),
        *_values("alpha", (gate.alpha for gate in network.gates())),
        *_of_streams(network, streams, active),
    ]
    parts = [number.detach().reshape(-1) for _, number in rest]
    indices = tuple(index for index, _ in (*norms, *rest))
    sizes = (*(1 for _ in norms), *map(len, parts))
    return _LayerStatistics(indices, sizes, torch.cat([_l2_norms([tensor for _, tensor in norms]), *parts]))


def _square(numbers: Sequence[float]) -> Tensor:
    """Return the numbers of a square matrix, row by row, as a matrix in float64."""
    return torch.tensor(numbers, dtype=torch.float64).view(math.isqrt(len(numbers)), -1)


def _l2_norms(tensors: Sequence[Tensor]) -> Tensor:
    """Return the l2 norm of each tensor (for a shard, of the whole tensor), shape (tensors,)."""
    norms = torch.stack([torch.linalg.vector_norm(local(tensor).detach(), dtype=torch.float32) for tensor in tensors])
    shards = [tensor for tensor in tensors if is_shard(tensor)]
    if not shards:
        return norms
    sharded = torch.tensor([is_shard(tensor) for tensor in tensors], device=norms.device)
    squared = sum_of_shards(torch.where(sharded, norms.square(), 0.0), shards[0])
    return torch.where(sharded, squared.sqrt(), norms)


def _norms(network: Llama) -> Iterator[tuple[_SeriesIndex, Tensor]]:
    """Yield the weights and gradients whose norms are recorded, each with its index."""
    for i, layer in enumerate(network.model.layers):
        for name, parameter in layer.named_parameters():
            kind = next((series for part, series in _WEIGHT_NORM_SERIES.items() if part in name), None)
            yield (("weight_norm", kind) if kind else ("weight_norm",), i), parameter
            if parameter.grad is not None:
                yield (("grad_norm",), i), parameter.grad
    ends = {"embedding": network.model.embed_tokens, "final_norm": network.model.norm, "head": network.lm_head}
    for name, module in ends.items():
        yield from _end(name, module) if module is not None else ()


def _end(name: str, module: nn.Module) -> Iterator[tuple[_SeriesIndex, Tensor]]:
    for parameter in module.parameters():
        yield ((f"weight_norm_{name}",), 0), parameter
        if parameter.grad is not None:
            yield ((f"grad_norm_{name}",), 0), parameter.grad


def _values(name: str, values: Iterable[Tensor]) -> list[tuple[_SeriesIndex, Tensor]]:
    return [(((name,), i), value) for i, value in enumerate(values)]


def _of_streams(
    network: Llama, streams: _Streams, active: ActiveLayers | None
) -> Iterator[tuple[_SeriesIndex, Tensor]]:
    layers = len(network.model.layers)
    places = [*(number - 1 for number in active.layers), layers] if active else range(layers + 1)
    for place, statistics in zip(places, streams, strict=False):
        yield from ((((name,), place), value) for name, value in statistics.items())


def _rounded(value: float | None) -> float | None:
    return value if value is None else float(f"{value:.{_DIGITS}g}")


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

    targets: (rows, time), of all processes. If the number of means is a multiple of the number of processes, each one
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
    """The state of one training: network, optimizer, batches, and the position reached."""

    network: Llama
    optimizer: torch.optim.Optimizer
    spec: Optim
    batches: BatchSource
    precision: Precision
    micro_batch: int
    position: Position = field(default_factory=Position)
    layout: ParallelLayout = field(default_factory=ParallelLayout)
    selection: LayerSelection | None = None
    """The layers that train in each update, None if all parameters that have gradients do."""
    depth: DepthTraining | None = None  # the layers that each update applies, None if it applies all
    dropout: float = 0.0  # its rate
    word_dropout: float = 0.0
    row_length: int = 0  # the tokens of the rows that `micro_batch` counts, where batches differ in width; 0 elsewhere
    seed: int = 0  # of the masks of dropout
    warn: Callable[[str], None] = print

    def update(self, *, observe: bool = False) -> Update:
        """Do the next update and advance `position`; if `observe`, also measure every layer."""
        began = time.perf_counter()
        step = self.position.step + 1
        rate = self.spec.learning_rate(step)
        if self.selection:
            self.selection.apply(self.network, self.optimizer, step - 1)
        active = self._start_layers(step)
        batch = self.batches.at(step - 1)
        loss, tokens, streams = self._gradients(batch, observe, active)
        self.layout.world.sum(loss)
        scale = self._loss_scale()
        if scale:
            unscale(self._parameters, scale.value)
        if self.depth:
            self.depth.fill_skipped(self.network, active)
        layers = measure_layers(self.network, streams, active) if observe else None
        norm, norms = clip(self._parameters, self._gates, self.spec)
        held = tuple(p.grad is not None for p in self._parameters)
        gradients = GradientNorms(self.network, held, norms)
        set_learning_rate(self.optimizer, rate)
        # This waits for the device, as torch.amp.GradScaler does. Without loss scaling, the observer
        # synchronises once per several updates.
        finite = scale is None or not self.layout.world.any(not norm.isfinite())
        skipped = scale is not None and scale.value > 1 and not finite
        if not skipped:
            self.optimizer.step()
        then = scale.after(finite=finite) if scale else LossScale(0.0)
        seconds = self.position.seconds + time.perf_counter() - began
        self.position = replace(
            self.position, step=step, tokens=self.position.tokens + tokens, seconds=seconds,
            micro_batch=self.micro_batch, processes=self.layout.world.size, steps=self.spec.updates,
            loss_scale=then.value, good_updates=then.good,
        )  # fmt: skip
        return Update(step, loss, rate, norm, layers, gradients, scale.value if scale else None, skipped)

    def _loss_scale(self) -> LossScale | None:
        """Return the scale of the next update's loss, None in precisions without one."""
        if self.precision.name != "fp16":
            return None
        return LossScale(self.position.loss_scale, self.position.good_updates) if self.position.step else LossScale()

    def compile_for_first_update(self) -> None:
        """Compile the layers for the batch of the first update, as an uninterrupted run does. Collective.

        Only a resumed run needs it. The gradients are discarded. Without it Inductor would choose kernels by the sizes
        of another batch, and sums over tokens, as in the gradient of a norm, could have another order.
        """
        if not self.layout.compiled or self.selection is not None:
            return
        self._gradients(self.batches.at(0), False, self.depth.active(1) if self.depth else None)
        self.network.zero_grad()

    @cached_property
    def _parameters(self) -> list[nn.Parameter]:
        return list(self.network.parameters())

    @cached_property
    def _gates(self) -> list[Tensor]:
        return [gate.alpha for gate in self.network.gates()]

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

    def _gradients(self, batch: Batch, observe: bool, active: ActiveLayers | None) -> tuple[Tensor, int, _Streams]:
        """Accumulate gradients and sum them over processes, halving the micro-batch and starting over while it does not
        fit the device of each.

        Raises GpasError if a single row does not fit, or, in a sharded network, if the micro-batch does not.
        """
        while True:
            self.network.zero_grad()
            gradients = self.layout.gradient_sum(self.network, active)
            try:
                result = self._accumulate(batch, observe, active, gradients)
            except torch.OutOfMemoryError as error:
                if self.micro_batch == 1:
                    more = "set resources.activation_checkpointing to blocks, or strategy to fsdp on more GPUs"
                    raise GpasError(f"not even one row fits the device's memory; {more}") from error
                if self.layout.strategy in SHARDED:
                    # The other processes are waiting inside a layer. The scheduler starts the job again.
                    raise GpasError(f"out of memory: {self.micro_batch} rows at once do not fit the device") from error
                result = None
                self.network.zero_grad()
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
    ) -> tuple[Tensor, int, _Streams]:
        """Compute gradients of the batch's mean loss (`Optim.mean_rows`), the same for any split into micro-batches.

        Returns the loss, the number of tokens read, and the statistics of the first micro-batch's streams if `observe`.
        """
        total = torch.zeros((), device=self.precision.device)
        scale = self._loss_scale()
        streams: list[Mapping[str, Tensor]] = []
        rows_at_once = self.micro_batch
        if self.row_length:  # as many tokens, in shorter rows
            rows_at_once = max(1, rows_at_once * self.row_length // batch.inputs.shape[1])
        parts = list(micro_batches(batch.targets, rows_at_once, self.spec.mean_rows, self.layout.world))
        for number, (part, weight) in enumerate(parts, 1):
            rows = DeviceRows.of_batch(batch, part, self.precision.device)
            if self.dropout or self.word_dropout:
                draw, (count, time) = Draw.dropout(self.seed, self.position.step), batch.inputs.shape
                rows = rows.with_dropout(self.dropout, draw, range(*part.indices(count)), time, self.word_dropout)
            with stream_statistics(self.network, wanted=observe and not streams) as seen:
                loss = summed_loss(
                    self.network, rows, self.precision, weight, self.spec.z_loss, active, self.spec.label_smoothing
                )
            streams.extend(seen)
            last = number == len(parts)
            self.layout.sum_over_nodes(self.network, last)
            with gradients.during_backward() if last else nullcontext():
                (loss * scale.value if scale else loss).backward()  # type: ignore[no-untyped-call]
            total = total + loss.detach()
        return total, batch.tokens_read, streams
