"""The stages that train: pretraining, the first stage of every cell, and finetuning."""

import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from gpas_cli.events import Emit, Evaluation, Event, Layers, Outcome, Skipped, Spike, Step
from gpas_cli.state import locks
from gpas_cli.state.attempt import alive_path
from gpas_cli.state.outputs import last_checkpoint, recorded_events, text_of
from gpas_cli.state.rerun import deciding
from gpas_cli.store.records import Trunk
from gpas_cli.store.rundir import AttemptDir
from gpas_cli.train.checkpoint import discard
from gpas_cli.train.finetune import finetune
from gpas_cli.train.sinks import Subject, opened
from gpas_cli.train.training import Execution, RunPaths, TrunkStart, train
from gpas_cli.worker.stages.context import StageContext

_SETTLED_SECONDS = 3600.0
_OF_UPDATES: tuple[type[Step | Layers | Spike | Skipped | Evaluation], ...] = (Step, Layers, Spike, Skipped, Evaluation)


def _discard_unfinished(earlier: Iterable[AttemptDir]) -> None:
    """Delete the checkpoints that earlier attempts were still writing when they were killed.

    Attempts that may still be alive are skipped: those whose lock is held and, if the state of the lock is unknown,
    those whose checkpoints have changed within the last SETTLED_SECONDS seconds.
    """
    for attempt in filter(_is_over, earlier):
        discard(attempt.checkpoints)


def _is_over(attempt: AttemptDir) -> bool:
    lock = locks.probe(alive_path(attempt))
    if lock in (locks.Lock.FREE, locks.Lock.HELD):
        return lock is locks.Lock.FREE
    with suppress(OSError):
        return time.time() - attempt.checkpoints.stat().st_mtime > _SETTLED_SECONDS
    return False


def run_paths(stage: StageContext) -> RunPaths:
    """Return the folders of the attempt, after deleting the checkpoints that earlier ones did not finish."""
    here = stage.directory
    earlier = [attempt for attempt in deciding(stage.runs, stage.attempt.key) if attempt.number < here.number]
    if stage.world.leads:
        _discard_unfinished(earlier)
    before = [attempt.checkpoints for attempt in earlier]
    trunk = _start(stage.runs, stage.attempt.trunk) if stage.attempt.trunk else None
    return RunPaths(here.checkpoints, before, cache=stage.cache, root=stage.root, code=stage.attempt.code, trunk=trunk)


def _start(runs: Path, trunk: Trunk) -> TrunkStart:
    """Return where a training starts that shares its first updates. Raises GpasError without the last checkpoint."""
    checkpoint = last_checkpoint(runs, trunk.key)

    def events(until: int) -> Iterator[Event]:
        # Of several events for an update, that of the later attempt counts.
        recorded = recorded_events(runs, trunk.key, *_OF_UPDATES)
        newest = {(type(event), event.step): event for event in recorded if event.step <= until}
        yield from sorted(newest.values(), key=lambda event: event.step)

    return TrunkStart(trunk.key, checkpoint.parent, events)


def all_recipients(stage: StageContext) -> AbstractContextManager[Emit]:
    """Return a context with an `Emit` for the journal and the sinks that the attempt asks for."""
    attempt = stage.attempt
    here = stage.directory
    subject = Subject(attempt.grid, attempt.name, attempt.key, here.number, here.path, attempt.cell)
    # Only the first process has a journal and reports to others.
    return opened(attempt.watch, subject, stage.root, stage.emit, leads=stage.world.leads)


def execution(stage: StageContext) -> Execution:
    attempt = stage.attempt
    return Execution(attempt.cadence, stage.stop, attempt.resources, stage.world, attempt.watch)


def run_pretraining(stage: StageContext) -> Outcome:
    """Train the cell's network, resuming from the newest sound checkpoint of earlier attempts. Collective."""
    teacher = stage.cell.teacher()
    before = last_checkpoint(stage.runs, teacher.trained.key) if teacher else None
    tokenizer = text_of(before).tokenizer if before else None
    with all_recipients(stage) as emit:
        return train(stage.cell, run_paths(stage), emit, execution(stage), before, tokenizer)


def run_finetuning(stage: StageContext) -> Outcome:
    """Finetune the network, resuming from the newest sound checkpoint of earlier attempts. Collective."""
    pretrained = stage.trained_checkpoint()
    tokenizer = text_of(pretrained).tokenizer
    with all_recipients(stage) as emit:
        return finetune(stage.cell, pretrained, run_paths(stage), emit, execution(stage), tokenizer)
