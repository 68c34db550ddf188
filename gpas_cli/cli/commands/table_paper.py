"""The part of `gpas table` that prints the papers' tables, with our numbers beside the published ones or without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from gpas_cli.cli.console import console, print_json
from gpas_cli.cli.selection import experiments, recorded_of
from gpas_cli.documents import DocumentJson
from gpas_cli.errors import GpasError, nearest
from gpas_cli.report.tables.printed_sheet import PrintedTableJson
from gpas_cli.report.tables.render import TableJson

if TYPE_CHECKING:
    from gpas_cli.grid.declared import Grid
    from gpas_cli.grid.entry import Entry
    from gpas_cli.report.papers.layouts import PrintedPart, PrintedTable
    from gpas_cli.report.tables.paper_table import Serving
    from gpas_cli.report.tables.sheet import Sheet
    from gpas_cli.report.tables.table import Table


class PaperTablesJson(DocumentJson):
    """`gpas table --json` of a paper's tables."""

    tables: Annotated[list[TableJson], "tables with our numbers, in the paper's layout"]
    published: Annotated[list[PrintedTableJson], "as printed: tables for which no grid has a cell, settings"]


def printed_tables(names: Sequence[str], source: str | None) -> list[PrintedTable]:
    """Return the tables called SOURCE:NUMBER, those whose numbers the grids of these names have beside theirs, and
    without names all of `source`; all of them too for a grid that names none of `source`.

    Raises GpasError for a grid without published numbers if there is no `source`.
    """
    from gpas_cli.report.papers.layouts import USUAL, is_printed_name, numbers, printed, printed_named, source_named

    chosen = source_named(source) if source else None
    if not names:
        usual = chosen or USUAL
        return [printed(usual, number) for number in numbers(usual)]
    found: dict[str, PrintedTable] = {}
    for name in names:
        named = [printed_named(name)] if is_printed_name(name) else _of_grid(name, chosen)
        found |= {table.name: table for table in named}
    return list(found.values())


def _of_grid(name: str, source: str | None) -> list[PrintedTable]:
    from gpas_cli.report.papers.layouts import numbers, printed

    grids = experiments().grids
    if name not in grids:
        raise GpasError(f"no grid '{name}' in {experiments().path.name}; {nearest(name, grids)}")
    spec = grids[name].table
    declared = {of: table.partition("@")[0] for of, table in (spec.published if spec else {}).items()}
    tables = [printed(of, number) for of in declared if source in (of, None) for number in numbers(of)]
    found = [
        table for table in tables if declared[table.source] in (one.name for part in table.parts for one in part.tables)
    ]
    if not found and source:
        return [printed(source, number) for number in numbers(source)]
    if not found:
        raise GpasError(f"grid '{name}' has no published table beside it; name one: gpas:2")
    return found


def served_parts(
    tables: Sequence[PrintedTable], names: Sequence[str], where: Sequence[str] | None = None
) -> list[tuple[PrintedPart, Serving | None]]:
    """Return every part of the tables with the cells that belong into it, None if no grid has any.

    names: the grids to choose from, by default all. where: conditions on their cells.
    """
    from gpas_cli.report.tables.paper_table import serving

    grids = _grids(names, where)
    return [(part, serving(part.cells_of or part, grids)) for table in tables for part in table.parts]


def _grids(names: Sequence[str], where: Sequence[str] | None) -> Mapping[str, tuple[Grid, Sequence[Entry]]]:
    from gpas_cli.grid.expand import expand
    from gpas_cli.grid.select import select

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
    from gpas_cli.report.papers.layouts import printed_named

    table = printed_named(name)
    parts = served_parts([table], (), where)
    served = [found for part, found in parts if part.tables and found and found.places]
    if not served:
        unclear = [why for _, found in parts if found for why in found.unclear.values()]
        reasons = [*unclear, *(one.no_cells for part in table.parts for one in part.tables)]
        why = reasons[0] if reasons else "it prints settings, not results"
        raise GpasError(
            f"no grid has cells of {table.name}: {why}; `gpas table {table.name} --published-only` prints it"
        )
    return served


def paper_sections(
    tables: Sequence[PrintedTable], names: Sequence[str], where: Sequence[str] | None, *, declared: bool
) -> list[PrintedPart | Table]:
    """Return every part of the tables: with our numbers where a grid has such cells, else as printed.

    With `names` of grids, only the parts of which these have cells. declared: show the metric that a grid declares
    beside the one that the published numbers are compared with.
    """
    from gpas_cli.report.tables.paper_table import paper_table
    from gpas_cli.report.tables.recipe_table import with_ours
    from gpas_cli.report.tables.side_by_side import paper_beside_declared

    made = paper_beside_declared if declared else paper_table

    parts = served_parts(tables, names, where)
    chosen = list({entry.id: entry for _, served in parts if served for entry in served.entries}.values())
    with recorded_of(chosen, database=False) as known:
        sections: list[PrintedPart | Table] = []
        for part, served in parts:
            if names and served is None:
                continue
            if served and part.quantities:
                sections.append(with_ours(part, served.entries))
            else:
                absent = replace(part, unserved=bool(part.tables))
                sections.append(made(served, known.states, known.results) if served else absent)
        return sections


def print_paper_tables(sections: Sequence[PrintedPart | Table], form: str) -> None:
    """Print tables as their papers do, with our numbers first and the published ones beside them."""
    from gpas_cli.report.tables import printed_sheet, render
    from gpas_cli.report.tables.cell_text import sheet
    from gpas_cli.report.tables.table import Table

    ours = [section for section in sections if isinstance(section, Table)]
    if form == "json":
        alone = [printed_sheet.to_json(section) for section in sections if not isinstance(section, Table)]
        print_json(PaperTablesJson(schema=1, tables=[render.table_json(one) for one in ours], published=alone))
        return
    if form == "rich":
        print_sheets([sheet(one) if isinstance(one, Table) else printed_sheet.sheet(one) for one in sections])
        return
    if form == "csv" and (len(sections) > 1 or not ours):
        print(printed_sheet.together(sections), end="")
        return
    print_texts(
        [render.render(one, form) if isinstance(one, Table) else printed_sheet.render(one, form) for one in sections]
    )


def print_sheets(sheets: Sequence[Sheet]) -> None:
    """Print tables for a terminal, with an empty line between them."""
    from gpas_cli.report.tables.terminal import Drawn

    for place, one in enumerate(sheets):
        if place:
            console().print()
        console().print(Drawn(one))


def print_texts(texts: Sequence[str]) -> None:
    """Print tables as text, with the empty line between them that ends a table in Markdown."""
    print("\n\n".join(text.rstrip("\n") for text in texts))
