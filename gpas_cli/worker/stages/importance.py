"""Layer importance: what the trained network loses without each of its layers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gpas_cli.evaluate.importance import measure
from gpas_cli.events import Outcome, Removal, RemovalScore
from gpas_cli.state.rerun import deciding
from gpas_cli.store.journal import stretches
from gpas_cli.worker.stages.context import StageContext


def run(stage: StageContext) -> Outcome:
    """Measure the importance of each layer that no earlier attempt, or this one before a requeue, has measured.

    If a task cannot be scored, the outcome is `interrupted`, with the reason: the next `gpas run` scores what is
    missing. Collective.
    """
    trained = stage.trained_checkpoint()
    earlier = recorded(stage.runs, stage.attempt.key) if stage.world.leads else ()
    return measure(stage.cell, trained, stage.cache, stage.root, stage.emit, stage.stop, stage.world, earlier)


def recorded(runs: Path, key: str) -> Iterator[Removal | RemovalScore]:
    """Yield the measurements in the journals of the attempts that decide the state of the stage, oldest first."""
    for attempt in deciding(runs, key):
        for lines, _, _ in stretches(attempt.journal_path):
            events = (line.event for line in lines if line.kind in ("removal", "removal_score"))
            yield from (event for event in events if isinstance(event, Removal | RemovalScore))
