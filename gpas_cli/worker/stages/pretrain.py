"""Pretraining, the first stage of every cell."""

from __future__ import annotations

from gpas_cli.events import Outcome
from gpas_cli.state.outputs import last_checkpoint
from gpas_cli.train.run import train
from gpas_cli.worker.stages.context import StageContext
from gpas_cli.worker.stages.training import all_recipients, run_paths


def run(stage: StageContext) -> Outcome:
    """Train the cell's network, resuming from the newest sound checkpoint of earlier attempts. Collective."""
    attempt = stage.attempt
    teacher = stage.cell.teacher()
    with all_recipients(stage) as emit:
        return train(
            stage.cell,
            run_paths(stage),
            emit,
            cadence=attempt.cadence,
            stop=stage.stop,
            teacher=last_checkpoint(stage.runs, teacher.trained.key) if teacher else None,
            resources=attempt.resources,
            world=stage.world,
            watch=attempt.watch,
        )
