"""Layer importance: how much the validation loss rises without each layer."""

from __future__ import annotations

from gpas_cli.evaluate.importance import measure
from gpas_cli.train.events import Outcome
from gpas_cli.worker.stages.context import StageContext


def run(stage: StageContext) -> Outcome:
    """Measure the layers of the cell's trained network. Collective."""
    trained = stage.trained_checkpoint()
    return measure(stage.cell, trained, stage.cache, stage.root, stage.emit, stage.stop, stage.world)
