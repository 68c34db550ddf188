"""`gpas rerun`: run cells that have a result again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from gpas_cli.cli.commands.run import run_entries
from gpas_cli.cli.console import confirm, console
from gpas_cli.cli.options import CellsOrGrids, Where
from gpas_cli.cli.outcome import finish
from gpas_cli.cli.run_options import DryRun, RunOptions, with_run_options
from gpas_cli.cli.selection import chosen_cells, project
from gpas_cli.cli.views.states import evidence
from gpas_cli.errors import GpasError
from gpas_cli.grid.entry import Entry
from gpas_cli.schedule.summary import RunSummary
from gpas_cli.spec.stage import main_result
from gpas_cli.state.claim_set import run_again, run_no_more
from gpas_cli.state.observe import look
from gpas_cli.state.status import RESULTS, CellStatus
from gpas_cli.store.history import note
from gpas_cli.words import count, listed

NAMED = 20  # cells whose results are printed before the confirmation


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
