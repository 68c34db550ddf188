"""What the commands that run cells share: the plan, the question, the run and its outcome, in text and as JSON.

`gpas run grid`, `train` and `retry` print the same document, run the same --notify command and exit with the
same codes; the smoke test of --shrink is planned by `gpas plan` and run by `gpas run grid`.
"""

import json
import os
import shlex
import subprocess
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.text import Text

from gpas_cli.cli.console import STATE, confirm, console, print_json, say, warn
from gpas_cli.cli.options import SUMMARY_VARIABLE, RunOptions
from gpas_cli.cli.selection import experiments, project, without_runs
from gpas_cli.cli.views.plan import ShrunkJson, document, grids_of, headline, render, render_shrunk
from gpas_cli.cli.views.states import CellNameJson
from gpas_cli.data import stdlib
from gpas_cli.errors import Exit, GpasError
from gpas_cli.extension import extensions
from gpas_cli.grid.declared import Entry
from gpas_cli.grid.select import names_in
from gpas_cli.grid.variant import SEPARATOR, changes, one_seed, shrink
from gpas_cli.plan.plan import Plan
from gpas_cli.plan.plan import plan as make_plan
from gpas_cli.project import Project
from gpas_cli.schedule import scheduler as schedulers
from gpas_cli.schedule.scheduler import Item, RunRequest, RunSummary, Scheduler, Submitted, choose
from gpas_cli.spec.section import Tiny
from gpas_cli.spec.stage import called
from gpas_cli.state.claims import LOCAL
from gpas_cli.state.status import OUTCOMES, RETRIED
from gpas_cli.store.snapshot import current_code
from gpas_cli.structure import FLAT, OPTIONAL, CellStateJson, Document, DocumentJson, Number, plain
from gpas_cli.words import count, grouped, listed

WITHOUT_RESULT = (*OUTCOMES[1:], "skipped")  # how cells without a result end
_ASK_ABOVE_HOURS = 1.0
_NAMED = 3  # cells named in one line of the summary
_NOTIFY_SECONDS = 60.0  # time limit of the --notify command


def words_of(names: Sequence[str] | None, where: Sequence[str] | None) -> list[str]:
    """Return the words that select the same cells in another command."""
    return [*(names or ()), *(word for condition in where or () for word in ("--where", condition))]


def plan_for(scheduler: Scheduler, chosen: list[Entry], retry: Collection[str] = ()) -> Plan:
    """Return the plan of running these cells with a scheduler, with the jobs that it runs before them."""
    here = project()
    prepare = partial(scheduler.prepare, here)
    return make_plan(here.runs, chosen, retry=retry, machine=scheduler.machine(), project=here, prepare=prepare)


def plan_shrunk(
    chosen: Sequence[Entry], where: Sequence[str] | None, executor: str, asked: Sequence[str], cells: bool | None = None
) -> Plan:
    """Show and return the plan of running cells in tiny form, as if their text were written.

    `where` and `executor` are as for `shrunk_cells`, `cells` and `asked` as for `render`.
    """
    here, scheduler, tiny, shrunk = shrunk_cells(chosen, where, executor)
    planned = make_plan(here.runs, tiny, retry=RETRIED, machine=scheduler.machine())
    if STATE.as_json:
        print_json(document(planned, shrunk=shrunk))
    else:
        say(render_shrunk(shrunk))
        say(render(planned, cells=cells, asked=[*(asked or grids_of(planned)), "--shrink"]))
    return planned


def shrunk_cells(
    chosen: Sequence[Entry], where: Sequence[str] | None, executor: str
) -> tuple[Project, Scheduler, list[Entry], ShrunkJson]:
    """Return the project of a smoke test of cells, its scheduler, their tiny forms, and what was shrunk.

    Of cells that differ only in the seed, one is taken, unless a condition in `where` names seeds. The project is
    in a folder of the code's version, so that a change of the code runs all cells again. `executor`: auto is this
    machine.
    """
    whole = list(chosen) if "seed" in names_in(where or ()) else one_seed(chosen)
    here = project()
    root = here.config.parent
    folder = root / ".gpas" / "shrunk" / current_code(extensions())
    names = (stdlib.TRAINING_TEXT, stdlib.VALIDATION_TEXT, stdlib.FINETUNING_RECORDS)
    training, validation, records = (str((folder / name).relative_to(root)) for name in names)
    text = Tiny(training, validation, records)
    nodes = executor not in ("auto", LOCAL)
    tiny = shrink(whole, text, experiments().catalogue, nodes=nodes)
    left_out = len(chosen) - len(whole)
    shrunk = ShrunkJson(folder=folder, left_out=left_out, settings=changes(whole, tiny))
    # The project of shrunk cells shares only the experiments file with this one.
    apart = replace(here, runs=folder / "runs", cache=folder / "cache", database=str(folder / "gpas.db"))
    return apart, choose(executor if nodes else LOCAL, apart.runs)[0], tiny, shrunk


