"""`gpas table`: results in the layout of the paper."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from gpas_cli.cli.console import AsJson, Names, Where, complete_from, console, entries, experiments, print_json, project
from gpas_cli.cli.paper_tables import paper_sections, print_paper_tables, printed_tables
from gpas_cli.errors import GpasError, nearest

if TYPE_CHECKING:
    from gpas_cli.grid.declared import TableSpec
    from gpas_cli.report.recorded import Recorded
    from gpas_cli.report.table import Table

FORMATS = ("rich", "markdown", "latex", "html", "csv", "json")  # those of report.render, and rich for the terminal


def _complete_metric(incomplete: str) -> list[str]:
    from gpas_cli.report.metrics import METRICS

    return [name for name in METRICS if name.startswith(incomplete)]


def table(
    names: Names = None,
    where: Where = None,
    paper: Annotated[bool, typer.Option("--paper", help="Print the published numbers beside ours.")] = False,
    published_only: Annotated[
        bool, typer.Option("--published-only", help="Print the published tables alone, digit by digit.")
    ] = False,
    source: Annotated[
        str | None,
        typer.Option(
            "--source",
            help="The paper whose tables to print: gpas, poster, curse, spike, raptr.",
            autocompletion=complete_from(("gpas", "poster", "curse", "spike", "raptr")),
        ),
    ] = None,
    value: Annotated[
        list[str] | None,
        typer.Option(
            "--value",
            metavar="METRIC",
            help="Show this recorded number in place of the grid's. Repeat it to show several side by side.",
            autocompletion=_complete_metric,
        ),
    ] = None,
    external: Annotated[
        list[str] | None,
        typer.Option(
            "--external",
            metavar="NAME|all",
            help="Show a network that `gpas evaluate` scored below the cells (grids with a column for each task).",
        ),
    ] = None,
    form: Annotated[
        str,
        typer.Option(
            "--format", "-f", help=f"Output format: {', '.join(FORMATS)}.", autocompletion=complete_from(FORMATS)
        ),
    ] = "rich",
    as_json: AsJson = False,
) -> None:
    """Print a grid's table: mean and standard deviation over seeds, difference from the base, best and second best.

    A cell without a result shows its progress. Differences, in parentheses, are means of paired differences over seeds.

    Example: [bold]gpas table quickstart --paper --format markdown[/bold]
    """
    if value and external:
        raise GpasError("--external shows scores at tasks; it cannot be combined with --value")
    form = "json" if as_json else form
    if form not in FORMATS:
        raise GpasError(f"unknown format '{form}'; {nearest(form, FORMATS)}")
    from gpas_cli.report.papers.layouts import is_printed_name

    names = names or []
    as_papers = any(map(is_printed_name, names)) or source is not None or (paper and not names)
    if published_only or as_papers:
        if value or external:
            raise GpasError("--value and --external are for the tables of grids: gpas table GRID")
        tables = printed_tables(names, source)
        if published_only:
            print_paper_tables([part for one in tables for part in one.parts], form)
        else:
            grids = [name for name in names if not is_printed_name(name)]
            print_paper_tables(paper_sections(tables, grids, where), form)
        return
    made = [_make(name, where, paper, external or (), value or ()) for name in names or [experiments().default]]
    if form == "json" and len(made) > 1:
        print_json(tables=[json.loads(render_as(one, form)) for one in made])
        return
    for one in made:
        _print(one, form)


def _make(name: str, where: Sequence[str] | None, paper: bool, external: Sequence[str], values: Sequence[str]) -> Table:
    from gpas_cli.report.external import select_networks
    from gpas_cli.report.query import external_networks
    from gpas_cli.report.recorded import recorded
    from gpas_cli.report.table import build

    chosen = entries([name], where)
    spec = _spec(name) if paper else replace(_spec(name), published={})
    with recorded(project(), chosen) as known:
        if known.problem:
            print(f"gpas: {known.problem}", file=sys.stderr)
        if values:
            return by_metrics(known, spec, values)
        networks = external_networks(known.engine) if external and known.engine else []
        shown = select_networks(networks, external) if external else None
        return build(chosen, known.states, known.results, spec, shown)


def by_metrics(known: Recorded, spec: TableSpec, names: Sequence[str]) -> Table:
    """Return the table with a column for each of the recorded numbers `names`, beside each other."""
    from gpas_cli.report.metrics import recorded_metric
    from gpas_cli.report.table import beside, build, spec_for, stage_kinds

    kinds = stage_kinds(known.entries)
    metrics = [recorded_metric(name, kinds, known.results) for name in dict.fromkeys(names)]
    return beside(
        [build(known.entries, known.states, known.results, spec_for(spec, what), what=what) for what in metrics]
    )


def _spec(name: str) -> TableSpec:
    return experiments().grids[name].table_spec


def _print(made: Table, form: str) -> None:
    if form == "rich":
        from gpas_cli.report.cell_text import sheet
        from gpas_cli.report.terminal import Drawn

        console().print(Drawn(sheet(made)))
    else:
        print(render_as(made, form))


def render_as(made: Table, form: str) -> str:
    """Return the table as text, without a trailing newline."""
    from gpas_cli.report.render import render

    return render(made, form).rstrip("\n")
