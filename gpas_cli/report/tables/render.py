"""One `Table` -> Markdown, LaTeX, HTML, CSV, JSON. The same table gives the same text on every machine.

CSV has a line per cell, and one header for any number of tables. A column is known by the part of the line that it
belongs to and by its name, so that an axis may be called `mean`. Several tables have the union of their columns; a line
leaves the columns of other tables empty.
"""

import csv
import html
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any

from gpas_cli.errors import GpasError, nearest
from gpas_cli.report.papers.recipes import Deviation
from gpas_cli.report.tables.cell_text import sheet
from gpas_cli.report.tables.entry_status import EntryStatus
from gpas_cli.report.tables.notes import Gain, gains, notes
from gpas_cli.report.tables.sheet import Note, Sheet, Style, to_latex
from gpas_cli.report.tables.table import Column, Printed, Table, TableCell
from gpas_cli.spec.stage import Metric
from gpas_cli.statistics.stats import Paired
from gpas_cli.structure import FLAT, Document, DocumentJson, Number, plain
from gpas_cli.words import one_line

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # the first characters of cells that a spreadsheet executes
_WHICH, _LABEL, _NUMBER, _CONTRIBUTED, _PUBLISHED = range(5)  # the parts of a line, in their order
_BESIDE = ("published_", "published_delta_")
_NUMBERS = (
    *("metric", "mean", "std", "stderr", "n", "wanted"),
    *("delta", "delta_std", "delta_n", "delta_low", "delta_high", "p", "mark", "status"),
)

_Place = tuple[int, str]  # part of the line, and name
# Of a table as printed.
_AS_PRINTED: tuple[_Place, ...] = (
    *((_WHICH, "table"), (_LABEL, "part"), (_LABEL, "band"), (_LABEL, "row"), (_LABEL, "column")),
    *((_PUBLISHED, "text"), (_PUBLISHED, "value"), (_PUBLISHED, "delta")),
)
_Line = Mapping[_Place, object]
_SPECIAL = ("\\", "|", "*", "_", "`", "<", "[")


def to_csv(table: Table) -> str:
    """Return one line per cell, with numbers in full precision.

    Networks that were not trained here have no labels on the axes of the rows; two more columns name them. A table as
    printed has the text of each cell, and its numbers. Text that a spreadsheet would execute as a formula gets an
    apostrophe in front.
    """
    return _written(_lines(table), _columns(table))


def together(which: str, tables: Iterable[tuple[str, Table]]) -> str:
    """Return several tables as one CSV, whose first column, called `which`, has the name of each line's table."""
    named = list(tables)
    lines = [{(_WHICH, which): name, **line} for name, table in named for line in _lines(table)]
    return _written(lines, [(_WHICH, which), *(place for _, table in named for place in _columns(table))])


def _written(lines: Iterable[_Line], columns: Iterable[_Place] = ()) -> str:
    """Return lines below a header with `columns` and all others that a line has, part by part."""
    rows = list(lines)
    places = dict.fromkeys([*columns, *(place for line in rows for place in line)])
    header = sorted(places, key=lambda place: place[0])  # stable: within a part, the order of the tables
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([_csv_cell(name) for _, name in header])
    writer.writerows([_csv_cell(line.get(place)) for place in header] for line in rows)
    return out.getvalue()


def _csv_cell(value: object) -> object:
    """Return a number unchanged, and text printable and never a formula."""
    if not isinstance(value, str):
        return value
    text = one_line(value)
    return f"'{text}" if value.startswith(_FORMULA) or text.startswith(_FORMULA) else text


def _columns(table: Table) -> list[_Place]:
    """Return the columns of a table's lines, also of those that it does not have."""
    if table.alone:
        return [*_AS_PRINTED]
    labels = [*table.spec.rows, table.spec.columns, *(["column"] if table.printed else [])]
    printed = [f"{part}{source}" for source in table.published for part in _BESIDE]
    parts = ((_LABEL, labels), (_NUMBER, _NUMBERS), (_PUBLISHED, printed))
    return [(part, name) for part, names in parts for name in names]


def _lines(table: Table) -> Iterator[_Line]:
    """Return a line for each cell that has runs; for a table as printed, one for each of its cells."""
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=True):
            for one in cell.printed.values() if table.alone else ():
                text = (table.printed, table.corner, row.section, row.title, column.title, one.cell.text)
                yield dict(zip(_AS_PRINTED, (*text, one.value, one.delta), strict=True))
            if cell.statuses:
                labels = dict(zip((*table.spec.rows, table.spec.columns), (*row.key, column.label), strict=True))
                # The columns of a paper's layout may share a label, so that they have their headings too.
                headed = {"column": column.title, **labels} if table.printed else labels
                published = [(source, one) for source, one in cell.printed.items() if source in table.published]
                yield {
                    **{(_LABEL, name): label for name, label in headed.items()},
                    **{(_NUMBER, name): value for name, value in numbers(column, cell).items()},
                    **{(_CONTRIBUTED, place): value for place, value in _theirs(cell)},
                    **{place: value for source, one in published for place, value in _beside(source, one).items()},
                }


