"""The text of each cell of a `Table`, in the style of an output format."""

from __future__ import annotations

import math
import re

from gpas_cli.report.papers import load
from gpas_cli.report.tables.external import ExternalCell, ExternalRow
from gpas_cli.report.tables.notes import notes, significant
from gpas_cli.report.tables.sheet import Sheet, Style
from gpas_cli.report.tables.table import Column, Printed, Row, Table, TableCell


def number(value: float, digits: int, style: Style, sign: str = "") -> str:
    """Return `value` with `digits` after the point; with `sign` "+", positive numbers get a plus."""
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else ("" if value > 0 else style.minus) + style.infinity
    text = f"{value:{sign}.{digits}f}"
    if float(text) == 0:
        text = text.lstrip("+-")
    return text.replace("-", style.minus)


def cell_text(cell: TableCell, digits: int, style: Style) -> str:
    """Return our number in a cell: "33.49 ± 0.05 (-0.74 ± 0.12*)", "running 45 %"; "" if the grid has no such cell.

    Behind the difference is half its 95 % interval.
    """
    if cell.summary is None:
        ended = not cell.statuses or any(status.state in ("diverged", "not finite") for status in cell.statuses)
        return style.escape(cell.status) if ended else style.unfinished or style.escape(cell.status)
    mean = number(cell.summary.mean, digits, style)
    if cell.summary.std is not None:
        mean += f" {style.plus_minus} {number(cell.summary.std, digits, style)}"
    elif cell.stderr is not None:
        mean += f" {style.plus_minus} {number(cell.stderr, digits, style)}"
    marked = {"best": style.bold, "second": style.underline}.get(cell.mark, str)(mean)
    delta = ""
    if cell.delta is not None:
        star = "*" if significant(cell) else ""
        half = ""
        if cell.interval is not None:
            low, high = cell.interval
            half = f" {style.plus_minus} {number((high - low) / 2, digits, style)}"
        delta = f" ({number(cell.delta.mean, digits, style, '+')}{half}{star})"
    status = f" {style.escape(f'[{cell.status}]')}" if cell.status else ""
    return marked + delta + status


def _external_text(cell: ExternalCell, digits: int, style: Style) -> str:
    """Return the number of a network that was not trained here: "41.20 ± 0.97", "not scored"."""
    if cell.value is None:
        return style.escape(cell.status)
    text = number(cell.value, digits, style)
    return text if cell.stderr is None else f"{text} {style.plus_minus} {number(cell.stderr, digits, style)}"


def _printed_text(printed: Printed | None, digits: int, style: Style) -> str:
    """Return a published number with its difference from the published base, "" if there is none."""
    if printed is None:
        return ""
    if printed.text or printed.value is None:
        text, space, rest = _as_printed(printed.text, style).partition(" (")
        return (style.underline(text) if printed.mark else text) + space + rest
    delta = f" ({number(printed.delta, digits, style, '+')})" if printed.delta is not None else ""
    return number(printed.value, digits, style) + delta


def sheet(table: Table) -> Sheet:
    """Return the table as text, networks that were not trained here last, below a rule."""
    groups, published = _column_groups(table), _published_columns(table)
    return Sheet(
        table.spec.title,
        lambda style: grid(table, style),
        groups,
        notes(table),
        _rules(table),
        published,
    )


def _rules(table: Table) -> frozenset[int]:
    """Return the lines of `grid` with a rule above: networks that were not trained here, and all sections but one."""
    rules, place, section = set(), 1, ""
    for i, row in enumerate(table.rows):
        if row.section != section:
            rules |= {place} if i else set()
            place += bool(row.section)
        section = row.section
        place += 1
    return frozenset(rules | ({place} if table.externals.rows else set()))


def _as_printed(text: str, style: Style) -> str:
    """Return text of a paper with the style's minus before numbers."""
    return style.minus.join(map(style.escape, re.split(r"-(?=\d)", text)))


def grid(table: Table, style: Style) -> list[list[str]]:
    """Return the text of all cells, headers first, networks that were not trained here last."""
    header = [corner(table), *(title for column in table.columns for title in titles(table, column))]
    lines = [[style.escape(text) for text in header]]
    section = ""
    for row in table.rows:
        if row.section and row.section != section:
            lines.append([style.escape(row.section), *[""] * (len(header) - 1)])
        section = row.section
        lines.append(_line(table, row, style))
    return [*lines, *(_external_line(table, row, style) for row in table.externals.rows)]


def titles(table: Table, column: Column) -> list[str]:
    """Return the headers of one column: ours, and one for each source beside it, e.g. "71m, GPAS paper"."""
    if table.printed:
        return [column.title, *(load(source)["short"] for source in column.sources)]
    theirs = {source: table.published[source].as_if or column.title for source in column.sources}
    return [column.title, *(f"{theirs[source]}, {load(source)['short']}" for source in column.sources)]


def corner(table: Table) -> str:
    """Return the text of the top left cell: by default the metric and its unit, "" if the columns have several."""
    if table.printed or table.corner:
        return table.corner
    if len({column.metric.name for column in table.columns}) > 1:
        return ""
    unit = f", {table.metric.unit}" if table.metric.unit else ""
    return f"{table.metric.title}{unit}"


def _column_groups(table: Table) -> list[list[int]]:
    """Return the groups of columns of `grid`, without the first, that belong together: those of one label."""
    groups: list[list[int]] = []
    start = 1
    for i, column in enumerate(table.columns):
        own = list(range(start, start + 1 + len(column.sources)))
        if i and column.label == table.columns[i - 1].label:
            groups[-1] += own
        else:
            groups.append(own)
        start = own[-1] + 1
    return groups


def _published_columns(table: Table) -> frozenset[int]:
    """Return the columns of `grid` with published numbers."""
    ours = [True, *(own for column in table.columns for own in (True, *[False] * len(column.sources)))]
    return frozenset(i for i, own in enumerate(ours) if not own)


def _line(table: Table, row: Row, style: Style) -> list[str]:
    line = [style.indent * row.indent + style.escape(row.title)]
    for column, cell in zip(table.columns, row.cells, strict=True):
        digits = column.metric.digits
        if table.alone:
            line += [_printed_text(printed, digits, style) for printed in (cell.printed or {}).values()]
            continue
        line.append(cell_text(cell, digits, style))
        line += [_printed_text((cell.printed or {}).get(source), digits, style) for source in column.sources]
    return line


def _external_line(table: Table, row: ExternalRow, style: Style) -> list[str]:
    line = [style.escape(row.title)]
    for column, cell in zip(table.columns, row.cells, strict=True):
        line.append(_external_text(cell, column.metric.digits, style))
        line += [""] * len(column.sources)
    return line
