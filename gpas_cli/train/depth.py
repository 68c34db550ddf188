"""The layers of every update: random paths and growing networks (`spec.depth`), and those that finetuning draws.

The layers that an update skips are left out of its forward and backward pass. Their parameters have no gradient, so the
optimizer leaves them and their state alone (`skipped: keep`); or they have a gradient of zero (`skipped: zero`).

A network that grows has all its layers from the start, and does not use those that are still to come: a checkpoint has
the same tensors at every depth. A new layer gets the parameters of the layer that it is a copy of before its first
update, and the optimizer's state of them unless `moments: fresh`. Values of fixed gates belong to their layer and are
not copied.
"""

from __future__ import annotations

import torch

from gpas_cli.data.loader import permutation
from gpas_cli.model.llama import Llama
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.depth import ActiveLayers, LayerSchedule
from gpas_cli.spec.finetune import Finetune
from gpas_cli.structure import Frozen

# Added to the seed, so that the layers are drawn independently of the order of the rows.
_SEED_OFFSET = 2**32


class DepthTraining(Frozen):
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


def _drawn_layers(seed: int, draw: int, layers: int, count: int) -> frozenset[int]:
    """Return the `count` layers of draw number `draw`, numbered from 0."""
    return frozenset(permutation(_SEED_OFFSET + seed, draw, layers)[:count].tolist())


def freeze_gates(network: Llama) -> None:
    """Exclude the gates from training."""
    for gate in network.gates():
        gate.alpha.requires_grad_(False)


class LayerSelection(Frozen):
    """The layers that train in each update of a network with `layers` layers: LISA (Pan et al. 2024).

    LISA trains the embedding, the final norm and the head in every update, and `count` layers, drawn uniformly and
    again every `interval` updates. A layer that is not drawn needs no gradient: its parameters have `requires_grad`
    False and no `grad`, and the optimizer skips them. When it is drawn again, Adam continues with its moments and its
    own number of steps (`keep_state`), or starts with none. Gates never train, whichever layers do.

    The layers of an update are a pure function of (seed, update): every process draws the same, and so does a resumed
    run.
    """

    seed: int
    layers: int
    count: int
    interval: int
    keep_state: bool = True

    @classmethod
    def of(cls, spec: Finetune, layers: int) -> LayerSelection | None:
        """Return the selection that `spec` asks for, None if all layers train in every update."""
        if spec.method == "full":
            return None
        assert spec.seed is not None
        return cls(spec.seed, layers, spec.lisa_layers, spec.lisa_interval, spec.lisa_state == "keep")

    def at(self, step: int) -> frozenset[int]:
        """Return the layers, numbered from 0, that train in update `step` = 0, 1, ..."""
        return _drawn_layers(self.seed, step // self.interval, self.layers, self.count)

    def apply(self, network: Llama, optimizer: torch.optim.Optimizer, step: int) -> None:
        """Freeze the layers that do not train in update `step`, and unfreeze the others without their gates."""
        trained = self.at(step)
        gates = {id(gate.alpha) for gate in network.gates()}
        for number, layer in enumerate(network.model.layers):
            for parameter in layer.parameters():
                trains = number in trained and id(parameter) not in gates
                parameter.requires_grad_(trains)
                if not trains:
                    parameter.grad = None
                    if not self.keep_state:
                        optimizer.state.pop(parameter, None)
