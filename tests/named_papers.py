"""The papers of the package and their published tables, by name."""

from collections.abc import Mapping
from typing import Any

from gpas_cli.grid.packs import Pack, known_packs
from gpas_cli.report import papers
from gpas_cli.report.papers import PublishedTable
from gpas_cli.report.papers import printed as printed_tables
from gpas_cli.report.tables.table import Table

PACKS = known_packs()
NUMBERS = tuple(name for name, pack in PACKS.items() if pack.has("numbers"))
# Those whose networks are trained here: their tables name recipes. The others have numbers alone.
SOURCES = tuple(
    name for name in NUMBERS if any("recipes" in table for table in papers.load(PACKS[name])["tables"].values())
)


def _pack(source: str | Pack) -> Pack:
    return source if isinstance(source, Pack) else PACKS[source]


def load(source: str | Pack) -> dict[str, Any]:
    return papers.load(_pack(source))


def tables(source: str | Pack) -> tuple[str, ...]:
    return papers.tables(_pack(source))


def published(source: str | Pack, name: str) -> PublishedTable:
    return papers.published(_pack(source), name)


def value_of(table: PublishedTable, labels: Mapping[str, Any]) -> float | None:
    found = table.cell(labels)
    return found.value if found else None


def numbers(source: str | Pack) -> tuple[str, ...]:
    return papers.numbers(_pack(source))


def printed(source: str | Pack, number: str) -> tuple[Table, ...]:
    return printed_tables.printed(_pack(source), number)


def by_paper(tables: Mapping[str, str]) -> dict[Pack, str]:
    return {PACKS[name]: table for name, table in tables.items()}


TABLES = [published(source, name) for source in SOURCES for name in tables(source)]
