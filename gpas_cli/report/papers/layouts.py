"""The tables of a source as it prints them: its order of rows and columns, its headings and its digits.

The key `layouts` of a source's file has a layout for each table, by the number that the source gives it:

    caption, label   the caption, and the name if it is not "Table NUMBER"
    parts            tables beside each other under one caption; usually one

A part has
    corner, headings   the heading of the row titles, and those of the columns
    columns            the published tables that have the numbers: TABLE for all of its columns, or TABLE@LABEL for one;
                       with +N behind it, the numbers are N published rows further down
    rows               titles of the rows, in the order of the published tables; or `bands`, each with a `title` above
                       its rows and with `first`, the published row that they start at
    transposed         true: the published columns are the rows
    digits             after the point, for all columns or one for each; g: as many as the number has
    absent             what stands where a number is missing
    suffix             by row or column: what stands behind numbers without a printed standard deviation
    as_printed         by row and column: text that follows no rule
    underlined         by row: columns of underlined numbers
    texts              by row: the texts of all columns, in place of `columns` and `rows`
    quantities         with texts: the settings in the columns (gpas_cli.report.tables.paper_table)
    cells_of           with quantities: the table whose cells have these settings
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from gpas_cli.errors import GpasError, nearest
from gpas_cli.report.papers import SOURCES, PublishedCell, PublishedTable, load, published

SEPARATOR = ":"  # in the name of a printed table: gpas:2
ALIASES = {"curse": "curse_of_depth", "spike": "spike_no_more"}  # short names of sources on the command line
USUAL = "gpas"
_PLACES = ("Left", "Right")  # of two tables under one caption


@dataclass(frozen=True)
class PrintedLine:
    """One row. `band` is the heading above the rows that it belongs to, "" if there is none."""

    title: str
    cells: tuple[PublishedCell, ...]
    band: str = ""

    @property
    def full_title(self) -> str:
        """The title behind that of its band: "LLaMA-1B, Post-LN"."""
        return ", ".join(filter(None, (self.band, self.title)))


@dataclass(frozen=True)
class PrintedPart:
    """A printed table as declared, or one of two under a caption. `name` is SOURCE:NUMBER, as on the command line.

    quantities: the settings in its columns, for a table of settings; cells_of: the table whose cells have them.
    """

    name: str
    title: str
    corner: str
    headings: tuple[str, ...]
    lines: tuple[PrintedLine, ...]
    quantities: tuple[str, ...] = ()
    cells_of: PrintedPart | None = None

    @property
    def source(self) -> str:
        """The source that prints it."""
        return self.name.partition(SEPARATOR)[0]

    @property
    def tables(self) -> tuple[PublishedTable, ...]:
        """The published tables that the part shows."""
        named = {cell.table.name: cell.table for line in self.lines for cell in line.cells if cell.table}
        return tuple(named.values())


def source_named(name: str) -> str:
    """Return the source called `name` or by its short name. Raises GpasError with the nearest name."""
    if name in ALIASES or name in SOURCES:
        return ALIASES.get(name, name)
    raise GpasError(f"unknown source '{name}'; {nearest(name, (*SOURCES, *ALIASES))}")


def numbers(source: str) -> tuple[str, ...]:
    """Return the numbers of the source's tables."""
    return tuple(load(source).get("layouts", {}))


def label_of(table: PublishedTable) -> str:
    """Return what the source calls a table: "Table 2"; "" if its numbers are from the text."""
    return _labels(table.source).get(table.name, "")


@cache
def _labels(source: str) -> dict[str, str]:
    return {
        table.name: load(source)["layouts"][number].get("label", f"Table {number}")
        for number in numbers(source)
        for part in printed(source, number)
        for table in part.tables
    }


def is_printed_name(name: str) -> bool:
    """Return whether `name` is that of a printed table, SOURCE:NUMBER, and not of a grid."""
    return SEPARATOR in name


def printed_named(name: str, source: str = USUAL) -> tuple[PrintedPart, ...]:
    """Return the parts of the table SOURCE:NUMBER, or NUMBER of `source`. Raises GpasError with the nearest name."""
    before, separator, number = name.rpartition(SEPARATOR)
    source = source_named(before) if separator else source
    known = numbers(source)
    if number not in known:
        raise GpasError(f"{load(source)['short']} has no table '{number}'; {nearest(number, known)}")
    return printed(source, number)


