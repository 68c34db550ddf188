"""Layer importance: what the trained network loses without each of its layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpas_cli.evaluate.importance import Removal, measure
from gpas_cli.state.rerun import deciding
from gpas_cli.store.journal import stretches
from gpas_cli.train.events import Outcome
from gpas_cli.worker.stages.context import StageContext


def run(stage: StageContext) -> Outcome:
    """Measure the importance of each layer that no earlier attempt, or this one before a requeue, has measured.
    Collective."""
    trained = stage.trained_checkpoint()
    earlier = recorded(stage.runs, stage.attempt.key) if stage.world.leads else ()
    return measure(stage.cell, trained, stage.cache, stage.root, stage.emit, stage.stop, stage.world, earlier)


def recorded(runs: Path, key: str) -> Iterator[Removal]:
    """Yield the measurements in the journals of the attempts that decide the state of the stage, oldest first."""
    for attempt in deciding(runs, key):
        for events, _, _ in stretches(attempt.journal_path):
            for event in events:
                if event["kind"] == "removal":
                    yield _removal(event)


def _removal(event: Mapping[str, Any]) -> Removal:
    distances = {name: [float(value) for value in values] for name, values in event["distances"].items()}
    return Removal(event["layer"], float(event["loss"]), event["checkpoint"], event["text"], event["rows"], distances)
