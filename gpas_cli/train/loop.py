"""The update: micro-batches, gradients, clipping, Adam. One update is a pure function of the state and its number."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gpas_cli.data.loader import Batch, Batches
from gpas_cli.model.llama import Llama
from gpas_cli.model.probe import activation_variance
from gpas_cli.spec.optim import Optim
from gpas_cli.train.checkpoint import Position
from gpas_cli.train.loss import IGNORED, summed_loss
from gpas_cli.train.observe import Statistics, measure
from gpas_cli.train.optim import clip, set_learning_rate
from gpas_cli.train.precision import Precision

# Logits of one micro-batch, in elements: 256 MB of float32.
LOGITS = 2**26


def micro_batch_rows(batch: int, length: int, vocab: int, asked: int = 0) -> int:
    """Rows per micro-batch: as asked, or as many as keep its logits within LOGITS elements."""
    fitting = asked or max(1, LOGITS // (length * vocab))
    return min(batch, fitting)


def micro_batches(targets: Tensor, micro_batch: int, mean_rows: int = 0) -> Iterator[tuple[slice, int]]:
    """The rows of each micro-batch, and what its summed loss is divided by: the targets of the `mean_rows` rows that
    it belongs to (all rows if 0) times the number of such means. targets: (rows, time)."""
    rows = len(targets)
    group = mean_rows or rows
    for first in range(0, rows, group):
        end = min(first + group, rows)
        weight = int((targets[first:end] != IGNORED).sum()) * (rows // group)
        for start in range(first, end, micro_batch):
            yield slice(start, min(start + micro_batch, end)), max(1, weight)


@dataclass
class Loop:
    """The moving parts of one training, and how far it has come."""

    network: Llama
    optimizer: torch.optim.Optimizer
    spec: Optim
    batches: Batches
    precision: Precision
    micro_batch: int
    position: Position = field(default_factory=Position)

    def update(self, *, observe: bool = False) -> Update:
        """Do the next update and advance `position`; with `observe`, also measure every layer."""
        began = time.perf_counter()
        step = self.position.step + 1
        rate = self.spec.learning_rate(step)
        self.network.zero_grad(set_to_none=True)
        loss, tokens, variance = self._accumulate(self.batches.at(step - 1), observe)
        layers = measure(self.network, variance) if observe else None
        norm = clip(self.network, self.spec)
        set_learning_rate(self.optimizer, rate)
        self.optimizer.step()
        seconds = self.position.seconds + time.perf_counter() - began
        self.position = Position(step=step, tokens=self.position.tokens + tokens, seconds=seconds)
        return Update(step, loss, rate, norm, layers)

    def _accumulate(self, batch: Batch, observe: bool) -> tuple[Tensor, int, list[Tensor]]:
        """Gradients of the batch's mean loss (`Optim.mean_rows`), whatever its split into micro-batches."""
        inputs, targets = torch.from_numpy(batch.inputs), torch.from_numpy(batch.targets)
        total = torch.zeros((), device=self.precision.device)
        variance: list[Tensor] = []
        for rows, weight in micro_batches(targets, self.micro_batch, self.spec.mean_rows):
            x, y = (a[rows].to(self.precision.device) for a in (inputs, targets))
            forward = self._watched(variance) if observe and rows.start == 0 else summed_loss
            loss = forward(self.network, x, y, self.precision) / weight
            loss.backward()  # type: ignore[no-untyped-call]
            total = total + loss.detach()
        return total, int((targets != IGNORED).sum()), variance

    def _watched(self, variance: list[Tensor]) -> Callable[..., Tensor]:
        def forward(network: Llama, *args: object) -> Tensor:
            with activation_variance(network) as seen:
                loss = summed_loss(network, *args)  # type: ignore[arg-type]
            variance.extend(seen)
            return loss

        return forward


@dataclass(frozen=True)
class Update:
    """What one update did. `loss`, `grad_norm` and `layers` stay on the device until the observer fetches them."""

    step: int
    loss: Tensor
    rate: float
    grad_norm: Tensor
    layers: Statistics | None
