"""Attempts at the stages of a cell, run as a job runs them, in this process."""

from pathlib import Path
from typing import Any

from attempts import make_attempt, write_events
from importance_ranks import TEXTS, save_network

from gpas_cli.events import Event, Outcome, Score, Stop, Warned
from gpas_cli.spec.cell import Cell
from gpas_cli.store.journal import Journal, read
from gpas_cli.store.rundir import AttemptDir
from gpas_cli.train.parallel import ALONE
from gpas_cli.worker.stages.context import StageContext, runner


def new_attempt(folder: Path, cell: Cell, kind: str) -> AttemptDir:
    """Make the next attempt at a stage of a cell in the project of a folder."""
    key = next(stage.key for stage in cell.stages if stage.kind == kind)
    facts = {"cache": str(folder / "cache"), "root": str(folder)}
    return make_attempt(folder / "runs", key, {"stage": kind, "cell": cell.to_mapping(), **facts})


def train(folder: Path, cell: Cell, *facts: Event) -> AttemptDir:
    """Make a training of a cell that has ended, with these events in its journal, and the texts of the cell."""
    for name, text in TEXTS.items():
        (folder / name).write_text(text)
    trained = new_attempt(folder, cell, "pretrain")
    save_network(cell, trained.checkpoints)
    write_events(trained, [*facts, Outcome("done", cell.optim.steps)])
    return trained


def run(cell: Cell, attempt: AttemptDir, stop: Stop = lambda: None) -> Outcome:
    """Run an attempt, and append its outcome to its journal."""
    journal = Journal(attempt.journal_path)
    record = attempt.read_attempt()
    try:
        outcome = runner(cell, record.stage)(StageContext(cell, record, attempt, journal.append, stop, ALONE))
    finally:
        journal.close()
    write_events(attempt, [outcome])
    return outcome


def events(attempt: AttemptDir, kind: type[Any]) -> list[Any]:
    """Return the events of a kind in an attempt's journal."""
    return [line.event for line in read(attempt.journal_path)[0] if isinstance(line.event, kind)]


def scored(attempt: AttemptDir) -> list[str]:
    """Return the tasks, texts or test sets that an attempt scored."""
    return list(dict.fromkeys(event.task for event in events(attempt, Score)))


def warnings(attempt: AttemptDir) -> list[str]:
    return [event.message for event in events(attempt, Warned)]
