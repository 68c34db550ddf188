"""Open the trained network of a cell, whichever stage trained it last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from gpas_cli.model.llama import Llama, build
from gpas_cli.spec.cell import Cell
from gpas_cli.train import checkpoint
from gpas_cli.train.checkpoint import Position
from gpas_cli.train.parallel import ALONE, World
from gpas_cli.train.precision import Precision, choose_device


@dataclass(frozen=True)
class TrainedNetwork:
    """A trained network on its device, the precision of its training, and the progress of that training."""

    network: Llama
    precision: Precision
    position: Position


@torch.no_grad()
def load_trained(cell: Cell, trained: Path | Sequence[Path], world: World = ALONE) -> TrainedNetwork:
    """Return the network of `trained`, a checkpoint of the cell's last training stage, whole in every process.

    Of several checkpoints the network has the mean of their weights, summed in float64 and rounded once, and the
    position is that of the last one. Collective. Raises DamagedCheckpoint if it is damaged or belongs to another stage.
    """
    precision = Precision(cell.trained_precision, choose_device())
    network = build(cell.model, seed=cell.seed, dtype=precision.weights, device=precision.device)
    precision.apply(network)
    paths = [trained] if isinstance(trained, Path) else trained
    weights = network.state_dict()
    sums = {name: torch.zeros_like(weight, dtype=torch.float64) for name, weight in weights.items() if len(paths) > 1}
    for path in paths:
        position = checkpoint.load(path, cell.trained.key, network, None, world)
        for name, total in sums.items():
            total += weights[name]
    for name, total in sums.items():
        weights[name].copy_(total / len(paths))
    return TrainedNetwork(network, precision, position)
