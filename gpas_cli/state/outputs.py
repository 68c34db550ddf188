"""Outputs of a training stage: its checkpoints, and the text that they were trained on."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from gpas_cli.checkpoints import path_of
from gpas_cli.errors import GpasError
from gpas_cli.events import KINDS, Event, Score, TextFacts
from gpas_cli.extension import missing
from gpas_cli.spec.cell import NETWORK
from gpas_cli.spec.extensions import part
from gpas_cli.state import rerun
from gpas_cli.state.attempt import final_step
from gpas_cli.store.journal import read, stretches
from gpas_cli.store.rundir import AttemptDir, checkpoints_of, stage_dir

_E = TypeVar("_E", bound=Event)


def recorded_events(runs: Path, key: str, *classes: type[_E]) -> Iterator[_E]:
    """Yield the events of these classes in the journals of the attempts that decide the state of a stage, oldest first.

    Raises OSError if a journal cannot be read.
    """
    for attempt in rerun.deciding(runs, key):
        yield from _events_of(attempt, *classes)


def _events_of(attempt: AttemptDir, *classes: type[_E]) -> Iterator[_E]:
    kinds = {kind for kind, event_class in KINDS.items() if event_class in classes}
    for lines, _, _ in stretches(attempt.journal_path):
        events = (line.event for line in lines if line.kind in kinds)
        yield from (event for event in events if isinstance(event, classes))


def newest_checkpoint(runs: Path, key: str) -> Path | None:
    """Return the checkpoint of the stage `key` with the most updates, over all attempts; None if there is none."""
    return next(iter(checkpoints_of(runs, key)), None)


def last_checkpoint(runs: Path, key: str) -> Path:
    """Return the checkpoint of the stage `key` after its last update, which the outcome of its newest result names.

    Raises GpasError if there is none, because later stages need the fully trained network.
    """
    attempts = rerun.deciding(runs, key)
    steps = next((step for attempt in reversed(attempts) if (step := final_step(attempt)) is not None), None)
    if steps is None:
        raise GpasError(f"the training {key}, which this stage builds on, is not done; `gpas run` runs it first")
    if path := _checkpoint_after(attempts, steps):
        return path
    newest = newest_checkpoint(runs, key)
    found = "none" if newest is None else f"{newest}, and no later one"
    raise GpasError(
        f"the checkpoint after update {steps} of stage {key}, which this one builds on, is not there (found: {found}); "
        f"to train it again, move {stage_dir(runs, key)} away"
    )


def averaged_checkpoints(runs: Path, key: str, updates: Sequence[int]) -> list[Path]:
    """Return the checkpoints of the training `key` after these updates. Raises GpasError if one is not there."""
    attempts = rerun.deciding(runs, key)
    found = {update: _checkpoint_after(attempts, update) for update in updates}
    if missing := [str(update) for update, path in found.items() if path is None]:
        raise GpasError(
            f"{len(missing)} of the {len(updates)} checkpoints of stage {key} whose weights this one averages are not "
            f"there, those after update {', '.join(missing)}: it was trained before a cell with this "
            "translation.average was declared, or they were deleted. Write average: 1 to translate with the last "
            f"weights, or move {stage_dir(runs, key)} away to train again"
        )
    return [path for path in found.values() if path]


def _checkpoint_after(attempts: Sequence[AttemptDir], update: int) -> Path | None:
    """Return the checkpoint after an update in the newest of the attempts that has one."""
    paths = (path_of(attempt.checkpoints, update) for attempt in reversed(attempts))
    return next((path for path in paths if path.exists()), None)


def text_of(checkpoint: Path) -> TextFacts:
    """Return the journalled facts about the text of `checkpoint`; they are empty if the journal has none.

    Raises OSError if the journal cannot be read.
    """
    lines, _, _ = read(AttemptDir(checkpoint.parents[1]).journal_path)
    events = (line.event for line in reversed(lines) if line.kind == "data")
    return next((event for event in events if isinstance(event, TextFacts) and event.tokenizer), TextFacts())


def scores_of(runs: Path, keys: Iterable[str], name: str) -> list[Score]:
    """Return the newest score by task and metric of the checkpoint or network called `name` in events that the stages
    `keys` recorded, in their order.

    `taken_from` of each names the attempt that measured it. Raises OSError if a journal cannot be read.
    """
    found: dict[tuple[str, str], Score] = {}
    for key in keys:
        for attempt in rerun.deciding(runs, key):
            measured = f"{key}/{attempt.path.name}"
            for event in _events_of(attempt, Score):
                if event.checkpoint == name:
                    found[event.task, event.metric] = replace(event, taken_from=event.taken_from or measured)
    return list(found.values())


def scoring_identity(stage: str, parents: Sequence[str], cell: Mapping[str, Any]) -> str:
    """Return what a stage that was recorded with `cell` has in common with those that differ from it in their tasks
    alone: the kind, the network and the settings."""
    network = cell.get(NETWORK)
    if network and not missing(NETWORK):
        kind = part(NETWORK)
        network = kind(**{own.name: network[own.name] for own in fields(kind) if own.name in network}).identity()
    section = cell.get(stage) or {}
    settings = {name: value for name, value in section.items() if name != "tasks"}
    return json.dumps([stage, parents, network, settings], sort_keys=True)


def checkpoint_code(runs: Path, key: str) -> str:
    """Return the code version of the attempt that wrote the newest checkpoint, "" if unknown."""
    newest = newest_checkpoint(runs, key)
    try:
        return AttemptDir(newest.parents[1]).read_attempt().code if newest else ""
    except (OSError, GpasError):
        return ""
