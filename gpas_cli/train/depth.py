"""The layers of every update of a training whose depth is not `full` (`spec.depth`): random paths, growing networks.

The layers that an update skips are left out of its forward and backward pass. Their parameters have no gradient, so the
optimizer leaves them and their state alone (`skipped: keep`); or they have a gradient of zero (`skipped: zero`).

A network that grows has all its layers from the start, and does not use those that are still to come: a checkpoint has
the same tensors at every depth. A new layer gets the parameters of the layer that it is a copy of before its first
update, and the optimizer's state of them unless `moments: fresh`. Values of fixed gates belong to their layer and are
not copied.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gpas_cli.model.llama import Llama
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.depth import ActiveLayers, LayerSchedule


@dataclass(frozen=True)
class DepthTraining:
    """The layers of every update of one training, and what becomes of the others."""

    schedule: LayerSchedule
    seed: int

    @classmethod
    def of(cls, cell: Cell) -> DepthTraining | None:
        """Return the depth training of a cell, None if all layers train in every update."""
        return None if cell.depth.is_full else cls(cell.layer_schedule, cell.seed)

    def active(self, update: int) -> ActiveLayers | None:
        """Return the layers that train in an update, None for all of them with the factor 1."""
        return self._or_none(self.schedule.at(self.seed, update))

    def evaluated(self, update: int) -> ActiveLayers | None:
        """Return the layers that an evaluation after an update applies, None for all of them."""
        return self._or_none(self.schedule.evaluated(update))

    def _or_none(self, active: ActiveLayers) -> ActiveLayers | None:
        return None if active.plain and len(active.layers) == self.schedule.layers else active

    def grow(self, network: Llama, optimizer: torch.optim.Optimizer, update: int) -> None:
        """Make every layer that is new in an update a copy of another."""
        layers = network.model.layers
        for target, source in self.schedule.copies(update):
            pairs = zip(layers[target - 1].parameters(), layers[source - 1].parameters(), strict=True)
            for new, old in pairs:
                with torch.no_grad():
                    new.copy_(old)
                if self.schedule.depth.moments == "copied" and old in optimizer.state:
                    optimizer.state[new] = {name: _clone(value) for name, value in optimizer.state[old].items()}

    def fill_skipped(self, network: Llama, active: ActiveLayers | None) -> None:
        """Give the layers that an update has skipped a gradient of zero, if the optimizer is to see one."""
        if active is None or self.schedule.depth.kind == "stacking" or self.schedule.depth.skipped == "keep":
            return
        for number, layer in enumerate(network.model.layers, 1):
            for parameter in () if number in active.layers else layer.parameters():
                parameter.grad = torch.zeros_like(parameter)


def _clone(value: object) -> object:
    return value.clone() if isinstance(value, torch.Tensor) else value