def run_entries(
    chosen: list[Entry],
    options: RunOptions,
    *,
    dry_run: bool = False,
    retry: Collection[str] = (),
    words: Sequence[str] = (),
) -> None:
    """Plan, ask for confirmation, run, and exit with the code of the outcome. `words` selected the cells."""
    here = project()
    lost = without_runs(chosen)
    if lost and not dry_run:
        raise GpasError(f"{lost}; to train these cells again anyway, move the database away")
    warn(lost)
    scheduler, choice_note = choose(options.executor, here.runs)
    planned = plan_for(scheduler, chosen, retry)
    if dry_run:
        say(render(planned, asked=words))
        for text in scheduler.preview(here, planned.jobs):
            say(text)
        if STATE.as_json:
            print_json(document(planned))
        raise typer.Exit(planned.exit_code)
    say(f"{choice_note}\n{headline(planned)}" if choice_note else headline(planned))
    confirm_start(planned, f"Start {count(len(planned.jobs), 'job')}?", options.yes)
    submitted, summary = _run(scheduler, here, chosen, options, retry, words)
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


def run_to_end(
    scheduler: Scheduler, here: Project, cells: Sequence[Entry], options: RunOptions, retry: Collection[str] = ()
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
    options: RunOptions,
    retry: Collection[str],
    words: Sequence[str] = (),
) -> tuple[Submitted | None, RunSummary | None]:
    """Submit the cells, and wait for them if the scheduler needs this process or if asked to. `words` selected the
    cells.

    Return what was submitted, None if the jobs ran in the foreground, and how they ended, None if not waited for.
    """
    from gpas_cli.cli.views import progress  # a dry run does without

    waits = scheduler.foreground or options.wait
    results = partial(progress.results_so_far, here, chosen)
    with progress.make_reporter(console(), results) if waits else nullcontext(progress.Notices()) as reporter:
        request = RunRequest(
            project=here, entries=chosen, retry=retry, at_once=options.jobs, reporter=reporter,
            stop_at_failure=options.stop_at_first_failure,
        )  # fmt: skip
        run = scheduler.submit(request)
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
    say(Text.assemble((counts_of(summary), "bold"), *shown))
    if varied:
        say("No grid declares cells with settings of the command line. `gpas table` and `gpas status`")
        say("show them if the settings follow the name of the grid, as in optim.lr=3e-3.")
    if summary.interrupted:
        say("Run the same command to resume from the last checkpoints.")
    if summary.failed:
        say("`gpas logs CELL` shows why a cell failed; `gpas retry` runs failed and cancelled cells again.")
    elif summary.cancelled:
        say("`gpas retry` runs cancelled cells again.")


def _print_reasons(summary: RunSummary) -> None:
    """Print why cells have no result."""
    for name in WITHOUT_RESULT:
        by_reason = grouped((item.reason, item.entry.id) for item in getattr(summary, name))
        for reason, ids in by_reason.items():
            say(f"{name}: {listed(ids, _NAMED)}{reason and f': {reason}'}")


def counts_of(summary: RunSummary) -> str:
    return ", ".join(f"{len(items)} {name}" for name, items in vars(summary).items() if items) or "nothing to do"


class _SubmittedArrayJson(Document):
    """One SLURM job array."""

    name: str
    job: Annotated[str, "SLURM's id, empty when it is not known"]
    elements: int


class _SubmittedJson(Document):
    """What was submitted to SLURM."""

    arrays: Sequence[_SubmittedArrayJson]
    jobs: int
    followed: Annotated[int, "stages that were already queued or running"]
    left: Annotated[int, "stages that SLURM has no room for yet"]
    failed_before: Annotated[int, "stages that wait for `gpas retry`"]
    blocked: Annotated[int, "stages whose parent failed"]


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
    """`gpas run grid --json`, train and retry; also what the command of --notify reads.

    Without --wait, jobs that SLURM runs have not ended: `cells` is then empty, `submitted` says what was submitted.
    """

    exit_code: Annotated[int, (0, 3, 4)]
    counts: Annotated[Mapping[str, int], "the number of cells in each state"]
    cells: Sequence[_RunCellJson]
    submitted: _SubmittedJson | None
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
    sent = _submitted_json(submitted) if submitted else None
    made = RunJson(exit_code=code.value, counts=counts, cells=cells, submitted=sent, shrunk=shrunk)
    if notify and summary is None:
        say("--notify: the jobs are still running; add --wait to be notified when they end", style="yellow")
    exit_with(made, code, notify if summary else None, one_line(made))


def exit_with(document: DocumentJson, code: Exit, notify: str | None, line: str) -> NoReturn:
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
    environment = {**os.environ, SUMMARY_VARIABLE: line}
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
        cell=CellNameJson.of(item.entry), state=state, skipped=ending == "skipped", reason=item.reason,
        attempt=item.status.attempt, directory=item.status.directory, metrics=item.status.metrics,
    )  # fmt: skip


def _submitted_json(done: Submitted) -> _SubmittedJson:
    arrays = [_SubmittedArrayJson(name=one.name, job=one.job, elements=one.elements) for one in done.batches]
    return _SubmittedJson(
        arrays=arrays, jobs=done.jobs, followed=done.followed, left=len(done.left), failed_before=done.over,
        blocked=len(done.blocked),
    )  # fmt: skip
