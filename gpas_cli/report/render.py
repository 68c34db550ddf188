"""One `Table` -> Markdown, LaTeX, CSV, JSON. The same table gives the same text on every machine."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpas_cli.errors import GpasError, nearest
from gpas_cli.report.notes import full_title, gains, notes, significant
from gpas_cli.report.papers import load
from gpas_cli.report.table import Column, Printed, Row, Table, TableCell

SCHEMA = 1  # of the JSON; grows when a reader of the old one would misread the new one


@dataclass(frozen=True)
class Style:
    """How one format writes what all formats say."""

    escape: Callable[[str], str]
    bold: Callable[[str], str]
    underline: Callable[[str], str]
    minus: str = "-"
    plus_minus: str = "±"
    infinity: str = "inf"
    indent: str = "  "


def number(value: float, digits: int, style: Style, sign: str = "") -> str:
    """`value` with `digits` after the point; sign "+" shows it always."""
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else ("" if value > 0 else style.minus) + style.infinity
    text = f"{value:{sign}.{digits}f}"
    if float(text) == 0:
        text = text.lstrip("+-")
    return text.replace("-", style.minus)


def cell_text(cell: TableCell, digits: int, style: Style) -> str:
    """Our number in a cell: "33.49 ± 0.05 (-0.74*)", "running 45 %"; "" where the grid has no such cell."""
    if cell.summary is None:
        return style.escape(cell.status)
    mean = number(cell.summary.mean, digits, style)
    if cell.summary.std is not None:
        mean += f" {style.plus_minus} {number(cell.summary.std, digits, style)}"
    marked = {"best": style.bold, "second": style.underline}.get(cell.mark, str)(mean)
    delta = ""
    if cell.delta is not None:
        star = "*" if significant(cell) else ""
        delta = f" ({number(cell.delta.mean, digits, style, '+')}{star})"
    status = f" {style.escape(f'[{cell.status}]')}" if cell.status else ""
    return marked + delta + status


def printed_text(printed: Printed | None, digits: int, style: Style) -> str:
    """A published number with its difference from the published base, "" where there is none."""
    if printed is None:
        return ""
    delta = f" ({number(printed.delta, digits, style, '+')})" if printed.delta is not None else ""
    return number(printed.value, digits, style) + delta


def grid(table: Table, style: Style) -> list[list[str]]:
    """All text of the table, headers first, in display order."""
    header = [corner(table), *(title for column in table.columns for title in titles(table, column))]
    return [[style.escape(text) for text in header], *(_line(table, row, style) for row in table.rows)]


def titles(table: Table, column: Column) -> list[str]:
    """The headers of one column: ours, and one for each source beside it, e.g. "71m, GPAS paper"."""
    theirs = {source: table.published[source].as_if or column.title for source in column.sources}
    return [column.title, *(f"{theirs[source]}, {load(source)['short']}" for source in column.sources)]


def corner(table: Table) -> str:
    """What the numbers are, for the corner of the table."""
    unit = f", {table.metric.unit}" if table.metric.unit else ""
    return f"{table.metric.title}{unit}"


def parts(table: Table, widths: list[int], room: int, between: int) -> list[list[int]]:
    """Indices of `grid`'s columns, but for the first, that stand beside each other: as many as `room` characters hold,
    with the first before them. A column of ours is never parted from the published ones."""
    groups, start = list[list[int]](), 1
    for column in table.columns:
        groups.append(list(range(start, start + len(titles(table, column)))))
        start = groups[-1][-1] + 1
    found = [groups[0]]
    for group in groups[1:]:
        if widths[0] + sum(between + widths[i] for i in (*found[-1], *group)) <= room:
            found[-1] = [*found[-1], *group]
        else:
            found.append(group)
    return found


def _line(table: Table, row: Row, style: Style) -> list[str]:
    digits = table.metric.digits
    line = [style.indent * row.indent + style.escape(row.title)]
    for column, cell in zip(table.columns, row.cells, strict=True):
        line.append(cell_text(cell, digits, style))
        line += [printed_text((cell.printed or {}).get(source), digits, style) for source in column.sources]
    return line


def to_markdown(table: Table) -> str:
    """A pipe table, with the notes as a list."""
    style = Style(_markdown, lambda text: f"**{text}**", lambda text: f"<u>{text}</u>", indent="&nbsp;&nbsp;")
    header, *lines = grid(table, style)
    rule = ["---", *["---:"] * (len(header) - 1)]
    body = "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *lines))
    told = "\n".join(f"- {_markdown(note.text)}" for note in notes(table))
    return f"**{_markdown(table.spec.title)}**\n\n{body}\n\n{told}\n"


def _markdown(text: str) -> str:
    for special in ("\\", "|", "*", "_", "`", "<", "["):
        text = text.replace(special, f"\\{special}")
    return text


_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "[": r"{[}",
    "]": r"{]}",
}


def latex_escape(text: str) -> str:
    """Text that LaTeX typesets as it is. Brackets are wrapped: after a line break they would be an option."""
    return "".join(_LATEX.get(character, character) for character in text)


PLAIN = Style(str, str, str)
LATEX = Style(
    latex_escape,
    lambda text: f"\\textbf{{{text}}}",
    lambda text: f"\\underline{{{text}}}",
    minus="$-$",
    plus_minus="$\\pm$",
    infinity="$\\infty$",
    indent="\\quad ",
)
# Characters that a line of 400 pt holds in \small, and what LaTeX leaves between two columns, in characters.
LATEX_LINE, LATEX_BETWEEN = 90, 3


def to_latex(table: Table) -> str:
    """`table` environments; need the packages booktabs and, for non-ASCII titles, a current LaTeX. What does not fit a
    page's width beside the rest stands in a further one; the notes are in the last."""
    lines = grid(table, LATEX)
    widths = [max(map(len, column)) for column in zip(*grid(table, PLAIN), strict=True)]
    chunks, title = parts(table, widths, LATEX_LINE, LATEX_BETWEEN), latex_escape(table.spec.title)
    told = [f"    \\item {latex_escape(note.text)}" for note in notes(table)]
    environments = []
    for i, chunk in enumerate(chunks, 1):
        caption = title if len(chunks) == 1 else f"{title} ({i} of {len(chunks)})"
        environments.append(_environment(caption, [[line[j] for j in (0, *chunk)] for line in lines]))
    if told:
        environments[-1] += ["  \\begin{itemize}", *told, "  \\end{itemize}"]
    return "\n".join("\n".join([*lines, "\\end{table}\n"]) for lines in environments)


