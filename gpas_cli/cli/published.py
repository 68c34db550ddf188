"""The part of `gpas table` that prints the papers' own tables, without any result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpas_cli.cli.console import console, experiments, print_json
from gpas_cli.errors import GpasError, nearest

if TYPE_CHECKING:
    from gpas_cli.report.papers.layouts import PrintedTable


def printed_tables(names: Sequence[str], source: str | None) -> list[PrintedTable]:
    """Return the tables called SOURCE:NUMBER, those whose numbers the grids of these names have beside theirs, and
    without names all of `source`.

    Raises GpasError for a grid without published numbers of the source.
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
    if not found:
        raise GpasError(
            f"grid '{name}' has no published table{f' of {source}' if source else ''} beside it; name one: gpas:2"
        )
    return found


def print_published(tables: Sequence[PrintedTable], form: str) -> None:
    """Print tables digit by digit as their papers do."""
    from gpas_cli.report.printed_sheet import render, sheets, to_mapping

    if form == "json":
        print_json(published=[to_mapping(table) for table in tables])
        return
    for table in tables:
        if form == "rich":
            from gpas_cli.report.terminal import Drawn

            for sheet in sheets(table):
                console().print(Drawn(sheet))
        else:
            print(render(table, form).rstrip("\n"))
