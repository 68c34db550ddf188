"""Layer importance: the increase of the validation loss when a layer is removed."""

from __future__ import annotations

from gpas_cli.evaluate.importance import measure
from gpas_cli.train.events import Outcome
from gpas_cli.worker.stages.context import StageContext


def run(stage: StageContext) -> Outcome:
    """Measure the importance of each layer of the trained network. Collective."""
    trained = stage.trained_checkpoint()
    return measure(stage.cell, trained, stage.cache, stage.root, stage.emit, stage.stop, stage.world)
