"""The tables of a source as printed, without any result -> text in every format."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Annotated, TypedDict

from gpas_cli.report.papers.layouts import SEPARATOR, PrintedCell, PrintedLine, PrintedPart
from gpas_cli.report.tables.cell_text import as_printed
from gpas_cli.report.tables.csv_table import LABEL, PUBLISHED, WHICH, Line, columns_of, csv_cell, table_lines, written
from gpas_cli.report.tables.html_table import to_html
from gpas_cli.report.tables.latex import to_latex
from gpas_cli.report.tables.markdown import to_markdown
from gpas_cli.report.tables.note import Note
from gpas_cli.report.tables.sheet import Sheet, Style
from gpas_cli.report.tables.table import Table
from gpas_cli.words import listed

FORMATS = {"markdown": to_markdown, "latex": to_latex, "html": to_html}
NAMED = 3  # rows in one note
CSV_HEADER = ("table", "part", "band", "row", "column", "text", "value", "delta")


class PrintedCellJson(TypedDict):
    """A cell of a published table: the text as printed, and its numbers."""

    text: str
    value: float | None
    delta: Annotated[float | None, "the printed difference from the base"]
    mark: Annotated[str, "underlined, or empty"]


class PrintedRowJson(TypedDict):
    """A row; `band` is the heading above the rows that it belongs to."""

    band: str
    title: str
    cells: list[PrintedCellJson]


class PrintedTableJson(TypedDict):
    """A table as its paper prints it; two tables under one caption have the same name."""

    name: Annotated[str, "SOURCE:NUMBER"]
    title: str
    corner: Annotated[str, "the heading of the titles of the rows"]
    columns: list[str]
    rows: list[PrintedRowJson]
    notes: Annotated[list[str], "why no grid has a cell of it, and misprints and unstated choices"]


def sheet(part: PrintedPart) -> Sheet:
    """Return a part of a table as text, digit by digit as printed."""
    bands = [line.band for line in part.lines]
    # A band's heading takes a line of its own.
    rules, place = set(), 1
    for i, band in enumerate(bands):
        if i and band != bands[i - 1]:
            rules.add(place)
        place += 1 + bool(band and (not i or band != bands[i - 1]))
    groups = [[i] for i in range(1, 1 + len(part.headings))]
    return Sheet(part.title, lambda style: _texts(part, style), groups, notes=_notes(part), rules=frozenset(rules))


def _notes(part: PrintedPart) -> list[Note]:
    """Return why no grid has a cell of the part, and the remarks about its numbers with the rows that they concern."""
    rows: dict[str, list[str]] = {}
    valued = {
        ", ".join(filter(None, (line.band, line.title))): [c for c in line.cells if c.table and c.value is not None]
        for line in part.lines
    }
    for title, cells in valued.items():
        remarks = (remark for cell in cells if cell.table for remark in cell.table.remarks_for(cell.labels))
        for text in dict.fromkeys(remark.text for remark in remarks):
            rows.setdefault(text, []).append(title)
    reasons = dict.fromkeys(table.no_cells for table in part.tables) if part.unserved else ()
    absent = [Note("remark", f"no cell here: {why}") for why in reasons]
    everywhere = [title for title, cells in valued.items() if cells]
    where = {text: "" if own == everywhere else f"{listed(own, NAMED)}: " for text, own in rows.items()}
    return [*absent, *(Note("remark", where[text] + text) for text in rows)]


def _texts(part: PrintedPart, style: Style) -> list[list[str]]:
    lines = [[style.escape(text) for text in (part.corner, *part.headings)]]
    above = ""
    for line in part.lines:
        if line.band and line.band != above:
            lines.append([style.escape(line.band), *[""] * len(part.headings)])
        above = line.band
        lines.append([style.escape(line.title), *(printed_text(cell, style) for cell in line.cells)])
    return lines


def printed_text(cell: PrintedCell, style: Style) -> str:
    """Return a cell as printed, underlined if it is."""
    text = as_printed(cell.text, style)
    if cell.mark != "second":
        return text
    number, space, rest = text.partition(" (")
    return style.underline(number) + space + rest


def to_csv(part: PrintedPart) -> str:
    """Return one line per cell: the text as printed, and its numbers."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_HEADER)
    for line in _csv_lines(part):
        writer.writerow(map(csv_cell, line))
    return out.getvalue()


def together(sections: Sequence[PrintedPart | Table]) -> str:
    """Return parts of printed tables, with our numbers beside them or without, as one CSV.

    Its first column names the table. If all are without ours, the columns are those of `to_csv`.
    """
    alone = [section for section in sections if isinstance(section, PrintedPart)]
    if len(alone) == len(sections):
        return "".join([to_csv(alone[0]), *(to_csv(part).partition("\n")[2] for part in alone[1:])])
    which = (WHICH, "table")
    lines: list[Line] = []
    for section in sections:
        own = table_lines(section) if isinstance(section, Table) else _lines_as_ours(section)
        lines += [{which: section.printed if isinstance(section, Table) else section.name, **line} for line in own]
    columns = [place for section in sections if isinstance(section, Table) for place in columns_of(section)]
    return written(lines, [which, *columns])


def _lines_as_ours(part: PrintedPart) -> Iterator[Line]:
    """Return the lines of a part without our numbers in the columns of those that have them."""
    source = part.name.partition(SEPARATOR)[0]
    for line in part.lines:
        for heading, cell in zip(part.headings, line.cells, strict=True):
            labels = {"band": line.band, "row": line.title, "column": heading}
            found = {"published_": cell.value, "published_delta_": cell.delta}
            yield {
                **{(LABEL, name): label for name, label in labels.items() if label},
                (PUBLISHED, "printed"): cell.text,
                **{(PUBLISHED, f"{what}{source}"): value for what, value in found.items() if value is not None},
            }


def _csv_lines(part: PrintedPart) -> Iterator[list[object]]:
    for line in part.lines:
        for heading, cell in zip(part.headings, line.cells, strict=True):
            yield [part.name, part.corner, line.band, line.title, heading, cell.text, cell.value, cell.delta]


def to_json(part: PrintedPart) -> PrintedTableJson:
    """Return the part as the document `PrintedTable`."""
    return {
        "name": part.name,
        "title": part.title,
        "corner": part.corner,
        "columns": list(part.headings),
        "rows": [_row(line) for line in part.lines],
        "notes": [note.text for note in _notes(part)],
    }


def _row(line: PrintedLine) -> PrintedRowJson:
    cells: list[PrintedCellJson] = [
        {"text": cell.text, "value": cell.value, "delta": cell.delta, "mark": "underlined" if cell.mark else ""}
        for cell in line.cells
    ]
    return {"band": line.band, "title": line.title, "cells": cells}


def render(part: PrintedPart, form: str) -> str:
    """Return the part as text in one of FORMATS, or as CSV."""
    return to_csv(part) if form == "csv" else FORMATS[form](sheet(part))