def _environment(caption: str, lines: list[list[str]]) -> list[str]:
    """All but its end."""
    header, *rows = (f"    {' & '.join(line)} \\\\" for line in lines)
    return [
        "\\begin{table}",
        "  \\centering\\small",
        f"  \\caption{{{caption}}}",
        f"  \\begin{{tabular}}{{l{'r' * (len(lines[0]) - 1)}}}",
        "    \\toprule",
        header,
        "    \\midrule",
        *rows,
        "    \\bottomrule",
        "  \\end{tabular}",
    ]


def to_csv(table: Table) -> str:
    """One line per cell, all numbers in full."""
    names = ["metric", "mean", "std", "n", "wanted", "delta", "delta_std", "delta_n", "p", "mark", "status"]
    sources = [f"{part}{source}" for source in table.published for part in ("published_", "published_delta_")]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*table.spec.rows, table.spec.columns, *names, *sources])
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=True):
            if cell.standings:
                writer.writerow(
                    [*row.key, column.label, table.metric.name, *_csv_numbers(cell), *_csv_printed(table, cell)]
                )
    return out.getvalue()


def _csv_numbers(cell: TableCell) -> list[object]:
    s, d = cell.summary, cell.delta
    ours = [s.mean, s.std, s.n] if s else [None, None, 0]
    delta = [d.mean, d.std, d.n, d.p] if d else [None] * 4
    return [*ours, len(cell.standings), *delta, cell.mark, cell.status]


def _csv_printed(table: Table, cell: TableCell) -> list[object]:
    printed = [(cell.printed or {}).get(source) for source in table.published]
    return [part for p in printed for part in ((p.value, p.delta) if p else (None, None))]


def to_json(table: Table) -> str:
    """Everything, in schema `SCHEMA`. Numbers that are not finite are the strings "nan", "inf", "-inf"."""
    data = {
        "schema": SCHEMA,
        "title": table.spec.title,
        "metric": {name: getattr(table.metric, name) for name in ("name", "title", "unit", "better", "digits")},
        "rows": [_json_row(table, row) for row in table.rows],
        "columns": [{"label": c.label, "title": c.title, "sources": list(c.sources)} for c in table.columns],
        "gains": [vars(gain) for gain in gains(table)],
        "notes": [vars(note) for note in notes(table)],
    }
    return json.dumps(_finite(data), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _json_row(table: Table, row: Row) -> dict[str, Any]:
    labels = dict(zip(table.spec.rows, row.key, strict=True))
    cells = [_json_cell(cell) for cell in row.cells]
    return {"title": full_title(table, row), "labels": labels, "cells": cells}


def _json_cell(cell: TableCell) -> dict[str, Any] | None:
    if not cell.standings:
        return None
    return {
        "mean": cell.summary.mean if cell.summary else None,
        "std": cell.summary.std if cell.summary else None,
        "n": cell.summary.n if cell.summary else 0,
        "delta": vars(cell.delta) if cell.delta else None,
        "mark": cell.mark,
        "status": cell.status,
        "published": {source: vars(printed) for source, printed in (cell.printed or {}).items()},
        "runs": [
            {
                "name": s.entry.id,
                "key": s.key,
                "over": s.seed,
                "state": s.state,
                "value": s.value,
                "progress": s.progress,
            }
            for s in cell.standings
        ],
    }


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


FORMATS: dict[str, Callable[[Table], str]] = {
    "markdown": to_markdown,
    "latex": to_latex,
    "csv": to_csv,
    "json": to_json,
}


def render(table: Table, form: str) -> str:
    """The table as text in one of FORMATS. Raises GpasError with the nearest format."""
    if form not in FORMATS:
        raise GpasError(f"unknown format '{form}'; {nearest(form, FORMATS)}")
    return FORMATS[form](table)
