"""Open the trained network of a cell, whichever stage trained it last."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

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


def load_trained(cell: Cell, trained: Path, world: World = ALONE) -> TrainedNetwork:
    """Return the network of `trained`, a checkpoint of the cell's last training stage, whole in every process.

    Collective. Raises DamagedCheckpoint if it is damaged or belongs to another stage.
    """
    precision = Precision(cell.trained_precision, choose_device())
    network = build(cell.model, seed=cell.seed, dtype=precision.weights, device=precision.device)
    network.round_stream(precision.stream)
    position = checkpoint.load(trained, cell.trained.key, network, None, world)
    return TrainedNetwork(network, precision, position)
