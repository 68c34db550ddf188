"""`gpas train`: run one cell in the foreground."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from gpas_cli.cli.console import console
from gpas_cli.cli.options import AsJson, Cell, Settings
from gpas_cli.cli.running import RETRIED, Notify, finish
from gpas_cli.cli.selection import find_cells, project
from gpas_cli.cli.views.progress import make_train_reporter
from gpas_cli.errors import GpasError
from gpas_cli.grid.entry import Entry
from gpas_cli.schedule.scheduler import RunRequest, scheduler_named, stop_on_signals
from gpas_cli.schedule.summary import RunSummary
from gpas_cli.state.claims import LOCAL
from gpas_cli.state.observe import look
from gpas_cli.state.status import ALIVE, OUTCOMES, RESULTS, CellStatus
from gpas_cli.store.refresh import ingest

PROFILED_UPDATES = 5


def train(
    cell: Cell,
    settings: Settings = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Profile a few updates: write a Chrome trace and a table of operators.")
    ] = False,
    tensorboard: Annotated[
        Path | None, typer.Option("--tensorboard", help="Also write TensorBoard events to this folder.")
    ] = None,
    wandb: Annotated[str | None, typer.Option("--wandb", help="Also log to this Weights & Biases project.")] = None,
    notify: Notify = None,
    as_json: AsJson = False,
) -> None:
    """Run one cell in the foreground. It is recorded like any run: `gpas status` and `gpas table` show it.

    Resumes from the last checkpoint if there is one, even after a failure, and runs prerequisites first. Ctrl-C saves a
    checkpoint and exits; a second Ctrl-C kills the job. Refuses a cell that has a result or is running elsewhere.

    Settings such as optim.lr=3e-3 make a different cell with its own key; `gpas explain` accepts them too.

    Exit code 0 if the cell has a result, 3 if it was interrupted, 4 if it failed.

    Example: [bold]gpas train pre-gpas-s1 optim.lr=3e-3 --profile[/bold]
    """
    words = [cell, *_settings(settings or [])]
    (entry,) = find_cells(words)
    _refuse(look(project().runs, [entry])[0])
    watch = replace(
        entry.watch,
        profile=PROFILED_UPDATES if profile else entry.watch.profile,
        tensorboard=str(tensorboard.absolute()) if tensorboard else entry.watch.tensorboard,
        wandb=wandb or entry.watch.wandb,
    )
    summary = _run(replace(entry, watch=watch))
    _conclude(summary, again=shlex.join(["gpas", "train", *words]))
    finish(summary, notify)


def _settings(words: Sequence[str]) -> Sequence[str]:
    for argument in words:
        if "=" not in argument:
            raise typer.BadParameter(f"'{argument}' is not a setting such as optim.lr=3e-3; `gpas train` runs one cell")
    return words


def _refuse(state: CellStatus) -> None:
    """Raise GpasError for a cell that has a result or is queued or running."""
    name = state.entry.id
    if state.state in RESULTS:
        raise GpasError(f"{name} is {state.state} in attempt {state.attempt}; `gpas why {name}` shows its result")
    if state.state in ALIVE:
        remedy = f"`gpas logs {name} -f` follows it, `gpas cancel {name}` stops it"
        raise GpasError(f"{name} is already {state.state} ({state.evidence}); {remedy}")


def _run(entry: Entry) -> RunSummary:

    here = project()
    with make_train_reporter(console()) as reporter:
        request = RunRequest(
            project=here, entries=[entry], retry=RETRIED, reporter=reporter, ingest=lambda: ingest(here)
        )
        run = scheduler_named(LOCAL, here.runs).submit(request)
        if not run.submitted.jobs:  # another process claimed it first
            run.stop()  # nothing to wait for, also if that process has just ended
            _refuse(look(here.runs, [entry])[0])
        with stop_on_signals(run):
            return run.follow()


def _conclude(summary: RunSummary, again: str) -> None:

    for name in (*OUTCOMES[1:], "skipped"):
        for item in getattr(summary, name):
            console().print(f"{name}: {item.reason or item.status.evidence}", markup=False)
            if name in ("interrupted", "skipped"):
                console().print(f"`{again}` resumes from the last checkpoint.", markup=False)