@cache
def printed(source: str, number: str) -> tuple[PrintedPart, ...]:
    """Return the parts of the table `number` of `source`, which must exist."""
    data = load(source)["layouts"][number]
    title = f"{load(source)['short']}, {data.get('label', f'Table {number}')}: {data['caption']}"
    parts = data["parts"]
    titles = [title]
    if len(parts) > 1:
        alike = len({part["corner"] for part in parts}) == 1
        corners = ["" if alike else f": {part['corner']}" for part in parts]
        titles = [f"{title} {place}{corner}." for place, corner in zip(_PLACES, corners, strict=True)]
    name = f"{source}{SEPARATOR}{number}"
    return tuple(_part(name, own, part) for own, part in zip(titles, parts, strict=True))


def _part(name: str, title: str, data: Mapping[str, Any]) -> PrintedPart:
    source = name.partition(SEPARATOR)[0]
    texts: Mapping[str, Any] = data.get("texts", {})
    lines = [PrintedLine(row, tuple(PublishedCell(None, text=one) for one in own)) for row, own in texts.items()]
    if not lines:
        lines = [line for band in data.get("bands") or [data] for line in _lines(source, data, band)]
    return PrintedPart(
        name=name,
        title=title,
        corner=data["corner"],
        headings=tuple(data["headings"]),
        lines=tuple(lines),
        quantities=tuple(data.get("quantities", ())),
        cells_of=printed(source, data["cells_of"])[0] if "cells_of" in data else None,
    )


def _lines(source: str, part: Mapping[str, Any], band: Mapping[str, Any]) -> Iterator[PrintedLine]:
    columns = [column for name in band.get("columns") or part["columns"] for column in _columns(source, name, part)]
    title = band["title"] if "bands" in part and "title" in band else ""
    for place, row in enumerate(band["rows"], band.get("first", 0)):
        cells = []
        for index, (table, column, further) in enumerate(columns):
            # The published columns of a transposed part are its rows.
            at = (column, place + further) if part.get("transposed") else (place + further, column)
            cells.append(_cell(part, band, row, index, PublishedCell(table, *at)))
        yield PrintedLine(row, tuple(cells), title)


def _columns(source: str, name: str, part: Mapping[str, Any]) -> Iterator[tuple[PublishedTable, int, int]]:
    """Yield the published table, the position and the offset of the rows of each column that `name` stands for."""
    name, _, further = name.partition("+")
    name, at, label = name.partition("@")
    table = published(source, name)
    every = range(len(table.rows)) if part.get("transposed") else range(len(table.columns) or 1)
    yield from ((table, i, int(further or 0)) for i in every if not at or str(table.columns[i]) == label)


def _cell(
    part: Mapping[str, Any], band: Mapping[str, Any], title: str, index: int, cell: PublishedCell
) -> PublishedCell:
    """Return the cell below a heading with its text: its own, or its number in the digits of the part."""
    heading = part["headings"][index]
    exceptions = {**part.get("as_printed", {}), **band.get("as_printed", {})}
    text = exceptions.get(title, {}).get(heading)
    if text is None:
        digits = part.get("digits", 2)
        text = _text(cell, digits if isinstance(digits, int | str) else digits[index]) or part.get("absent", "")
        if cell.value is not None and not cell.std:
            suffixes = part.get("suffix", {})
            text += suffixes.get(title, suffixes.get(heading, ""))
    marked = heading in part.get("underlined", {}).get(title, ())
    return replace(cell, text=text, mark="second" if marked else "")


def _text(cell: PublishedCell, digits: int | str) -> str:
    """Return a number with its difference or its standard deviation in parentheses, "" if there is none."""
    if cell.value is None:
        return ""
    form = digits if isinstance(digits, str) else f".{digits}f"
    if cell.delta is not None:
        return f"{cell.value:{form}} ({cell.delta:+{form}})"
    return f"{cell.value:{form}}" + ("" if cell.std is None else f" ({cell.std:{form}})")
