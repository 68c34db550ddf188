"""The part of `gpas table` that prints which cells have no number, and what would fill them (--missing)."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, TypedDict

import typer

from gpas_cli.cli.console import console, print_json
from gpas_cli.cli.planning import plan_for
from gpas_cli.cli.selection import entries, project
from gpas_cli.cli.views.columns import Columns
from gpas_cli.cli.views.plan import headline, refusals
from gpas_cli.documents import DocumentJson
from gpas_cli.errors import Exit
from gpas_cli.grid.entry import Entry
from gpas_cli.grid.select import run_command
from gpas_cli.plan.plan import Plan
from gpas_cli.report.tables.table import Table
from gpas_cli.report.tables.table_place import RETRIED, Hole, holes, to_run
from gpas_cli.schedule.scheduler import choose, scheduler_named

NAMED = 3  # the most failed cells in one command


class MissingRunJson(TypedDict):
    """A run without a number."""

    name: str
    key: str
    state: str


class HoleJson(TypedDict):
    """A cell of a table in which runs have no number; diverged runs are results."""

    row: str
    column: str
    runs: list[MissingRunJson]


class RemedyJson(TypedDict):
    """A command that fills cells without a number, and what it would cost."""

    command: str
    jobs: int
    gpu_hours: float
    core_hours: float
    wall_hours: Annotated[float | None, "null on SLURM, where jobs wait"]
    refused: Annotated[dict[str, int], "cells that cannot run here, by reason"]


class MissingTableJson(TypedDict):
    """What one table misses."""

    name: Annotated[str | None, "SOURCE:NUMBER of a table with a paper's own layout"]
    title: str
    missing: list[HoleJson]
    commands: list[RemedyJson]


class MissingJson(DocumentJson):
    """`gpas table --missing --json`."""

    tables: list[MissingTableJson]


@dataclass(frozen=True)
class Remedy:
    """A command that fills holes. `planned`: what it would run and cost, None if it runs nothing."""

    command: str
    planned: Plan | None = None


def print_missing(tables: Sequence[Table], form: str) -> None:
    """Print the holes of each table with the commands that fill them, and exit with code 3 if there is one."""

    found = [(table, holes(table)) for table in tables]
    if form == "json":
        print_json(
            MissingJson(schema=1, tables=[_json(table, missing, list(_remedies(missing))) for table, missing in found])
        )
    else:
        for table, missing in found:
            _print(table, missing)
    if any(missing for _, missing in found):
        raise typer.Exit(Exit.INCOMPLETE)


def _print(table: Table, missing: Sequence[Hole]) -> None:

    console().print(table.spec.title, style="italic", markup=False)
    if not missing:
        console().print("Every cell has its numbers.")
        return
    by_row: dict[tuple[str, str], list[str]] = {}
    for hole in missing:
        by_row.setdefault((hole.row, _states(hole)), []).append(hole.column)
    rows = [(row, ", ".join(columns), states) for (row, states), columns in by_row.items()]
    console().print(Columns(("row", "column", "runs without a number"), rows))
    for remedy in _remedies(missing):
        console().print(remedy.command, style="bold", markup=False)
        if remedy.planned is not None:
            for line in (headline(remedy.planned), *refusals(remedy.planned)):
                console().print(f"  {line}", markup=False)


def _states(hole: Hole) -> str:
    counts = Counter(run.state for run in hole.runs)
    return ", ".join(f"{number} {state}" for state, number in counts.items())


def _remedies(missing: Sequence[Hole]) -> Iterator[Remedy]:
    """Yield the commands: one for each grid with cells to run, one for those that failed, one that reads results."""

    scheduler = scheduler_named(choose("auto").name, project().runs)
    by_grid: dict[str, list[Entry]] = {}
    for entry in to_run(missing):
        by_grid.setdefault(entry.grid, []).append(entry)
    for grid, chosen in by_grid.items():
        yield Remedy(run_command(chosen, entries([grid])), plan_for(scheduler, chosen))
    failed = to_run(missing, RETRIED)
    if failed:
        cells = [entry.id for entry in failed] if len(failed) <= NAMED else []
        yield Remedy(shlex.join(["gpas", "retry", *cells]), plan_for(scheduler, failed, RETRIED))
    if dead := to_run(missing, ("not finite",)):
        yield Remedy(shlex.join(["gpas", "rerun", *(entry.id for entry in dead)]))
    if to_run(missing, ("unsynced",)):
        yield Remedy("gpas sync")


def _json(table: Table, missing: Sequence[Hole], remedies: Sequence[Remedy]) -> MissingTableJson:
    return {
        "name": table.printed or None,
        "title": table.spec.title,
        "missing": [
            {
                "row": hole.row,
                "column": hole.column,
                "runs": [{"name": run.entry.id, "key": run.key, "state": run.state} for run in hole.runs],
            }
            for hole in missing
        ],
        "commands": [
            {
                "command": remedy.command,
                "jobs": len(remedy.planned.jobs) if remedy.planned else 0,
                "gpu_hours": remedy.planned.estimate.gpu_hours if remedy.planned else 0.0,
                "core_hours": remedy.planned.estimate.core_hours if remedy.planned else 0.0,
                "wall_hours": remedy.planned.estimate.wall_hours if remedy.planned else 0.0,
                "refused": dict(remedy.planned.refused) if remedy.planned else {},
            }
            for remedy in remedies
        ],
    }
