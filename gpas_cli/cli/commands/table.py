"""`gpas table`: results in the layout of the paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer

from gpas_cli.cli.commands.table_missing import print_missing
from gpas_cli.cli.commands.table_paper import (
    paper_sections,
    print_paper_tables,
    print_sheets,
    print_texts,
    printed_tables,
)
from gpas_cli.cli.console import print_json
from gpas_cli.cli.options import AsJson, Where, complete_from, complete_grid_or_setting, complete_printed
from gpas_cli.cli.selection import experiments, recorded_of, split_settings, varied_entries
from gpas_cli.errors import GpasError, nearest
from gpas_cli.grid.declared import TableSpec
from gpas_cli.grid.entry import Entry
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
