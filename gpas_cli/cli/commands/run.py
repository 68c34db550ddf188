"""`gpas run grid`: run every cell of a grid that has no result; `gpas train`: run one cell in the foreground."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, NoReturn

import typer

from gpas_cli.cli import options as shared
from gpas_cli.cli import running
from gpas_cli.cli.console import console, say
from gpas_cli.cli.selection import find_cells, project, varied_entries
from gpas_cli.cli.views.plan import render_shrunk
from gpas_cli.data.stdlib import write_sample
from gpas_cli.errors import GpasError
from gpas_cli.grid.declared import Entry
from gpas_cli.schedule import scheduler as schedulers
from gpas_cli.schedule.scheduler import RunRequest, RunSummary, scheduler_named
from gpas_cli.state.claims import LOCAL
from gpas_cli.state.observe import cell_statuses
from gpas_cli.state.status import ALIVE, RESULTS, RETRIED, CellStatus

app = typer.Typer(
    help="Run the cells of a grid that have no result.\n\n`gpas run GRID` means `gpas run grid GRID`.",
    cls=shared.WithUsual,
    no_args_is_help=True,
)

_PROFILED_UPDATES = 5


@app.command("grid")
@shared.with_grouped_options
def run_grid(
    names: shared.NamesAndSettings = None,
    where: shared.Where = None,
    for_table: Annotated[
        str | None,
        typer.Option(
            "--for-table",
            metavar="[SOURCE:]NUMBER",
            help="Run the cells of a paper's table: 2, gpas:3.",
            autocompletion=shared.complete_printed,
        ),
    ] = None,
    dry_run: shared.DryRun = False,
    shrink: shared.Shrink = False,
    *,
    sinks: shared.Sinks,
    options: shared.RunOptions,
) -> None:
    """Run every cell of a grid that has no result yet. Running a grid twice is free.

    On this machine, the command waits for the jobs. On SLURM, it submits them as job arrays and exits with code 0; with
    --wait it stays, keeps the queue filled and resubmits interrupted jobs.

    Cells that another `gpas run` is running are followed, not run again. Interrupted cells resume from their last
    checkpoint; failed and cancelled cells wait for `gpas retry`. Ctrl-C asks jobs of this machine to save and exit, and
    a second Ctrl-C kills them; jobs of SLURM keep running.

    With --shrink, every cell trains for two updates, with its scheme, gate, schedules and stages but a tiny width, text
    and batch: a smoke test, which writes to .gpas/shrunk and leaves the project's results alone. Jobs run on this
    machine, or with --executor slurm on the nodes that the cells ask for; the command waits for them.

    Exit code 0 if all cells are done, 3 if some are not, 4 if some failed.

    Example: gpas run grid quickstart --where gate=gpas
    """
    if for_table and names:
        raise GpasError(f"--for-table chooses the grids of table {for_table}; leave out {shlex.join(names)}")
    if for_table is None:
        chosen = varied_entries(names, where)
    else:
        from gpas_cli.cli.printed import cells_of_table  # reads the papers' tables

        chosen = cells_of_table(for_table, where)
    chosen = [sinks.added_to(entry) for entry in chosen]
    if shrink:
        if dry_run:
            raise typer.Exit(
                running.plan_shrunk(chosen, where, options.executor, running.words_of(names, where)).exit_code
            )
        _run_shrunk(chosen, where, options)
    running.run_entries(chosen, options, dry_run=dry_run, words=running.words_of(names, where))


def _run_shrunk(chosen: Sequence[Entry], where: Sequence[str] | None, options: shared.RunOptions) -> NoReturn:
    """Run cells in tiny form, print which fail and why, and exit with the code of the outcome."""
    here, scheduler, tiny, shrunk = running.shrunk_cells(chosen, where, options.executor)
    write_sample(shrunk.folder)
    say(render_shrunk(shrunk))
    summary = running.run_to_end(scheduler, here, tiny, options, RETRIED)
    for item in summary.failed:
        say(f"{item.entry.id}: log in {item.status.directory}")
    say(running.counts_of(summary), style="bold")
    running.finish(summary, options.notify, shrunk=shrunk)


@shared.with_grouped_options
def train(
    cell: shared.Cell,
    settings: shared.Settings = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Profile a few updates: write a Chrome trace and a table of operators.")
    ] = False,
    notify: shared.Notify = None,
    as_json: shared.AsJson = False,
    *,
    sinks: shared.Sinks,
) -> None:
    """Train one cell in the foreground, as it is or varied.

    It is recorded like any run: `gpas status` and `gpas table` show it.

    Resumes from the last checkpoint if there is one, even after a failure, and runs prerequisites first. Ctrl-C saves a
    checkpoint and exits; a second Ctrl-C kills the job. Refuses a cell that has a result or is running elsewhere.

    Settings such as optim.lr=3e-3 make a different cell with its own key; `gpas explain` accepts them too.

    Exit code 0 if the cell has a result, 3 if it was interrupted, 4 if it failed.

    Example: gpas train pre-gpas-s1 optim.lr=3e-3 --profile
    """
    for argument in settings or ():
        if "=" not in argument:
            raise typer.BadParameter(f"'{argument}' is not a setting such as optim.lr=3e-3; `gpas train` runs one cell")
    words = [cell, *(settings or ())]
    (entry,) = find_cells(words)
    _refuse(cell_statuses(project().runs, [entry])[0])
    watch = replace(entry.watch, profile=_PROFILED_UPDATES if profile else entry.watch.profile)
    summary = _train(sinks.added_to(replace(entry, watch=watch)))
    for name in running.WITHOUT_RESULT:
        for item in getattr(summary, name):
            say(f"{name}: {item.reason or item.status.evidence}")
            if name in ("interrupted", "skipped"):
                say(f"`{shlex.join(['gpas', 'train', *words])}` resumes from the last checkpoint.")
    running.finish(summary, notify)


def _refuse(state: CellStatus) -> None:
    """Raise GpasError for a cell that has a result or is queued or running."""
    name = state.entry.id
    if state.state in RESULTS:
        raise GpasError(f"{name} is {state.state} in attempt {state.attempt}; `gpas why {name}` shows its result")
    if state.state in ALIVE:
        remedy = f"`gpas logs {name} -f` follows it, `gpas cancel {name}` stops it"
        raise GpasError(f"{name} is already {state.state} ({state.evidence}); {remedy}")


def _train(entry: Entry) -> RunSummary:
    from gpas_cli.cli.views import progress

    here = project()
    with progress.make_train_reporter(console()) as reporter:
        request = RunRequest(project=here, entries=[entry], retry=RETRIED, reporter=reporter)
        run = scheduler_named(LOCAL, here.runs).submit(request)
        if not run.submitted.jobs:  # another process claimed it first
            run.stop()  # nothing to wait for, also if that process has just ended
            _refuse(cell_statuses(here.runs, [entry])[0])
        with schedulers.stop_on_signals(run):
            return run.follow()
