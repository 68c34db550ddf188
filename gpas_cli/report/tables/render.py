"""One `Table` -> Markdown, LaTeX, HTML, CSV, JSON. The same table gives the same text on every machine."""

import html
import json
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

from gpas_cli.documents import DocumentJson, From, NumberJson, ScoreJson, filled, plain
from gpas_cli.errors import GpasError, nearest
from gpas_cli.report.papers.recipes import Deviation
from gpas_cli.report.tables.cell_text import sheet
from gpas_cli.report.tables.csv_table import to_csv
from gpas_cli.report.tables.latex import to_latex
from gpas_cli.report.tables.notes import gains, notes
from gpas_cli.report.tables.sheet import Sheet, Style
from gpas_cli.report.tables.table import Table, TableCell
from gpas_cli.words import one_line


def _escape(text: str) -> str:
    return html.escape(one_line(text))


_HTML = Style(
    _escape,
    lambda text: f"<strong>{text}</strong>",
    lambda text: f"<u>{text}</u>",
    minus="&minus;",
    infinity="∞",
    indent="&emsp;",
)


def to_html(sheet: Sheet) -> str:
    """Return a `table` element with the title as its caption, and the notes as a list with the class `notes`."""
    header, *lines = sheet.texts(_HTML)
    origins = ["published" if column in sheet.published else "ours" for column in range(len(header))]
    heads = [f'<th scope="col" class="{origin}">{text}</th>' for origin, text in zip(origins, header, strict=True)]
    parts = [
        "<table>",
        f"<caption>{_escape(sheet.title)}</caption>",
        f'<thead>\n<tr><th scope="col">{header[0]}</th>{"".join(heads[1:])}</tr>\n</thead>',
        "<tbody>",
    ]
    for place, line in enumerate(lines, 1):
        cells = [f'<td class="{origin}">{text}</td>' for origin, text in zip(origins, line, strict=True)]
        opening = '<tr class="rule">' if place in sheet.rules else "<tr>"
        parts.append(f'{opening}<th scope="row">{line[0]}</th>{"".join(cells[1:])}</tr>')
    parts += ["</tbody>", "</table>"]
    if sheet.notes:
        parts += ['<ul class="notes">', *(f"<li>{_escape(note.text)}</li>" for note in sheet.notes), "</ul>"]
    return "\n".join(parts) + "\n"


_SPECIAL = ("\\", "|", "*", "_", "`", "<", "[")


def _markdown_escape(text: str) -> str:
    """Return text that Markdown shows verbatim."""
    text = one_line(text)
    for special in _SPECIAL:
        text = text.replace(special, f"\\{special}")
    return text


_MARKDOWN = Style(_markdown_escape, lambda text: f"**{text}**", lambda text: f"<u>{text}</u>", indent="&nbsp;&nbsp;")


def _to_markdown(sheet: Sheet) -> str:
    """Return a pipe table with the notes as a list."""
    header, *lines = sheet.texts(_MARKDOWN)
    rule = ["---", *["---:"] * (len(header) - 1)]
    parts = [
        f"**{_markdown_escape(sheet.title)}**",
        "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *lines)),
    ]
    if sheet.notes:
        parts.append("\n".join(f"- {_markdown_escape(note.text)}" for note in sheet.notes))
    return "\n\n".join(parts) + "\n"


class _MetricJson(TypedDict):
    """The metric that a column shows."""

    name: str
    title: str
    unit: str
    better: Annotated[str, "lower, higher, or empty if neither is better"]
    digits: int


class _DeltaJson(TypedDict):
    """The difference from the base: the mean over pairs of the same seed."""

    mean: NumberJson
    std: NumberJson | None
    n: Annotated[int, "pairs"]
    lower: Annotated[int, "pairs with a lower number than the base"]
    higher: Annotated[int, "pairs with a higher number than the base"]
    t: Annotated[NumberJson | None, "Student's t of the paired differences"]
    p: Annotated[NumberJson | None, "its two-sided p value"]
    interval: Annotated[
        tuple[float, float] | None, "both ends of the 95 % interval of the mean; null with fewer than two pairs"
    ]


class _PublishedNumberJson(TypedDict):
    """A number that a paper prints."""

    value: Annotated[NumberJson | None, "null where the paper prints none: N/A, a dash"]
    delta: NumberJson | None
    tokens: Annotated[int | None, "tokens that its network was trained on, if stated", From("cell.tokens")]
    text: Annotated[str, "number and difference as printed, in tables with the paper's own layout", From("cell.text")]
    deviations: list[Deviation]
    remarks: Annotated[list[str], "misprints and unstated choices that concern it"]


class _TableRunJson(TypedDict):
    """One run that a cell of the table is the mean of."""

    name: Annotated[str, From("entry.id")]
    key: str
    over: Annotated[Any, "its label on the averaged axis: the seed", From("seed")]
    state: str
    value: NumberJson | None
    stderr: Annotated[NumberJson | None, "the standard error of a score over the questions of its task"]
    progress: float | None