def _beside(source: str, printed: Printed) -> _Line:
    values = zip(_BESIDE, (printed.value, printed.delta), strict=True)
    return {(_PUBLISHED, f"{part}{source}"): value for part, value in values}


def _theirs(cell: TableCell) -> Iterator[tuple[str, object]]:
    for name, one in cell.contributed.items():
        yield f"contributed_{name}", one.summary and one.summary.mean
        yield f"contributed_n_{name}", one.n
        yield f"contributed_delta_{name}", one.delta and one.delta.mean


def numbers(column: Column, cell: TableCell) -> Mapping[str, object]:
    """Return our numbers of a cell, None for those that it does not have."""
    s, d = cell.summary, cell.delta
    ours = [s.mean, s.std, cell.stderr, s.n] if s else [None, None, None, 0]
    low, high = (d and d.interval) or (None, None)
    delta = [d.mean, d.std, d.n, low, high, d.p] if d else [None] * 6
    values = [column.metric.name, *ours, len(cell.statuses), *delta, cell.mark, cell.status]
    return dict(zip(_NUMBERS, values, strict=True))


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
    origins = sheet.origins
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


class _PublishedNumberJson(Document):
    """A number that a paper prints."""

    value: Annotated[Number | None, "null where the paper prints none: N/A, a dash"]
    delta: Number | None
    tokens: Annotated[int | None, "tokens that its network was trained on, if stated"]
    text: Annotated[str, "number and difference as printed, in tables with the paper's own layout"]
    deviations: Sequence[Deviation]
    remarks: Annotated[Sequence[str], "misprints and unstated choices that concern it"]


class _TableRunJson(Document):
    """One run that a cell of the table is the mean of."""

    name: str
    key: str
    over: Annotated[Any, "its label on the averaged axis: the seed"]
    state: str
    value: Number | None
    stderr: Annotated[Number | None, "the standard error of a score over the questions of its task"]
    progress: float | None


class _ContributedRunJson(Document):
    """A run of somebody else, on what it ran, and the digests of its text."""

    run: _TableRunJson = field(metadata=FLAT)
    hardware: str | None
    code: str | None
    commit: str | None
    text: str | None
    validation_text: str | None


class _ContributedJson(Document):
    """What one person has contributed to a cell, verified but not trained again; no other number includes it."""

    mean: Number | None
    std: Number | None
    n: Annotated[int, "runs with a result"]
    delta: Annotated[Number | None, "the mean difference from the person's own base"]
    status: str
    runs: Sequence[_ContributedRunJson]


class _TableCellJson(Document):
    """One cell of a table."""

    mean: Number | None
    std: Number | None
    stderr: Annotated[Number | None, "of a single run at a task: the standard error over the questions"]
    n: Annotated[int, "runs with a result"]
    wanted: Annotated[int, "runs that the grid declares"]
    delta: Paired | None
    mark: str
    status: Annotated[str, "why numbers are missing, empty if none are"]
    contributed: Annotated[Mapping[str, _ContributedJson], "by the name of the contributor"]
    published: Mapping[str, _PublishedNumberJson]
    runs: Sequence[_TableRunJson]
    others: Annotated[Sequence[_TableRunJson], "runs of the other settings, where the best of several is shown"]


class _TableRowJson(Document):
    """One row."""

    title: str
    labels: Mapping[str, Any]
    cells: Sequence[_TableCellJson | None]


class TableJson(DocumentJson):
    """`gpas table --json`; of several tables, an object with the fields `schema` and `tables`, a list of these."""

    name: Annotated[str | None, "SOURCE:NUMBER of a table with a paper's own layout"]
    title: str
    metric: Annotated[Metric, "the metric of the first column"]
    rows: Sequence[_TableRowJson]
    columns: Sequence[Column]
    papers: Annotated[Mapping[str, str], "the papers whose numbers are beside ours, and the digests of their files"]
    gains: Sequence[Gain]
    notes: Sequence[Note]


class _PrintedCellJson(Document):
    """A cell of a published table: the text as printed, and its numbers."""

    text: str
    value: float | None
    delta: Annotated[float | None, "the printed difference from the base"]
    mark: Annotated[str, "underlined, or empty"]


class _PrintedRowJson(Document):
    """A row; `band` is the heading above its group of rows."""

    band: str
    title: str
    cells: Sequence[_PrintedCellJson]


