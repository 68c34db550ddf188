"""The text of each cell of a `Table`, in the style of an output format."""

import math
import re

from gpas_cli.report.tables.notes import notes, significant
from gpas_cli.report.tables.sheet import Sheet, Style
from gpas_cli.report.tables.table import Column, Printed, Row, Table, TableCell
from gpas_cli.words import fixed


def number(value: float, digits: int, style: Style, sign: str = "") -> str:
    """Return `value` as `words.fixed`, in the signs of a style."""
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else ("" if value > 0 else style.minus) + style.infinity
    text = fixed(value, digits, sign)
    unsigned = text.lstrip("+-")
    if float(text) == 0:
        return unsigned
    factor, exponent, power = unsigned.partition("e")
    signed = text.removesuffix(unsigned).replace("-", style.minus)
    return signed + (style.power.format(factor, power) if exponent else unsigned)


def cell_text(cell: TableCell, digits: int, style: Style) -> str:
    """Return our number in a cell: "33.49 ± 0.05 (-0.74 ± 0.12*)", "running 45 %"; "" if the grid has no such cell.

    Behind the difference is half its 95 % interval.
    """
    if cell.summary is None:
        ended = not cell.statuses or any(status.state in ("diverged", "not finite") for status in cell.statuses)
        return style.escape(cell.status) if ended else style.unfinished or style.escape(cell.status)
    mean = _with_spread(cell.summary.mean, cell.stderr if cell.summary.std is None else cell.summary.std, digits, style)
    marked = {"best": style.bold, "second": style.underline}.get(cell.mark, str)(mean)
    delta = ""
    if cell.delta is not None:
        star = "*" if significant(cell) else ""
        ends = cell.delta.interval
        half = (ends[1] - ends[0]) / 2 if ends else None
        delta = f" ({_with_spread(cell.delta.mean, half, digits, style, '+')}{star})"
    status = f" {style.escape(f'[{cell.status}]')}" if cell.status else ""
    return marked + delta + status


def _with_spread(value: float, spread: float | None, digits: int, style: Style, sign: str = "") -> str:
    text = number(value, digits, style, sign)
    return text if spread is None else f"{text} {style.plus_minus} {number(spread, digits, style)}"


def _printed_text(printed: Printed | None, digits: int, style: Style) -> str:
    """Return a published number with its difference from the published base, "" if there is none."""
    if printed is None:
        return ""
    if printed.cell.text or printed.value is None:
        escaped = style.minus.join(map(style.escape, re.split(r"-(?=\d)", printed.cell.text)))
        text, space, rest = escaped.partition(" (")
        return (style.underline(text) if printed.cell.mark else text) + space + rest
    digits = min(digits, printed.cell.table.digits)  # as many as the paper prints
    delta = f" ({number(printed.delta, digits, style, '+')})" if printed.delta is not None else ""
    return number(printed.value, digits, style) + delta


def sheet(table: Table) -> Sheet:
    """Return the table as text, networks that were not trained here last, below a rule."""
    groups: list[list[int]] = []  # columns of one label belong together
    origins = ["ours"]
    for i, column in enumerate(table.columns):
        start = len(origins)
        origins += ["ours", *["contributed"] * len(column.contributors), *["published"] * len(column.sources)]
        if i and column.label == table.columns[i - 1].label:
            groups[-1] += range(start, len(origins))
        else:
            groups.append(list(range(start, len(origins))))
    return Sheet(table.spec.title, lambda style: _lines(table, style), groups, notes(table), _rules(table), origins)


def _rules(table: Table) -> frozenset[int]:
    """Return the lines of `_lines` with a rule above: all sections but one."""
    rules, place, section = set(), 1, ""
    for i, row in enumerate(table.rows):
        if row.section != section:
            rules |= {place} if i else set()
            place += bool(row.section)
        section = row.section
        place += 1
    return frozenset(rules)


def _lines(table: Table, style: Style) -> list[list[str]]:
    """Return the text of all cells, headers first."""
    # By default the metric and its unit, "" if the columns have several.
    usual = table.metric.heading if len({column.metric.name for column in table.columns}) == 1 else ""
    corner = table.corner if table.printed or table.corner else usual
    header = [corner, *(title for column in table.columns for title in _titles(table, column))]
    lines = [[style.escape(text) for text in header]]
    section = ""
    for row in table.rows:
        if row.section and row.section != section:
            lines.append([style.escape(row.section), *[""] * (len(header) - 1)])
        section = row.section
        lines.append(_line(table, row, style))
    return lines


def _titles(table: Table, column: Column) -> list[str]:
    """Return the headers of one column: ours, one for each contributor, and one for each source beside it, e.g. "71m,
    GPAS paper"; in a paper's layout "71M ours", or "71M ours, their average" beside "71M ours, validation perplexity".
    """
    contributed = [f"contributed by {name}" for name in column.contributors]
    published = [table.published[source].short for source in column.sources]
    if table.printed and column.sources:
        twice = [other.label for other in table.columns].count(column.label) > 1
        return [f"{column.title} ours{', their average' if twice else ''}", *contributed, *published]
    theirs = [table.published[source].as_if or column.title for source in column.sources]
    beside = zip([column.title] * len(contributed) + theirs, contributed + published, strict=True)
    return [column.title, *(", ".join(each) for each in beside)]


def _line(table: Table, row: Row, style: Style) -> list[str]:
    line = [style.indent * row.indent + style.escape(row.title)]
    for column, cell in zip(table.columns, row.cells, strict=True):
        digits = column.metric.digits
        if table.alone:
            line += [_printed_text(printed, digits, style) for printed in cell.printed.values()]
            continue
        others = [cell.contributed.get(name, TableCell()) for name in column.contributors]
        line += [cell_text(one, digits, style) for one in (cell, *others)]
        line += [_printed_text(cell.printed.get(source), digits, style) for source in column.sources]
    return line
