"""What the stages that train have in common: where they read and write, and who receives their events."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gpas_cli.events import Emit
from gpas_cli.state.rerun import deciding
from gpas_cli.train.sinks import Subject, opened
from gpas_cli.train.training import RunPaths
from gpas_cli.worker.inputs import discard_unfinished
from gpas_cli.worker.stages.context import StageContext


def run_paths(stage: StageContext) -> RunPaths:
    """Return the folders of the attempt, after deleting the checkpoints that earlier ones did not finish."""
    here = stage.directory
    earlier = [attempt for attempt in deciding(stage.runs, stage.attempt.key) if attempt.number < here.number]
    if stage.world.leads:
        discard_unfinished(earlier)
    return RunPaths(
        checkpoints=here.checkpoints,
        earlier=[attempt.checkpoints for attempt in earlier],
        cache=stage.cache,
        root=stage.root,
        code=stage.attempt.code,
    )


@contextmanager
def all_recipients(stage: StageContext) -> Iterator[Emit]:
    """Yield an `Emit` for the journal and the sinks that the attempt asks for."""
    attempt = stage.attempt
    subject = Subject(
        attempt.grid, attempt.name, attempt.key, stage.directory.number, stage.directory.path, attempt.cell
    )
    # Only the first process has a journal and reports to others.
    with opened(attempt.watch, subject, stage.root, stage.emit, leads=stage.world.leads) as emit:
        yield emit
