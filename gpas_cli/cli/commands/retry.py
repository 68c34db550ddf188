"""`gpas retry`: run failed and cancelled cells again."""

from __future__ import annotations

from typing import Annotated

import typer

from gpas_cli.cli.commands.run import run_entries
from gpas_cli.cli.console import console
from gpas_cli.cli.options import CellsOrGrids, Where
from gpas_cli.cli.outcome import finish
from gpas_cli.cli.run_options import RETRIED, DryRun, RunOptions, with_run_options
from gpas_cli.cli.selection import cells_or_grids, entries, experiments, project
from gpas_cli.errors import GpasError
from gpas_cli.grid.entry import Entry
from gpas_cli.grid.variant import with_resources
from gpas_cli.schedule.summary import RunSummary
from gpas_cli.state.observe import look, statuses
from gpas_cli.state.status import RESULTS
from gpas_cli.words import listed


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
