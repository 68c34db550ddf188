"""`gpas cancel`, `retry` and `forget`: stop cells, run them again, or retire their results."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated

import typer

from gpas_cli.cli.console import confirm, print_json, say, warn
from gpas_cli.cli.options import AsJson, CellsOrGrids, DryRun, RunOptions, Where, Yes, with_grouped_options
from gpas_cli.cli.running import finish, run_entries
from gpas_cli.cli.selection import (
    cells_or_grids,
    chosen_cells,
    entries,
    experiments,
    project,
    trunks_among,
    undeclared_cells,
)
from gpas_cli.cli.views.progress import result
from gpas_cli.cli.views.states import CellNameJson, evidence, once
from gpas_cli.errors import Exit, GpasError, nearest
from gpas_cli.grid.declared import Entry
from gpas_cli.grid.variant import with_resources
from gpas_cli.plan.texts import awaited
from gpas_cli.report.recorded import rows_through, stage_keys
from gpas_cli.schedule.scheduler import RunSummary
from gpas_cli.schedule.scheduler import cancel as request
from gpas_cli.spec.extensions import main_result
from gpas_cli.state.claim_set import run_again
from gpas_cli.state.cleanup import forget as retire
from gpas_cli.state.cleanup import restore
from gpas_cli.state.observe import cell_statuses, observe, statuses
from gpas_cli.state.status import ALIVE, RESULTS, RETRIED, CellStatus
from gpas_cli.store.refresh import ingest, results_of
from gpas_cli.store.rundir import AttemptDir, attempts
from gpas_cli.structure import FLAT, Document, DocumentJson, StateJson
from gpas_cli.words import count, listed

_ASK_ABOVE = 3  # cells
_NAMED = 20  # cells that are listed before the confirmation, or in a message


class _CancelledCellJson(Document):
    """What was done about one cell."""

    cell: CellNameJson = field(metadata=FLAT)
    state: StateJson
    asked: Annotated[bool, "whether its job will be stopped or dropped"]
    what: str


class CancelledJson(DocumentJson):
    """`gpas cancel --json`: the cells that were queued or running."""

    cells: Sequence[_CancelledCellJson]


def cancel(words: CellsOrGrids = None, where: Where = None, yes: Yes = False, as_json: AsJson = False) -> None:
    """Cancel queued and running cells.

    A running job saves a checkpoint first; `gpas retry` resumes from it. Asks for confirmation before it cancels a
    running cell, or more than three.

    Name a cell that experiments.yaml no longer declares by the start of its key.

    Example: gpas cancel pre-gpas-s1

    Example: gpas cancel table2 --where size=1b --yes
    """
    states = cell_statuses(project().runs, chosen_cells(words, where))
    alive = [state for state in once(states) if state.state in ALIVE]
    if not alive:
        each = ", ".join(f"{state.entry.id} is {state.state}" for state in states)
        many = f"no cell is running or queued ({_counts(states)})"
        raise GpasError(f"nothing was cancelled: {many if len(states) > _ASK_ABOVE else each}")
    if len(alive) > _ASK_ABOVE or any(state.state == "running" for state in alive):
        confirm(f"Cancel {count(len(alive), 'cell')} ({_counts(alive)})?", yes)
    texts = [text for text in awaited(project().runs, states) if text.status.state in ALIVE]
    results = request(project().runs, alive)
    for one in results:
        say(f"{one.state.entry.id}: {one.what}")
    for name, job in ((text.name, text.status.job) for text in texts):
        if job:
            say(f"tokenising {name} continues, because other cells may use it; `scancel {job.id}` stops it")
    others = [one for one in undeclared_cells(claimed=True) if one.state in ALIVE]
    for trunk in (one for one in trunks_among(others) if one.key not in {state.key for state in alive}):
        say(f"{trunk.entry.id} continues, because other cells may start from it; `gpas cancel {trunk.key}` stops it")
    if as_json:
        cells = [
            _CancelledCellJson(
                cell=CellNameJson.of(one.state.entry), state=one.state.state, asked=one.asked, what=one.what
            )
            for one in results
        ]
        print_json(CancelledJson(cells=cells))
    if not all(one.asked for one in results):
        raise typer.Exit(Exit.INCOMPLETE)


def _counts(states: Sequence[CellStatus]) -> str:
    return ", ".join(f"{number} {state}" for state, number in Counter(state.state for state in states).items())


@with_grouped_options
def retry(
    cells: CellsOrGrids = None,
    where: Where = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Resources of these jobs: resources.mem=64G; repeatable."),
    ] = None,
    done: Annotated[bool, typer.Option("--done", help="Run cells that have a result, from the first update.")] = False,
    dry_run: DryRun = False,
    *,
    options: RunOptions,
) -> None:
    """Run failed cells again; with --done, cells with a result.

    Failed and cancelled cells resume from their last checkpoint if there is one. Attempts are kept.

    By default, runs every failed or cancelled cell. Cells blocked by these failures run too.

    With --done, tables show the old number until the new attempt has a result, and `gpas why` shows both. If the
    command is killed, the request remains and `gpas run grid` runs these cells.

    Example: gpas retry pre-gpas-s1 --set resources.mem=64G

    Example: gpas retry quickstart --done --where norm=lns
    """
    if done:
        _run_again(chosen_cells(cells, where), settings or [], options, dry_run)
        return
    asked = cells_or_grids(cells, where)
    states = cell_statuses(project().runs, asked)
    chosen = [state.entry for state in states if state.state in RETRIED]
    if not chosen and cells:
        states_text = listed([f"{state.entry.id} is {state.state}" for state in states], 4)
        ended = any(state.state in RESULTS for state in states)
        more = "--done trains one with a result again" if ended else "`gpas run grid` runs what is missing"
        raise GpasError(f"nothing to retry: {states_text}; {more}")
    if not chosen:
        say("No cell failed or was cancelled.")
        finish(RunSummary())
    chosen = with_resources(chosen, settings or [])
    if cells:
        chosen += _waiting_for(chosen, asked)
    run_entries(chosen, options, dry_run=dry_run, retry=RETRIED)


def _waiting_for(chosen: list[Entry], asked: list[Entry]) -> list[Entry]:
    """Return the cells of any grid, other than `asked`, that are blocked by a failed stage of `chosen`."""
    known = {entry.id for entry in asked}
    others = [entry for entry in entries(experiments().available) if entry.id not in known]
    failed = {stage.key for entry in chosen for stage in entry.cell.stages}
    seen = statuses(project().runs, others)
    return [e for e in others if any(seen[stage.key].blocker in failed for stage in e.cell.stages)]


def _run_again(asked: list[Entry], settings: Sequence[str], options: RunOptions, dry_run: bool) -> None:
    states = cell_statuses(project().runs, asked)
    chosen = [state for state in states if state.state in RESULTS]
    if not chosen:
        states_text = listed([f"{state.entry.id} is {state.state}" for state in states], _NAMED)
        raise GpasError(f"no result to replace: {states_text}; `gpas run grid` runs cells without one")
    _print_results(chosen)
    if len(states) > len(chosen):
        say(f"{count(len(states) - len(chosen), 'other cell')} without a result: not run again")
    if dry_run:
        say(f"{count(len(chosen), 'cell')} would run again")
        finish(RunSummary())
    confirm(f"Run {count(len(chosen), 'cell')} again?", options.yes)
    again = with_resources([state.entry for state in chosen], settings)
    run_again(project().runs, stage_keys(again))
    run_entries(again, options)


def _print_results(states: Sequence[CellStatus]) -> None:
    for state in states[:_NAMED]:
        found = main_result(state.metrics)
        number = f"{found[0].words} {found[0].shown(found[1])}" if found else state.state
        say(f"{state.entry.id}: {number} in attempt {state.attempt}, {evidence(state)}")
    if len(states) > _NAMED:
        say(f"and {count(len(states) - _NAMED, 'more cell')}")


class _ForgottenStageJson(Document):
    """A stage whose attempts were forgotten, or restored."""

    key: str
    directories: Annotated[Sequence[Path], "the folders of its attempts, under their new names"]


class ForgottenJson(DocumentJson):
    """`gpas forget --json`."""

    stages: Sequence[_ForgottenStageJson]


def forget(
    words: CellsOrGrids = None,
    where: Where = None,
    stage: Annotated[
        str,
        typer.Option("--stage", help="The stage to forget, with all stages that build on it; by default the last one."),
    ] = "",
    why: Annotated[str, typer.Option("--why", help="The reason, which is kept with the result.")] = "",
    undo: Annotated[bool, typer.Option("--undo", help="Restore forgotten results.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Retire results, so that their cells run again.

    Tables no longer show them, and `gpas run` runs these cells again. Nothing is erased.

    All attempts of the stage are set aside in the run directory, so that nothing resumes from them. Stages that build
    on a forgotten one are forgotten too, in every cell that shares it.

    Example: gpas forget pre-gpas-s1 --why "wrong tokenizer"

    Example: gpas forget pre-gpas-s1 --undo
    """
    chosen = chosen_cells(words, where)
    named = {_key(entry, stage): entry.id for entry in chosen}
    folders = restore(project().runs, named) if undo else _forget(named, why, yes)
    if not folders:
        raise GpasError(f"nothing to restore: no result of {listed(list(named.values()), _NAMED)} was forgotten")
    warn(ingest(project()))
    if not folders.keys() <= named.keys():  # stages of other cells that build on these
        declared = entries(experiments().available)
        named = {stage.key: entry.id for entry in declared for stage in entry.cell.stages} | named
    for key, moved in folders.items():
        done = "restored" if undo else "forgotten"
        say(f"{named.get(key, key)}: {done} ({count(len(moved), 'attempt')})")
    if as_json:
        stages = [
            _ForgottenStageJson(key=key, directories=[one.path for one in moved]) for key, moved in folders.items()
        ]
        print_json(ForgottenJson(stages=stages))