class PrintedTableJson(Document):
    """A table as its paper prints it; two tables under one caption have the same name."""

    name: Annotated[str, "SOURCE:NUMBER"]
    title: str
    corner: Annotated[str, "the heading of the titles of the rows"]
    columns: Sequence[str]
    rows: Sequence[_PrintedRowJson]
    notes: Annotated[Sequence[str], "why no grid has a cell of it, and misprints and unstated choices"]


class PaperTablesJson(DocumentJson):
    """`gpas table --json` of a paper's tables."""

    tables: Annotated[Sequence[TableJson], "tables with our numbers, in the paper's layout"]
    published: Annotated[Sequence[PrintedTableJson], "as printed: tables for which no grid has a cell, settings"]


class TablesJson(DocumentJson):
    """`gpas table --json` of several tables."""

    tables: Sequence[TableJson]


def to_json(table: Table) -> str:
    """Return the whole table as JSON. Numbers that are not finite are the strings "nan", "inf", "-inf"."""
    made = plain(printed_json(table) if table.alone else table_json(table))
    return json.dumps(made, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def table_json(table: Table) -> TableJson:
    """Return the whole table as a document."""
    return TableJson(
        name=table.printed or None,
        title=table.spec.title,
        metric=table.metric,
        rows=[
            _TableRowJson(
                title=row.full_title,
                labels=dict(zip(table.spec.rows, row.key, strict=True)),
                cells=[_cell_json(cell) if cell.statuses else None for cell in row.cells],
            )
            for row in table.rows
        ],
        columns=table.columns,
        papers=table.papers,
        gains=gains(table),
        notes=notes(table),
    )  # fmt: skip


def _cell_json(cell: TableCell) -> _TableCellJson:
    return _TableCellJson(
        mean=cell.summary.mean if cell.summary else None, std=cell.summary.std if cell.summary else None,
        stderr=cell.stderr, n=cell.n, wanted=len(cell.statuses),
        delta=cell.delta, mark=cell.mark,
        status=cell.status, contributed={name: _contributed_json(own) for name, own in cell.contributed.items()},
        published={source: _published_json(printed) for source, printed in cell.printed.items()},
        runs=list(map(_run_json, cell.statuses)), others=list(map(_run_json, cell.others)),
    )  # fmt: skip


def _run_json(run: EntryStatus) -> _TableRunJson:
    return _TableRunJson(
        name=run.entry.id, key=run.key, over=run.seed, state=run.state, value=run.value, stderr=run.stderr,
        progress=run.progress,
    )  # fmt: skip


def _published_json(printed: Printed) -> _PublishedNumberJson:
    return _PublishedNumberJson(
        value=printed.value, delta=printed.delta, tokens=printed.cell.tokens, text=printed.cell.text,
        deviations=printed.deviations, remarks=printed.remarks,
    )  # fmt: skip


def _contributed_json(cell: TableCell) -> _ContributedJson:
    runs = [
        _ContributedRunJson(
            run=_run_json(run), hardware=found.hardware or None, code=found.code or None,
            commit=found.git_commit or None, text=found.fingerprint or None,
            validation_text=found.validation_fingerprint or None,
        )
        for run in cell.statuses
        if (found := run.result)
    ]  # fmt: skip
    return _ContributedJson(
        mean=cell.summary.mean if cell.summary else None, std=cell.summary.std if cell.summary else None, n=cell.n,
        delta=cell.delta.mean if cell.delta else None, status=cell.status, runs=runs,
    )  # fmt: skip


def printed_json(table: Table) -> PrintedTableJson:
    """Return a table as printed as a document."""
    rows = [
        _PrintedRowJson(
            band=row.section, title=row.title,
            cells=[
                _PrintedCellJson(text=one.cell.text, value=one.value, delta=one.delta, mark=one.underlined)
                for one in row.as_printed
            ],
        )
        for row in table.rows
    ]  # fmt: skip
    return PrintedTableJson(
        name=table.printed, title=table.spec.title, corner=table.corner, rows=rows,
        columns=[column.title for column in table.columns], notes=[note.text for note in table.remarks],
    )  # fmt: skip


_DRAWN: Mapping[str, Callable[[Sheet], str]] = {"markdown": _to_markdown, "latex": to_latex, "html": to_html}
_DATA: Mapping[str, Callable[[Table], str]] = {"csv": to_csv, "json": to_json}
FORMATS = (*_DRAWN, *_DATA)


def render(table: Table, form: str, noted: str = "all") -> str:
    """Return the table as text in one of FORMATS, with the notes of `Sheet.with_notes`. Raises GpasError with the
    nearest format."""
    if form in _DRAWN:
        return _DRAWN[form](sheet(table).with_notes(noted))
    if form not in _DATA:
        raise GpasError(f"unknown format '{form}'; {nearest(form, FORMATS)}")
    return _DATA[form](table)
