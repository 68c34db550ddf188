"""The part of `gpas table` that prints the papers' tables, with our numbers beside the published ones or without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from gpas_cli.cli.console import print_json, say
from gpas_cli.cli.selection import experiments, recorded_of
from gpas_cli.documents import DocumentJson
from gpas_cli.errors import GpasError, nearest
from gpas_cli.grid.declared import Grid
from gpas_cli.grid.entry import Entry
from gpas_cli.grid.expand import expand
from gpas_cli.grid.select import select
from gpas_cli.report.papers.layouts import (
    USUAL,
    PrintedPart,
    is_printed_name,
    numbers,
    printed,
    printed_named,
    source_named,
)
from gpas_cli.report.tables.cell_text import sheet
from gpas_cli.report.tables.csv_table import together
from gpas_cli.report.tables.paper_table import Serving, paper_table, published_table, serving, with_declared, with_ours
from gpas_cli.report.tables.render import PrintedTableJson, TableJson, printed_json, render, table_json
from gpas_cli.report.tables.table import Table
from gpas_cli.report.tables.terminal import Drawn


class PaperTablesJson(DocumentJson):
    """`gpas table --json` of a paper's tables."""

    tables: Annotated[list[TableJson], "tables with our numbers, in the paper's layout"]
    published: Annotated[list[PrintedTableJson], "as printed: tables for which no grid has a cell, settings"]


def printed_tables(names: Sequence[str], source: str | None) -> list[PrintedPart]:
    """Return the tables called SOURCE:NUMBER, those whose numbers the grids of these names have beside theirs, and
    without names all of `source`; all of them too for a grid that names none of `source`.

    Raises GpasError for a grid without published numbers if there is no `source`.
    """
    chosen = source_named(source) if source else None
    if not names:
        return _of_source(chosen or USUAL)
    found = [
        part for name in names for part in (printed_named(name) if is_printed_name(name) else _of_grid(name, chosen))
    ]
    return list({part.title: part for part in found}.values())


def _of_source(source: str) -> list[PrintedPart]:
    return [part for number in numbers(source) for part in printed(source, number)]


def _of_grid(name: str, source: str | None) -> list[PrintedPart]:
    grids = experiments().grids
    if name not in grids:
        raise GpasError(f"no grid '{name}' in {experiments().path.name}; {nearest(name, grids)}")
    spec = grids[name].table
    declared = {of: table.partition("@")[0] for of, table in (spec.published if spec else {}).items()}
    parts = [part for of in declared if source in (of, None) for part in _of_source(of)]
    named = {part.name for part in parts if declared[part.source] in (table.name for table in part.tables)}
    found = [part for part in parts if part.name in named]
    if not found and source:
        return _of_source(source)
    if not found:
        raise GpasError(f"grid '{name}' has no published table beside it; name one: gpas:2")
    return found


def _served_parts(
    parts: Sequence[PrintedPart], names: Sequence[str], where: Sequence[str] | None = None
) -> list[tuple[PrintedPart, Serving | None]]:
    """Return every part with the cells that belong into it, None if no grid has any.

    names: the grids to choose from, by default all. where: conditions on their cells.
    """
    grids = _grids(names, where)
    return [(part, serving(part.cells_of or part, grids)) for part in parts]


def _grids(names: Sequence[str], where: Sequence[str] | None) -> Mapping[str, tuple[Grid, Sequence[Entry]]]:
    declared = experiments().grids
    every = expand(experiments(), list(names or declared))
    chosen = {id(entry) for entry in (select(every, where) if where else every)}
    by_grid: dict[str, list[Entry]] = {name: [] for name in names or declared}
    for entry in every:
        if id(entry) in chosen:
            by_grid[entry.grid].append(entry)
    return {name: (declared[name], entries) for name, entries in by_grid.items()}


def table_entries(name: str, where: Sequence[str] | None) -> list[Entry]:
    """Return the cells whose numbers a paper's table needs, each once: SOURCE:NUMBER, or NUMBER of the GPAS paper.

    Raises GpasError if no grid has such a cell.
    """
    return list({entry.key: entry for one in served_of(name, where) for entry in one.entries}.values())


def served_of(name: str, where: Sequence[str] | None = None) -> list[Serving]:
    """Return the parts of a paper's table that have numbers, with our cells. Raises GpasError if no grid has any."""
    printed_parts = printed_named(name)
    parts = _served_parts(printed_parts, (), where)
    served = [found for part, found in parts if part.tables and found and found.places]
    if not served:
        unclear = [why for _, found in parts if found for why in found.unclear.values()]
        reasons = [*unclear, *(table.no_cells for part in printed_parts for table in part.tables)]
        why = reasons[0] if reasons else "it prints settings, not results"
        number = printed_parts[0].name
        raise GpasError(f"no grid has cells of {number}: {why}; `gpas table {number} --published-only` prints it")
    return served


def paper_sections(
    parts: Sequence[PrintedPart], names: Sequence[str], where: Sequence[str] | None, *, declared: bool
) -> list[Table]:
    """Return every part: with our numbers where a grid has such cells, else as printed.

    With `names` of grids, only the parts of which these have cells. declared: show the metric that a grid declares
    beside the one that the published numbers are compared with.
    """
    made = with_declared if declared else paper_table
    found = [(part, served) for part, served in _served_parts(parts, names, where) if served or not names]
    chosen = list({entry.id: entry for _, served in found if served for entry in served.entries}.values())
    with recorded_of(chosen, database=False) as known:
        return [
            published_table(with_ours(part, served.entries) if served else part, unserved=not served)
            if served is None or part.quantities
            else made(served, known.states, known.results)
            for part, served in found
        ]


def print_paper_tables(tables: Sequence[Table], form: str) -> None:
    """Print tables as their papers do, with our numbers first and the published ones beside them."""
    if form == "json":
        alone = [printed_json(table) for table in tables if table.alone]
        ours = [table_json(table) for table in tables if not table.alone]
        print_json(PaperTablesJson(schema=1, tables=ours, published=alone))
    else:
        print_tables([(table.printed, table) for table in tables], form, "table")


def print_tables(tables: Sequence[tuple[str, Table]], form: str, name: str) -> None:
    """Print named tables for a terminal or as text; in CSV, the column `name` has their names if there are several."""
    if form == "csv" and len(tables) > 1:
        print(together(name, tables), end="")
    elif form != "rich":
        # In Markdown, an empty line ends a table.
        print("\n\n".join(render(table, form).rstrip("\n") for _, table in tables))
    else:
        for place, (_, table) in enumerate(tables):
            if place:
                say("")
            say(Drawn(sheet(table)))
