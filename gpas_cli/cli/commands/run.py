"""`gpas run grid`: run every cell of a grid that has no result; `gpas train`: run one cell in the foreground.

The other commands that run cells share its options, its JSON document, its --notify command and its exit codes.
"""

import json
import os
import shlex
import subprocess
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.text import Text
from typer.core import TyperGroup

from gpas_cli.cli import options as shared
from gpas_cli.cli.commands.plan import DryRun, Shrink, asked, plan_for, plan_shrunk, print_site, shrunk_cells
from gpas_cli.cli.commands.table import table_entries
from gpas_cli.cli.console import STATE, confirm, console, print_json, say, warn
from gpas_cli.cli.selection import experiments, find_cells, project, varied_entries, without_runs
from gpas_cli.cli.views import progress
from gpas_cli.cli.views.plan import ShrunkJson, document, headline, render, render_shrunk
from gpas_cli.cli.views.states import name_json
from gpas_cli.data.stdlib import write_sample
from gpas_cli.documents import CellNameJson, CellStateJson, DocumentJson
from gpas_cli.errors import Exit, GpasError
from gpas_cli.grid.declared import Entry
from gpas_cli.grid.variant import SEPARATOR
from gpas_cli.plan.plan import Plan
from gpas_cli.project import Project
from gpas_cli.report.tables.table_place import RETRIED
from gpas_cli.schedule import scheduler as schedulers
from gpas_cli.schedule.scheduler import Item, RunRequest, RunSummary, Scheduler, Submitted, scheduler_named
from gpas_cli.spec.stage import called
from gpas_cli.state.claims import LOCAL
from gpas_cli.state.observe import cell_statuses
from gpas_cli.state.status import ALIVE, OUTCOMES, RESULTS, CellStatus
from gpas_cli.store.history import note, read
from gpas_cli.structure import FLAT, OPTIONAL, Document, Number, plain
from gpas_cli.words import count, listed


class _RunGroup(TyperGroup):
    """A command group that reads `gpas run GRID` as `gpas run grid GRID`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = ["grid", *args]
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Return the commands and the grids that begin with `incomplete`."""
        item = type(super().shell_complete(ctx, "")[0])
        return [*super().shell_complete(ctx, incomplete), *map(item, shared.complete_grid(incomplete))]


app = typer.Typer(help="Run cells: `gpas run GRID` means `gpas run grid GRID`.", cls=_RunGroup, no_args_is_help=True)

_ASK_ABOVE_HOURS = 1.0
_NAMED = 3  # cells named in one line of the summary
_NOTIFY_SECONDS = 60.0  # time limit of the --notify command
_PROFILED_UPDATES = 5
_WITHOUT_RESULT = (*OUTCOMES[1:], "skipped")  # how cells without a result end


