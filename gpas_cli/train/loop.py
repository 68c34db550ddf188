"""The update: micro-batches, gradients, clipping, Adam. One update is a pure function of the state and its number."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gpas_cli.data.loader import IGNORED, Batch, Batches
from gpas_cli.data.rows import Ints
from gpas_cli.model.gate_gradient import GateGradients
from gpas_cli.model.llama import Llama
from gpas_cli.model.probe import activation_variance, gate_values, layer_gradient_norms
from gpas_cli.spec.optim import Optim
from gpas_cli.train.checkpoint import Position
from gpas_cli.train.compiling import eager
from gpas_cli.train.loss import Rows, summed_loss
from gpas_cli.train.optim import clip, set_learning_rate
from gpas_cli.train.precision import Precision

# Logits of one micro-batch, in elements: 256 MB of float32.
LOGITS = 2**26


def micro_batch_rows(batch: int, length: int, vocab: int, asked: int = 0) -> int:
    """Rows per micro-batch: as asked, or as many as keep its logits within LOGITS elements."""
    fitting = asked or max(1, LOGITS // (length * vocab))
    return min(batch, fitting)


def micro_batches(targets: Ints, micro_batch: int, mean_rows: int = 0) -> Iterator[tuple[slice, int]]:
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
    gate_gradients: GateGradients | None = None
    position: Position = field(default_factory=Position)

    def update(self, *, observe: bool = False) -> Update:
        """Do the next update and advance `position`; with `observe`, also measure every layer."""
        began = time.perf_counter()
        step = self.position.step + 1
        rate = self.spec.learning_rate(step)
        self.network.zero_grad(set_to_none=True)
        loss, tokens, variance = self._accumulate(self.batches.at(step - 1), observe)
        if self.gate_gradients:
            self.gate_gradients.fill()
        norm = clip(self.network, self.spec)
        layers = self._layers(variance) if observe else {}
        set_learning_rate(self.optimizer, rate)
        self.optimizer.step()
        seconds = self.position.seconds + time.perf_counter() - began
        self.position = Position(step=step, tokens=self.position.tokens + tokens, seconds=seconds)
        return Update(step, loss, rate, norm, layers)

    def _accumulate(self, batch: Batch, observe: bool) -> tuple[Tensor, int, list[Tensor]]:
        """Gradients of the batch's mean loss (`Optim.mean_rows`), whatever its split into micro-batches."""
        total = torch.zeros((), device=self.precision.device)
        variance: list[Tensor] = []
        for part, weight in micro_batches(batch.targets, self.micro_batch, self.spec.mean_rows):
            rows = Rows.of(batch.inputs[part], batch.targets[part], self.precision.device)
            watched = observe and not variance
            with eager(watched), activation_variance(self.network, wanted=watched) as seen:
                loss = summed_loss(self.network, rows, self.precision, weight)
            variance.extend(seen)
            loss.backward()  # type: ignore[no-untyped-call]
            total = total + loss.detach()
        return total, batch.predicted, variance

    def _layers(self, variance: list[Tensor]) -> dict[str, list[float]]:
        values = {
            "activation_variance": [v.item() for v in variance],
            "grad_norm": layer_gradient_norms(self.network),
            "gate": gate_values(self.network),
        }
        return {name: series for name, series in values.items() if series}


@dataclass(frozen=True)
class Update:
    """What one update did. `loss` and `grad_norm` stay on the device until somebody asks for their number."""

    step: int
    loss: Tensor
    rate: float
    grad_norm: Tensor
    layers: dict[str, list[float]]
