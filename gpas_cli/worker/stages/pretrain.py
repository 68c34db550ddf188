"""Pretraining, the first stage of every cell."""

from __future__ import annotations

from gpas_cli.events import Outcome
from gpas_cli.state.outputs import last_checkpoint
from gpas_cli.state.rerun import deciding
from gpas_cli.train.run import RunPaths, train
from gpas_cli.train.sinks import Subject, opened
from gpas_cli.worker.inputs import discard_unfinished
from gpas_cli.worker.stages.context import StageContext


def run(stage: StageContext) -> Outcome:
    """Train the cell's network, resuming from the newest sound checkpoint of earlier attempts. Collective."""
    attempt, here, world = stage.attempt, stage.directory, stage.world
    earlier = [a for a in deciding(stage.runs, attempt.key) if a.number < here.number]
    if world.leads:
        discard_unfinished(earlier)
    teacher = stage.cell.teacher()
    paths = RunPaths(
        checkpoints=here.checkpoints,
        earlier=[a.checkpoints for a in earlier],
        cache=stage.cache,
        root=stage.root,
        teacher=last_checkpoint(stage.runs, teacher.trained.key) if teacher else None,
        code=attempt.code,
    )
    subject = Subject(attempt.grid, attempt.name, attempt.key, here.number, here.path, attempt.cell)
    # Only the first process has a journal and reports to others.
    with opened(attempt.watch, subject, paths.root, stage.emit, leads=world.leads) as emit:
        return train(
            stage.cell,
            paths,
            emit,
            cadence=attempt.cadence,
            stop=stage.stop,
            resources=attempt.resources,
            world=world,
            watch=attempt.watch,
        )