def _key(entry: Entry, kind: str) -> str:
    """Return the key of the entry's stage of this kind, by default the last one."""
    kinds = {stage.kind: stage.key for stage in entry.cell.stages}
    if kind and kind not in kinds:
        raise GpasError(f"{entry.id} has no stage '{kind}'; {nearest(kind, kinds)}")
    return kinds[kind] if kind else entry.cell.key


def _forget(named: dict[str, str], why: str, yes: bool) -> dict[str, list[AttemptDir]]:
    from gpas_cli.origin.provenance import dependents

    runs = project().runs
    tried = [key for key in named if attempts(runs, key)]
    if not tried:
        raise GpasError(f"nothing to forget: {listed(list(named.values()), _NAMED)} has no attempt")
    with results_of(project()) as (engine, _), engine.connect() as connection:
        stages = dependents(rows_through(connection), tried)
    others = {other for built_on in stages.values() for other in built_on if attempts(runs, other)}
    for key in tried[:_NAMED]:
        status = observe(runs, key)
        say(f"{named[key]}: {status.state}{result(status)}")
    build = f"build{'s' if len(others) == 1 else ''} on {'it' if len(tried) == 1 else 'them'}"
    shared = f", and {count(len(others), 'stage')} that {build}" if others else ""
    confirm(f"Forget {count(len(tried), 'result')}{shared}?", yes)
    return retire(runs, stages, why)