class _TableCellJson(TypedDict):
    """One cell of a table."""

    mean: Annotated[NumberJson | None, From("summary.mean")]
    std: Annotated[NumberJson | None, From("summary.std")]
    stderr: Annotated[NumberJson | None, "of a single run at a task: the standard error over the questions"]
    n: Annotated[int, "runs with a result"]
    wanted: Annotated[int, "runs that the grid declares"]
    delta: _DeltaJson | None
    mark: str
    status: Annotated[str, "why numbers are missing, empty if none are"]
    published: Annotated[dict[str, _PublishedNumberJson], From("printed")]
    runs: Annotated[list[_TableRunJson], From("statuses")]
    others: Annotated[list[_TableRunJson], "runs of the other settings, where the best of several is shown"]


class _TableRowJson(TypedDict):
    """One row."""

    title: str
    labels: dict[str, Any]
    cells: list[_TableCellJson | None]


class _ExternalCellJson(TypedDict):
    """The number of a network that was not trained here."""

    value: NumberJson | None
    stderr: Annotated[NumberJson | None, "the standard error over the questions"]
    status: Annotated[str, "why there is no number"]


class _ExternalRowJson(TypedDict):
    """A network that was not trained here: no rank, no difference, and scored with the settings of the cells."""

    title: str
    name: Annotated[str, From("network.name")]
    key: Annotated[str, "content key of its scores: 16 hex digits", From("network.key")]
    origin: Annotated[
        dict[str, str],
        "source, revision, digests of the weights and of the other files, architecture",
        From("network.origin"),
    ]
    settings: Annotated[dict[str, int], "shots, limit, max_length", From("network.settings")]
    precision: Annotated[str | None, From("network.precision")]
    cells: list[_ExternalCellJson]
    scores: list[ScoreJson]


class _ColumnJson(TypedDict):
    """One column; `sources` are the papers whose numbers stand beside it."""

    label: Any
    title: str
    metric: _MetricJson
    sources: list[str]


class TableJson(DocumentJson):
    """`gpas table --json`; of several tables, an object with the fields `schema` and `tables`, a list of these."""

    name: Annotated[str | None, "SOURCE:NUMBER of a table with a paper's own layout", From("printed")]
    title: Annotated[str, From("spec.title")]
    metric: Annotated[_MetricJson, "that of the first column"]
    rows: list[_TableRowJson]
    externals: Annotated[list[_ExternalRowJson], "the networks that --external names", From("externals.rows")]
    columns: list[_ColumnJson]
    gains: list[dict[str, Any]]
    notes: list[dict[str, Any]]


class _PrintedCellJson(TypedDict):
    """A cell of a published table: the text as printed, and its numbers."""

    text: Annotated[str, From("cell.text")]
    value: float | None
    delta: Annotated[float | None, "the printed difference from the base"]
    mark: Annotated[str, "underlined, or empty", From("underlined")]


class _PrintedRowJson(TypedDict):
    """A row; `band` is the heading above the rows that it belongs to."""

    band: Annotated[str, From("section")]
    title: str
    cells: Annotated[list[_PrintedCellJson], From("as_printed")]


class PrintedTableJson(TypedDict):
    """A table as its paper prints it; two tables under one caption have the same name."""

    name: Annotated[str, "SOURCE:NUMBER", From("printed")]
    title: Annotated[str, From("spec.title")]
    corner: Annotated[str, "the heading of the titles of the rows"]
    columns: list[str]
    rows: list[_PrintedRowJson]
    notes: Annotated[list[str], "why no grid has a cell of it, and misprints and unstated choices"]


class TablesJson(DocumentJson):
    """`gpas table --json` of several tables."""

    tables: list[TableJson]


def to_json(table: Table) -> str:
    """Return the whole table as JSON. Numbers that are not finite are the strings "nan", "inf", "-inf"."""
    made = plain(printed_json(table) if table.alone else table_json(table))
    return json.dumps(made, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def table_json(table: Table) -> TableJson:
    """Return the whole table as a document."""
    rows = [
        {
            "title": row.full_title,
            "labels": dict(zip(table.spec.rows, row.key, strict=True)),
            "cells": [_json_cell(cell) for cell in row.cells],
        }
        for row in table.rows
    ]
    said = [{"kind": note.kind, "text": note.text} for note in notes(table)]
    return filled(TableJson, table, rows=rows, gains=gains(table), notes=said)


def _json_cell(cell: TableCell) -> _TableCellJson | None:
    if not cell.statuses:
        return None
    delta = filled(_DeltaJson, cell.delta, cell) if cell.delta else None
    return filled(_TableCellJson, cell, wanted=len(cell.statuses), delta=delta)


def printed_json(table: Table) -> PrintedTableJson:
    """Return a table as printed as a document."""
    return filled(
        PrintedTableJson,
        table,
        columns=[column.title for column in table.columns],
        notes=[note.text for note in table.remarks],
    )


FORMATS: dict[str, Callable[[Table], str]] = {
    "markdown": lambda table: _to_markdown(sheet(table)),
    "latex": lambda table: to_latex(sheet(table)),
    "html": lambda table: to_html(sheet(table)),
    "csv": to_csv,
    "json": to_json,
}


def render(table: Table, form: str) -> str:
    """Return the table as text in one of FORMATS. Raises GpasError with the nearest format."""
    if form not in FORMATS:
        raise GpasError(f"unknown format '{form}'; {nearest(form, FORMATS)}")
    return FORMATS[form](table)
