"""Which parameters train in an update of finetuning: LISA (Pan et al. 2024), or all of them.

LISA trains the embedding, the final norm and the head in every update, and `count` layers, drawn uniformly and again
every `interval` updates. A layer that is not drawn needs no gradient: its parameters have `requires_grad` False and no
`grad`, and the optimizer skips them. When it is drawn again, Adam continues with its moments and its own number of
steps (`keep`), or starts with none (`reset`).

The layers of an update are a pure function of (seed, update): every process draws the same, and so does a resumed run.
Gates never train, whichever layers do.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gpas_cli.data.order import permutation
from gpas_cli.model.llama import Llama
from gpas_cli.spec.finetune import Finetune

# Added to the seed, so that the layers are drawn independently of the order of the rows.
_SEED_OFFSET = 2**32


def drawn_layers(seed: int, draw: int, layers: int, count: int) -> frozenset[int]:
    """Return the `count` layers of draw number `draw`, numbered from 0."""
    return frozenset(permutation(_SEED_OFFSET + seed, draw, layers)[:count].tolist())


def freeze_gates(network: Llama) -> None:
    """Exclude the gates from training."""
    for gate in network.gates():
        gate.alpha.requires_grad_(False)


@dataclass(frozen=True)
class LayerSelection:
    """The layers that train in each update of a network with `layers` layers."""

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
        return drawn_layers(self.seed, step // self.interval, self.layers, self.count)

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
