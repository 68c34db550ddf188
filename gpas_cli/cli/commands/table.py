"""`gpas table`: results in the layout of the paper; with --missing, the cells without a number and what fills them."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, TypedDict

import typer

from gpas_cli.cli.commands.table_paper import (
    paper_sections,
    print_paper_tables,
    print_sheets,
    print_texts,
    printed_tables,
)
from gpas_cli.cli.console import console, print_json
from gpas_cli.cli.options import AsJson, Where, complete_from, complete_grid_or_setting, complete_printed
from gpas_cli.cli.running import plan_for
from gpas_cli.cli.selection import entries, experiments, project, recorded_of, split_settings, varied_entries
from gpas_cli.cli.views.columns import Columns
from gpas_cli.cli.views.plan import headline, refusals
from gpas_cli.documents import DocumentJson
from gpas_cli.errors import Exit, GpasError, nearest
from gpas_cli.grid.declared import TableSpec
from gpas_cli.grid.entry import Entry
from gpas_cli.grid.select import run_command
from gpas_cli.plan.plan import Plan
from gpas_cli.report.metrics import METRICS
from gpas_cli.report.papers.layouts import is_printed_name
from gpas_cli.report.recorded import Recorded
from gpas_cli.report.result import ExternalNetwork
from gpas_cli.report.tables.cell_text import sheet
from gpas_cli.report.tables.csv_table import together
from gpas_cli.report.tables.external import select_networks
from gpas_cli.report.tables.paper_table import published_table
from gpas_cli.report.tables.render import TablesJson, render, table_json
from gpas_cli.report.tables.side_by_side import beside_published, by_metrics
from gpas_cli.report.tables.table import Table, build
from gpas_cli.report.tables.table_place import RETRIED, Hole, holes, to_run
from gpas_cli.schedule.scheduler import choose, scheduler_named

SEPARATOR = ":"  # in the name of a paper's table, SOURCE:NUMBER


SOURCES = ("gpas", "poster", "curse", "spike", "raptr")


FORMATS = (
    "rich",
    "markdown",
    "latex",
    "html",
    "csv",
    "json",
)  # those of `render`, and rich for terminals


def _complete_metric(incomplete: str) -> list[str]:

    return [name for name in METRICS if name.startswith(incomplete)]


def complete_table(incomplete: str) -> list[str]:
    """Return grids and tables of papers that begin with `incomplete`, or settings."""
    return [*complete_grid_or_setting(incomplete), *complete_printed(incomplete)]


TableNames = Annotated[
    list[str] | None,
    typer.Argument(
        help="Grids in experiments.yaml (by default its default grid) and settings for every cell: optim.lr=3e-3; or "
        "tables of a paper: gpas:2.",
        autocompletion=complete_table,
    ),
]


Paper = Annotated[
    bool,
    typer.Option(
        "--paper", help="Print the published numbers beside ours; without a grid, all tables of the GPAS paper."
    ),
]


PublishedOnly = Annotated[
    bool, typer.Option("--published-only", help="Print the published tables alone, digit by digit.")
]


Source = Annotated[
    str | None,
    typer.Option(
        "--source",
        help=f"The paper whose tables to print: {', '.join(SOURCES)}.",
        autocompletion=complete_from(SOURCES),
    ),
]


Value = Annotated[
    list[str] | None,
    typer.Option(
        "--value",
        metavar="METRIC",
        help="Show this recorded number in place of the grid's. Repeat it to show several side by side.",
        autocompletion=_complete_metric,
    ),
]


Missing = Annotated[
    bool,
    typer.Option("--missing", help="Print the cells without a number, and the command that runs them with its cost."),
]


External = Annotated[
    list[str] | None,
    typer.Option(
        "--external",
        metavar="NAME|all",
        help="Show a network that `gpas evaluate` scored below the cells (grids with a column for each task).",
    ),
]


Format = Annotated[
    str,
    typer.Option("--format", "-f", help=f"Output format: {', '.join(FORMATS)}.", autocompletion=complete_from(FORMATS)),
]


def table(
    names: TableNames = None,
    where: Where = None,
    paper: Paper = False,
    published_only: PublishedOnly = False,
    source: Source = None,
    value: Value = None,
    missing: Missing = False,
    external: External = None,
    form: Format = "rich",
    as_json: AsJson = False,
) -> None:
    """Print a grid's table: mean and deviation over seeds, difference from the base, best and second best.

    A cell without a result shows its progress. Differences, in parentheses, are means of paired differences over seeds
    with half their 95 % interval. With --missing: exit code 3 if a cell has no number.

    Example: [bold]gpas table quickstart --paper --format markdown[/bold]
    """
    form = "json" if as_json else form
    if form not in FORMATS:
        raise GpasError(f"unknown format '{form}'; {nearest(form, FORMATS)}")
    if value and external:
        raise GpasError("--external shows scores at tasks; it cannot be combined with --value")
    names, settings = split_settings(names or [])
    if settings and (missing or any(SEPARATOR in name for name in names)):
        raise GpasError(f"{settings[0]} is for tables of grids without --missing; `gpas plan` has the cells to run")
    if published_only or source is not None or any(SEPARATOR in name for name in names) or (paper and not names):
        if value or external:
            raise GpasError("--value and --external are for the tables of grids: gpas table GRID")
        _print_papers(names, source, where, form, published_only=published_only, missing=missing)
        return
    names = list(dict.fromkeys(names)) or [experiments().default]
    made = [
        _make(name, varied_entries([name, *settings], where), paper, external or (), value or (), form)
        for name in names
    ]
    if missing:
        print_missing(made, form)
    elif form == "json" and len(made) > 1:
        print_json(TablesJson(schema=1, tables=[table_json(one) for one in made]))
    elif form == "rich":
        print_sheets([sheet(one) for one in made])
    elif form == "csv" and len(made) > 1:
        print(together("grid", zip(names, made, strict=True)), end="")
    else:
        print_texts([render_as(one, form) for one in made])


def _print_papers(
    names: Sequence[str],
    source: str | None,
    where: Sequence[str] | None,
    form: str,
    *,
    published_only: bool,
    missing: bool,
) -> None:
    """Print tables in the layout of their papers, or what is missing in them."""
    parts = printed_tables(names, source)
    if published_only:
        print_paper_tables([published_table(part) for part in parts], form)
        return
    grids = [name for name in names if not is_printed_name(name)]
    # A page has no room for a further column per size.
    sections = paper_sections(parts, grids, where, declared=form != "latex" and not missing)
    if missing:
        print_missing([section for section in sections if not section.alone], form)
    else:
        print_paper_tables(sections, form)


def _make(
    name: str, chosen: Sequence[Entry], paper: bool, external: Sequence[str], values: Sequence[str], form: str
) -> Table:

    spec = _spec(name) if paper else replace(_spec(name), published={})
    with recorded_of(chosen, database=bool(external)) as known:
        if values:
            return by_metrics(known, spec, values)
        if spec.published and not external and form != "latex":  # a page has no room for a further column per size
            return beside_published(known, spec)
        shown = select_networks(_networks(known), external) if external else None
        return build(chosen, known.states, known.results, spec, shown)


def _networks(known: Recorded) -> list[ExternalNetwork]:
    from gpas_cli.report.query import external_networks

    return external_networks(known.engine) if known.engine else []


def _spec(name: str) -> TableSpec:
    return experiments().grids[name].table_spec


def render_as(made: Table, form: str) -> str:
    """Return the table as text, without a trailing newline."""
    return render(made, form).rstrip("\n")


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
