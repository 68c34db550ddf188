"""`Table`s -> CSV: a line per cell, and one header for any number of tables.

A column is known by the part of the line that it belongs to and by its name, so that an axis may be called `mean`. The
columns of several tables are the union of theirs; a line leaves those of other tables empty.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpas_cli.report.tables.table import Column, Row, Table, TableCell
from gpas_cli.words import one_line

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # the first characters of cells that a spreadsheet executes
WHICH, LABEL, NUMBER, PUBLISHED, ORIGIN = range(5)  # the parts of a line, in their order
NUMBERS = (
    *("metric", "mean", "std", "stderr", "n", "wanted"),
    *("delta", "delta_std", "delta_n", "delta_low", "delta_high", "p", "mark", "status"),
)

Place = tuple[int, str]  # part of the line, and name
Line = Mapping[Place, object]


def to_csv(table: Table) -> str:
    """Return one line per cell, with numbers in full precision.

    Networks that were not trained here have no labels on the axes of the rows; two more columns name them. Text that a
    spreadsheet would execute as a formula gets an apostrophe in front.
    """
    return written(table_lines(table), columns_of(table))


def together(which: str, tables: Iterable[tuple[str, Table]]) -> str:
    """Return several tables as one CSV, whose first column, called `which`, has the name of each line's table."""
    named = list(tables)
    lines = [{(WHICH, which): name, **line} for name, table in named for line in table_lines(table)]
    return written(lines, [(WHICH, which), *(place for _, table in named for place in columns_of(table))])


def written(lines: Iterable[Line], columns: Iterable[Place] = ()) -> str:
    """Return lines below a header with `columns` and all others that a line has, part by part."""
    rows = list(lines)
    places = dict.fromkeys([*columns, *(place for line in rows for place in line)])
    header = sorted(places, key=lambda place: place[0])  # stable: the order within a part is that of the tables
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([csv_cell(name) for _, name in header])
    writer.writerows([csv_cell(line.get(place)) for place in header] for line in rows)
    return out.getvalue()


def csv_cell(value: object) -> object:
    """Return a number unchanged, and text printable and never a formula."""
    if not isinstance(value, str):
        return value
    text = one_line(value)
    return f"'{text}" if value.startswith(FORMULA) or text.startswith(FORMULA) else text


def columns_of(table: Table) -> list[Place]:
    """Return the columns of a table's lines, also of those that it does not have."""
    labels = [*table.spec.rows, table.spec.columns, *(["column"] if table.printed else [])]
    printed = [f"{part}{source}" for source in table.published for part in ("published_", "published_delta_")]
    origin = ["external", "weights"] if table.externals.rows else []
    parts = ((LABEL, labels), (NUMBER, NUMBERS), (PUBLISHED, printed), (ORIGIN, origin))
    return [(part, name) for part, names in parts for name in names]


def table_lines(table: Table) -> Iterator[Line]:
    """Return a line for each cell that has runs, and for each number of a network that was not trained here."""
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=True):
            if cell.statuses:
                yield {**_labels(table, row, column), **_numbers(column, cell), **_printed(table, cell)}
    for external in table.externals.rows:
        origin = {(ORIGIN, "external"): external.title, (ORIGIN, "weights"): external.network.origin.get("weights")}
        for column, score in zip(table.columns, external.cells, strict=True):
            numbers = [column.metric.name, score.value, None, score.stderr, int(score.value is not None), 1]
            named = _named([*numbers, *[None] * 6, "", score.status])
            yield {(LABEL, table.spec.columns): column.label, **named, **origin}


def _labels(table: Table, row: Row, column: Column) -> Line:
    """Return the labels of a cell; in the layout of a paper, whose columns may share a label, their headings too."""
    labels = dict(zip((*table.spec.rows, table.spec.columns), (*row.key, column.label), strict=True))
    headed = {"column": column.title, **labels} if table.printed else labels
    return {(LABEL, name): label for name, label in headed.items()}


def _numbers(column: Column, cell: TableCell) -> Line:
    s, d = cell.summary, cell.delta
    ours = [s.mean, s.std, cell.stderr, s.n] if s else [None, None, None, 0]
    low, high = cell.interval or (None, None)
    delta = [d.mean, d.std, d.n, low, high, d.p] if d else [None] * 6
    return _named([column.metric.name, *ours, len(cell.statuses), *delta, cell.mark, cell.status])


def _named(values: Sequence[object]) -> Line:
    return {(NUMBER, name): value for name, value in zip(NUMBERS, values, strict=True)}


def _printed(table: Table, cell: TableCell) -> Line:
    printed = {source: (cell.printed or {}).get(source) for source in table.published}
    return {
        (PUBLISHED, f"{part}{source}"): value
        for source, one in printed.items()
        if one
        for part, value in (("published_", one.value), ("published_delta_", one.delta))
    }
