"""`Table`s -> CSV: a line per cell, and one header for any number of tables.

A column is known by the part of the line that it belongs to and by its name, so that an axis may be called `mean`. The
columns of several tables are the union of theirs; a line leaves those of other tables empty.
"""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpas_cli.report.tables.table import Column, Printed, Row, Table, TableCell
from gpas_cli.words import one_line

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # the first characters of cells that a spreadsheet executes
_WHICH, _LABEL, _NUMBER, _PUBLISHED, _ORIGIN = range(5)  # the parts of a line, in their order
_BESIDE = ("published_", "published_delta_")
_AS_PRINTED = ("table", "part", "band", "row", "column", "text", "value", "delta")
_NUMBERS = (
    *("metric", "mean", "std", "stderr", "n", "wanted"),
    *("delta", "delta_std", "delta_n", "delta_low", "delta_high", "p", "mark", "status"),
)

_Place = tuple[int, str]  # part of the line, and name
_Line = Mapping[_Place, object]


def to_csv(table: Table) -> str:
    """Return one line per cell, with numbers in full precision.

    Networks that were not trained here have no labels on the axes of the rows; two more columns name them. A table as
    printed has the text of each cell, and its numbers. Text that a spreadsheet would execute as a formula gets an
    apostrophe in front.
    """
    return _as_printed([table]) if table.alone else _written(_lines(table), _columns(table))


def together(which: str, tables: Iterable[tuple[str, Table]]) -> str:
    """Return several tables as one CSV, whose first column, called `which`, has the name of each line's table."""
    named = list(tables)
    if all(table.alone for _, table in named):
        return _as_printed([table for _, table in named])
    lines = [{(_WHICH, which): name, **line} for name, table in named for line in _lines(table)]
    ours = [table for _, table in named if not table.alone]
    return _written(lines, [(_WHICH, which), *(place for table in ours for place in _columns(table))])


def _as_printed(tables: Iterable[Table]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_AS_PRINTED)
    for table in tables:
        for row in table.rows:
            for column, cell in zip(table.columns, row.cells, strict=True):
                place = (table.printed, table.corner, row.section, row.title, column.title)
                for one in cell.printed.values():
                    writer.writerow(map(_csv_cell, (*place, one.cell.text, one.value, one.delta)))
    return out.getvalue()


def _written(lines: Iterable[_Line], columns: Iterable[_Place] = ()) -> str:
    """Return lines below a header with `columns` and all others that a line has, part by part."""
    rows = list(lines)
    places = dict.fromkeys([*columns, *(place for line in rows for place in line)])
    header = sorted(places, key=lambda place: place[0])  # stable: the order within a part is that of the tables
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
    labels = [*table.spec.rows, table.spec.columns, *(["column"] if table.printed else [])]
    printed = [f"{part}{source}" for source in table.published for part in _BESIDE]
    origin = ["external", "weights"] if table.externals.rows else []
    parts = ((_LABEL, labels), (_NUMBER, _NUMBERS), (_PUBLISHED, printed), (_ORIGIN, origin))
    return [(part, name) for part, names in parts for name in names]


def _lines(table: Table) -> Iterator[_Line]:
    """Return a line for each cell that has runs, and for each number of a network that was not trained here.

    Of a table as printed, a line for each of its cells.
    """
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=True):
            if table.alone:
                yield from _as_printed_lines(row, column, cell)
            elif cell.statuses:
                labels = dict(zip((*table.spec.rows, table.spec.columns), (*row.key, column.label), strict=True))
                # The columns of a paper's layout may share a label, so that they have their headings too.
                headed = {"column": column.title, **labels} if table.printed else labels
                published = [(source, one) for source, one in cell.printed.items() if source in table.published]
                yield {
                    **{(_LABEL, name): label for name, label in headed.items()},
                    **_numbers(column, cell),
                    **{place: value for source, one in published for place, value in _beside(source, one).items()},
                }
    for external in table.externals.rows:
        origin = {
            (_ORIGIN, "external"): external.title,
            (_ORIGIN, "weights"): external.network.origin.get("weights") or external.network.origin.get("files"),
        }
        for column, score in zip(table.columns, external.cells, strict=True):
            numbers = [column.metric.name, score.value, None, score.stderr, int(score.value is not None), 1]
            named = _named([*numbers, *[None] * 6, "", score.status])
            yield {(_LABEL, table.spec.columns): column.label, **named, **origin}


def _as_printed_lines(row: Row, column: Column, cell: TableCell) -> Iterator[_Line]:
    labels = {"band": row.section, "row": row.title, "column": column.title}
    for source, printed in cell.printed.items():
        yield {
            **{(_LABEL, name): label for name, label in labels.items() if label},
            (_PUBLISHED, "printed"): printed.cell.text,
            **{place: value for place, value in _beside(source, printed).items() if value is not None},
        }


def _beside(source: str, printed: Printed) -> _Line:
    values = zip(_BESIDE, (printed.value, printed.delta), strict=True)
    return {(_PUBLISHED, f"{part}{source}"): value for part, value in values}


def _numbers(column: Column, cell: TableCell) -> _Line:
    s, d = cell.summary, cell.delta
    ours = [s.mean, s.std, cell.stderr, s.n] if s else [None, None, None, 0]
    low, high = cell.interval or (None, None)
    delta = [d.mean, d.std, d.n, low, high, d.p] if d else [None] * 6
    return _named([column.metric.name, *ours, len(cell.statuses), *delta, cell.mark, cell.status])


def _named(values: Sequence[object]) -> _Line:
    return {(_NUMBER, name): value for name, value in zip(_NUMBERS, values, strict=True)}