@app.command("grid")
@shared.with_run_options
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
    dry_run: DryRun = False,
    test_only: Annotated[
        bool, typer.Option("--test-only", help="SLURM: print when jobs would start; submit nothing.")
    ] = False,
    shrink: Shrink = False,
    *,
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

    Example: [bold]gpas run grid quickstart --where gate=gpas[/bold]
    """
    if for_table and names:
        raise GpasError(f"--for-table chooses the grids of table {for_table}; leave out {shlex.join(names)}")
    chosen = varied_entries(names, where) if for_table is None else table_entries(for_table, where)
    if shrink:
        if test_only:
            raise GpasError("--shrink starts its jobs; leave out --test-only")
        if dry_run:
            raise typer.Exit(plan_shrunk(chosen, where, options.executor, asked(names, where)).exit_code)
        _run_shrunk(chosen, where, options)
    run_entries(chosen, options, dry_run=dry_run, test_only=test_only, words=asked(names, where))


def run_entries(
    chosen: list[Entry],
    options: shared.RunOptions,
    *,
    dry_run: bool = False,
    test_only: bool = False,
    retry: Collection[str] = (),
    words: Sequence[str] = (),
    how: str = "",
) -> None:
    """Plan, ask for confirmation, run, and exit with the code of the outcome. `words` selected the cells, and `how`
    says in the history how they are run.
    """
    here = project()
    lost = without_runs(chosen)
    if lost and not dry_run:
        raise GpasError(f"{lost}; to train these cells again anyway, move the database away")
    warn(lost)
    scheduler, choice_note = schedulers.choose(options.executor, here.runs)
    planned = plan_for(scheduler, chosen, retry)
    if dry_run:
        say(render(planned, asked=words))
        print_site(chosen)
        for text in scheduler.preview(here, planned.jobs):
            say(text)
        if STATE.as_json:
            print_json(document(planned))
        raise typer.Exit(planned.exit_code)
    if test_only:
        for text in scheduler.ask_start(here, planned.jobs):
            say(text)
        return
    say(f"{choice_note}\n{headline(planned)}" if choice_note else headline(planned))
    read(here.runs)  # an error if the history is a link or a FIFO, before anything is done
    confirm_start(planned, f"Start {count(len(planned.jobs), 'job')}?", options.yes)
    started = partial(note, here.runs, "retry" if retry else "run", [job.id for job in planned.jobs], how)
    submitted, summary = _run(scheduler, here, chosen, options, retry, started if planned.jobs else None, words)
    if summary:
        _conclude(summary, words)
    finish(summary, options.notify, submitted)


def confirm_start(planned: Plan, question: str, yes: bool) -> None:
    """Print the warnings about a plan and, if it takes long, ask for confirmation.

    Raises GpasError if what its jobs write certainly does not fit on the disks.
    """
    if planned.overflows and planned.startable:  # what cannot run for other reasons is refused with these
        raise GpasError("\n".join(planned.overflows))
    for warning in planned.warnings:
        say(warning, style="yellow")
    guess = planned.estimate
    hours = guess.gpu_hours + guess.core_hours if guess.wall_hours is None else guess.wall_hours
    if hours > _ASK_ABOVE_HOURS:
        confirm(question, yes)


def _run_shrunk(chosen: Sequence[Entry], where: Sequence[str] | None, options: shared.RunOptions) -> NoReturn:
    """Run cells in tiny form, print which fail and why, and exit with the code of the outcome."""
    here, scheduler, tiny, shrunk = shrunk_cells(chosen, where, options.executor)
    write_sample(shrunk.folder)
    say(render_shrunk(shrunk))
    summary = run_to_end(scheduler, here, tiny, options, RETRIED)
    for item in summary.failed:
        say(f"{item.entry.id}: log in {item.status.directory}")
    say(_counts(summary), style="bold")
    finish(summary, options.notify, shrunk=shrunk)


def run_to_end(
    scheduler: Scheduler, here: Project, cells: Sequence[Entry], options: shared.RunOptions, retry: Collection[str] = ()
) -> RunSummary:
    """Run cells, wait for them, also on SLURM, and print why cells have no result. `retry` is as for `RunRequest`."""
    _, summary = _run(scheduler, here, cells, replace(options, wait=True), retry)
    assert summary is not None  # waited for
    _print_reasons(summary)
    return summary


def _run(
    scheduler: Scheduler,
    here: Project,
    chosen: Sequence[Entry],
    options: shared.RunOptions,
    retry: Collection[str],
    started: Callable[[], None] | None = None,
    words: Sequence[str] = (),
) -> tuple[Submitted | None, RunSummary | None]:
    """Submit the cells, and wait for them if the scheduler needs this process or if asked to. `started` is called when
    they have been submitted. `words` selected the cells.

    Return what was submitted, None if the jobs ran in the foreground, and how they ended, None if not waited for.
    """
    waits = scheduler.foreground or options.wait
    results = partial(progress.results_so_far, here, chosen)
    with progress.make_reporter(console(), results) if waits else nullcontext(progress.Notices()) as reporter:
        run = scheduler.submit(
            RunRequest(project=here, entries=chosen, retry=retry, at_once=options.jobs, reporter=reporter)
        )
        if started:
            started()
        submitted = None if scheduler.foreground else run.submitted
        if submitted:
            progress.print_submitted(submitted, chosen, words)
        if not waits:
            return submitted, None
        with schedulers.stop_on_signals(run):
            return submitted, run.follow()


def _conclude(summary: RunSummary, words: Sequence[str]) -> None:
    """Print how the cells ended and what to do next. `words` selected them, if they are cells of grids."""
    _print_reasons(summary)
    ended = [item.entry for items in vars(summary).values() for item in items]
    grids = list(dict.fromkeys(entry.grid for entry in ended))
    varied = any(SEPARATOR in entry.name for entry in ended)
    named = words if varied else grids
    tables = [experiments().grids[name].table for name in grids]
    paper = " --paper" if any(table and table.published for table in tables) else ""
    shown = (". Table: ", (f"gpas table {shlex.join(named)}{paper}", "bold")) if named or not varied else (".",)
    say(Text.assemble((_counts(summary), "bold"), *shown))
    if varied:
        say("No grid declares cells with settings of the command line. `gpas table`, `gpas status` and")
        say("`gpas top` show them if the settings follow the name of the grid, as in optim.lr=3e-3.")
    if summary.interrupted:
        say("Run the same command to resume from the last checkpoints.")
    if summary.failed:
        say("`gpas logs CELL` shows why a cell failed; `gpas retry` runs failed and cancelled cells again.")
    elif summary.cancelled:
        say("`gpas retry` runs cancelled cells again.")


def _print_reasons(summary: RunSummary) -> None:
    """Print why cells have no result."""
    for name in _WITHOUT_RESULT:
        by_reason: dict[str, list[str]] = {}
        for item in getattr(summary, name):
            by_reason.setdefault(item.reason, []).append(item.entry.id)
        for reason, ids in by_reason.items():
            say(f"{name}: {listed(ids, _NAMED)}{reason and f': {reason}'}")


def _counts(summary: RunSummary) -> str:
    return ", ".join(f"{len(items)} {name}" for name, items in vars(summary).items() if items) or "nothing to do"


def train(
    cell: shared.Cell,
    settings: shared.Settings = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Profile a few updates: write a Chrome trace and a table of operators.")
    ] = False,
    tensorboard: Annotated[
        Path | None, typer.Option("--tensorboard", help="Also write TensorBoard events to this folder.")
    ] = None,
    wandb: Annotated[str | None, typer.Option("--wandb", help="Also log to this Weights & Biases project.")] = None,
    notify: shared.Notify = None,
    as_json: shared.AsJson = False,
) -> None:
    """Run one cell in the foreground. It is recorded like any run: `gpas status` and `gpas table` show it.

    Resumes from the last checkpoint if there is one, even after a failure, and runs prerequisites first. Ctrl-C saves a
    checkpoint and exits; a second Ctrl-C kills the job. Refuses a cell that has a result or is running elsewhere.

    Settings such as optim.lr=3e-3 make a different cell with its own key; `gpas explain` accepts them too.

    Exit code 0 if the cell has a result, 3 if it was interrupted, 4 if it failed.

    Example: [bold]gpas train pre-gpas-s1 optim.lr=3e-3 --profile[/bold]
    """
    for argument in settings or ():
        if "=" not in argument:
            raise typer.BadParameter(f"'{argument}' is not a setting such as optim.lr=3e-3; `gpas train` runs one cell")
    words = [cell, *(settings or ())]
    (entry,) = find_cells(words)
    _refuse(cell_statuses(project().runs, [entry])[0])
    watch = replace(
        entry.watch,
        profile=_PROFILED_UPDATES if profile else entry.watch.profile,
        tensorboard=str(tensorboard.absolute()) if tensorboard else entry.watch.tensorboard,
        wandb=wandb or entry.watch.wandb,
    )
    summary = _train(replace(entry, watch=watch))
    for name in _WITHOUT_RESULT:
        for item in getattr(summary, name):
            say(f"{name}: {item.reason or item.status.evidence}")
            if name in ("interrupted", "skipped"):
                say(f"`{shlex.join(['gpas', 'train', *words])}` resumes from the last checkpoint.")
    finish(summary, notify)


def _refuse(state: CellStatus) -> None:
    """Raise GpasError for a cell that has a result or is queued or running."""
    name = state.entry.id
    if state.state in RESULTS:
        raise GpasError(f"{name} is {state.state} in attempt {state.attempt}; `gpas why {name}` shows its result")
    if state.state in ALIVE:
        remedy = f"`gpas logs {name} -f` follows it, `gpas cancel {name}` stops it"
        raise GpasError(f"{name} is already {state.state} ({state.evidence}); {remedy}")


def _train(entry: Entry) -> RunSummary:
    here = project()
    with progress.make_train_reporter(console()) as reporter:
        request = RunRequest(project=here, entries=[entry], retry=RETRIED, reporter=reporter)
        run = scheduler_named(LOCAL, here.runs).submit(request)
        if not run.submitted.jobs:  # another process claimed it first
            run.stop()  # nothing to wait for, also if that process has just ended
            _refuse(cell_statuses(here.runs, [entry])[0])
        with schedulers.stop_on_signals(run):
            return run.follow()


class _RunCellJson(Document):
    """The result of a run for one cell."""

    cell: CellNameJson = field(metadata=FLAT)
    state: CellStateJson
    skipped: Annotated[bool, "whether the run ended without starting the cell"]
    reason: Annotated[str, "why there is no result, empty for a result of this run"]
    attempt: int | None
    directory: Path | None
    metrics: Mapping[str, Number]


class RunJson(DocumentJson):
    """`gpas run grid --json`, train, retry and rerun; also what the command of --notify reads.

    Without --wait, jobs that SLURM runs have not ended: `cells` is then empty, `submitted` says what was submitted.
    """

    exit_code: Annotated[int, (0, 3, 4)]
    counts: Annotated[Mapping[str, int], "the number of cells in each state"]
    cells: Sequence[_RunCellJson]
    submitted: progress.SubmittedJson | None
    shrunk: Annotated[ShrunkJson | None, "with --shrink"] = field(default=None, metadata=OPTIONAL)


def finish(
    summary: RunSummary | None,
    notify: str | None = None,
    submitted: Submitted | None = None,
    shrunk: ShrunkJson | None = None,
) -> NoReturn:
    """Exit with the code of `summary`, or with 0 if `summary` is None because the submitted jobs are still running.

    `shrunk`: what was shrunk for a smoke test.
    """
    code = schedulers.exit_code(summary) if summary else Exit.DONE
    endings = vars(summary).items() if summary else ()
    cells = [_cell(item, ending) for ending, items in endings for item in items]
    counts = dict(Counter("skipped" if cell.skipped else cell.state for cell in cells))
    sent = progress.submitted_json(submitted) if submitted else None
    made = RunJson(exit_code=code.value, counts=counts, cells=cells, submitted=sent, shrunk=shrunk)
    if notify and summary is None:
        say("--notify: the jobs are still running; add --wait to be notified when they end", style="yellow")
    end(made, code, notify if summary else None, one_line(made))


def end(document: DocumentJson, code: Exit, notify: str | None, line: str) -> NoReturn:
    """Print the document with --json, run the --notify command with it and a summary line, and exit with `code`."""
    if STATE.as_json:
        print_json(document)
    if notify:
        run_notify(notify, document, line)
    raise typer.Exit(code)


def one_line(run: RunJson) -> str:
    """Return the document `Run` as a line: "gpas: 20 done, 2 failed of quickstart"."""
    counts = ", ".join(f"{number} {name}" for name, number in run.counts.items())
    grids = ", ".join(dict.fromkeys(cell.cell.grid for cell in run.cells))
    return f"gpas: {counts or 'nothing to do'}{f' of {grids}' if grids else ''}"


def run_notify(command: str, document: DocumentJson, line: str) -> None:
    """Run the --notify command. Names from the experiments file reach it only as data, never as shell text."""
    environment = {**os.environ, shared.SUMMARY_VARIABLE: line}
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", command], input=json.dumps(plain(document), allow_nan=False), text=True,
            capture_output=True, timeout=_NOTIFY_SECONDS,
            env=environment, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        say(f"warning: --notify: {error}", style="yellow")
        return
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        say(f"warning: --notify: the command exited with code {done.returncode}: {reason}", style="yellow")


def _cell(item: Item, ending: str) -> _RunCellJson:
    state = called(item.status.state, item.status.metrics)
    return _RunCellJson(
        cell=name_json(item.entry), state=state, skipped=ending == "skipped", reason=item.reason,
        attempt=item.status.attempt, directory=item.status.directory, metrics=item.status.metrics,
    )  # fmt: skip
