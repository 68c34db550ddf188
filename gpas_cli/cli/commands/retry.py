"""`gpas retry` and `gpas rerun`: run failed and cancelled cells again, or cells that have a result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from gpas_cli.cli.commands.run import run_entries
from gpas_cli.cli.console import confirm, console
from gpas_cli.cli.options import CellsOrGrids, Where
from gpas_cli.cli.running import RETRIED, DryRun, RunOptions, finish, with_run_options
from gpas_cli.cli.selection import cells_or_grids, chosen_cells, entries, experiments, project
from gpas_cli.cli.views.states import evidence
from gpas_cli.errors import GpasError
from gpas_cli.grid.entry import Entry
from gpas_cli.grid.variant import with_resources
from gpas_cli.schedule.summary import RunSummary
from gpas_cli.spec.stage import main_result
from gpas_cli.state.claim_set import run_again, run_no_more
from gpas_cli.state.observe import look, statuses
from gpas_cli.state.status import RESULTS, CellStatus
from gpas_cli.store.history import note
from gpas_cli.words import count, listed

NAMED = 20  # cells whose results are printed before the confirmation


@with_run_options
def retry(
    cells: CellsOrGrids = None,
    where: Where = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Resources of these jobs: resources.mem=64G; repeatable."),
    ] = None,
    dry_run: DryRun = False,
    *,
    options: RunOptions,
) -> None:
    """Run failed and cancelled cells again, from their last checkpoint if there is one. Attempts are kept.

    By default every failed or cancelled cell. Cells blocked by these failures are run too.

    Example: [bold]gpas retry pre-gpas-s1[/bold]

    Example: [bold]gpas retry pre-gpas-s1 --set resources.mem=64G[/bold]
    """
    asked = cells_or_grids(cells, where)
    states = look(project().runs, asked)
    chosen = [state.entry for state in states if state.state in RETRIED]
    if not chosen and cells:
        states_text = listed([f"{state.entry.id} is {state.state}" for state in states], 4)
        ended = any(state.state in RESULTS for state in states)
        more = "`gpas rerun` trains one with a result again" if ended else "`gpas run grid` runs what is missing"
        raise GpasError(f"nothing to retry: {states_text}; {more}")
    if not chosen:
        console().print("No cell failed or was cancelled.")
        finish(RunSummary())
    chosen = with_resources(chosen, settings or [])
    if cells:
        chosen += _waiting_for(chosen, asked)
    run_entries(chosen, options, dry_run=dry_run, retry=RETRIED, how=", ".join(settings or []))


def _waiting_for(chosen: list[Entry], asked: list[Entry]) -> list[Entry]:
    """Return the cells of any grid, other than `asked`, that are blocked by a failed stage of `chosen`."""
    known = {entry.id for entry in asked}
    others = [entry for entry in entries(list(experiments().grids)) if entry.id not in known]
    failed = {stage.key for entry in chosen for stage in entry.cell.stages}
    seen = statuses(project().runs, others)
    return [e for e in others if any(seen[stage.key].blocker in failed for stage in e.cell.stages)]


@with_run_options
def rerun(
    words: CellsOrGrids = None,
    where: Where = None,
    undo: Annotated[bool, typer.Option("--undo", help="Withdraw the request and keep the earlier result.")] = False,
    dry_run: DryRun = False,
    *,
    options: RunOptions,
) -> None:
    """Run cells that have a result again, as a new attempt.

    Training starts at the first update. Nothing is erased: tables show the old number until the new attempt has a
    result, and `gpas why` shows both.

    If this command is killed, the request remains and `gpas run grid` runs these cells.

    Example: [bold]gpas rerun pre-gpas-s1[/bold]

    Example: [bold]gpas rerun quickstart --where norm=lns --yes[/bold]
    """
    states = look(project().runs, chosen_cells(words, where))
    if undo:
        _undo([state.entry for state in states])
        finish(RunSummary())
    chosen = [state for state in states if state.state in RESULTS]
    if not chosen:
        states_text = listed([f"{state.entry.id} is {state.state}" for state in states], NAMED)
        raise GpasError(f"no result to replace: {states_text}; `gpas run grid` runs cells without one")
    _print_results(chosen)
    if len(states) > len(chosen):
        console().print(f"{count(len(states) - len(chosen), 'other cell')} without a result: not run again")
    if dry_run:
        console().print(f"{count(len(chosen), 'cell')} would run again")
        finish(RunSummary())
    confirm(f"Run {count(len(chosen), 'cell')} again?", options.yes)
    run_again(project().runs, _keys([state.entry for state in chosen]))
    note(project().runs, "rerun", [state.entry.id for state in chosen])
    run_entries([state.entry for state in chosen], options)


def _keys(entries: Sequence[Entry]) -> list[str]:
    """Return the keys of all stages."""
    return list(dict.fromkeys(stage.key for entry in entries for stage in entry.cell.stages))


def _print_results(states: Sequence[CellStatus]) -> None:

    for state in states[:NAMED]:
        found = main_result(state.metrics)
        number = f"{found[0].words} {found[0].shown(found[1])}" if found else state.state
        console().print(f"{state.entry.id}: {number} in attempt {state.attempt}, {evidence(state)}", markup=False)
    if len(states) > NAMED:
        console().print(f"and {count(len(states) - NAMED, 'more cell')}")


def _undo(entries: Sequence[Entry]) -> None:

    withdrawn = run_no_more(project().runs, _keys(entries))
    if not withdrawn:
        raise GpasError("nothing to withdraw: no rerun of these cells was requested; `gpas cancel` stops a running one")
    kept = [entry.id for entry in entries if any(stage.key in withdrawn for stage in entry.cell.stages)]
    note(project().runs, "undo rerun", kept)
    for name in kept:
        console().print(f"{name}: keeps its earlier result", markup=False)
