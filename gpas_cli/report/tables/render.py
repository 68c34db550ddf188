"""One `Table` -> Markdown, LaTeX, HTML, CSV, JSON. The same table gives the same text on every machine."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

from gpas_cli.errors import GpasError, nearest
from gpas_cli.printable import one_line
from gpas_cli.report.tables.cell_text import sheet
from gpas_cli.report.tables.external import ExternalRow
from gpas_cli.report.tables.html_table import to_html
from gpas_cli.report.tables.latex import to_latex
from gpas_cli.report.tables.markdown import to_markdown
from gpas_cli.report.tables.notes import gains, notes
from gpas_cli.report.tables.shown import full_title
from gpas_cli.report.tables.table import Printed, Row, Table, TableCell
from gpas_cli.spec.stage import Metric

SCHEMA = 1  # version of the JSON; grows when a reader of the old form would misread the new one
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # the first characters of cells that a spreadsheet executes


def to_csv(table: Table) -> str:
    """Return one line per cell, with numbers in full precision.

    Networks that were not trained here have no labels on the axes of the rows; two more columns name them. Text that a
    spreadsheet would execute as a formula gets an apostrophe in front.
    """
    names = ["metric", "mean", "std", "stderr", "n", "wanted"]
    names += ["delta", "delta_std", "delta_n", "delta_low", "delta_high", "p", "mark", "status"]
    sources = [f"{part}{source}" for source in table.published for part in ("published_", "published_delta_")]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    origin = ["external", "weights"] if table.externals.rows else []
    writer.writerow(map(csv_cell, [*table.spec.rows, table.spec.columns, *names, *sources, *origin]))
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=True):
            if cell.statuses:
                labels = [*row.key, column.label, column.metric.name]
                numbers = [*_csv_numbers(cell), *_csv_printed(table, cell), *[None] * len(origin)]
                writer.writerow(map(csv_cell, [*labels, *numbers]))
    for line in _csv_externals(table):
        writer.writerow(map(csv_cell, line))
    return out.getvalue()


def _csv_externals(table: Table) -> Iterator[list[object]]:
    for row in table.externals.rows:
        for column, cell in zip(table.columns, row.cells, strict=True):
            labels = [*[None] * len(table.spec.rows), column.label, column.metric.name]
            n = int(cell.value is not None)
            numbers = [cell.value, None, cell.stderr, n, 1, *[None] * 6, "", cell.status]
            printed = [None] * 2 * len(table.published)
            yield [*labels, *numbers, *printed, row.title, row.network.origin.get("weights")]


def csv_cell(value: object) -> object:
    """Return a number unchanged, and text printable and never a formula."""
    if not isinstance(value, str):
        return value
    text = one_line(value)
    return f"'{text}" if value.startswith(FORMULA) or text.startswith(FORMULA) else text


def _csv_numbers(cell: TableCell) -> list[object]:
    s, d = cell.summary, cell.delta
    ours = [s.mean, s.std, cell.stderr, s.n] if s else [None, None, None, 0]
    low, high = cell.interval or (None, None)
    delta = [d.mean, d.std, d.n, low, high, d.p] if d else [None] * 6
    return [*ours, len(cell.statuses), *delta, cell.mark, cell.status]


def _csv_printed(table: Table, cell: TableCell) -> list[object]:
    printed = [(cell.printed or {}).get(source) for source in table.published]
    return [part for p in printed for part in ((p.value, p.delta) if p else (None, None))]


def to_json(table: Table) -> str:
    """Return the whole table as JSON. Numbers that are not finite are the strings "nan", "inf", "-inf"."""
    data = {
        "schema": SCHEMA,
        "name": table.printed or None,
        "title": table.spec.title,
        "metric": _json_metric(table.metric),
        "rows": [_json_row(table, row) for row in table.rows],
        "externals": [_json_external(row) for row in table.externals.rows],
        "columns": [
            {"label": c.label, "title": c.title, "metric": _json_metric(c.metric), "sources": list(c.sources)}
            for c in table.columns
        ],
        "gains": [vars(gain) for gain in gains(table)],
        "notes": [{"kind": note.kind, "text": note.text} for note in notes(table)],
    }
    return json.dumps(_finite(data), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _json_metric(metric: Metric) -> dict[str, Any]:
    return {name: getattr(metric, name) for name in ("name", "title", "unit", "better", "digits")}


def _json_row(table: Table, row: Row) -> dict[str, Any]:
    labels = dict(zip(table.spec.rows, row.key, strict=True))
    cells = [_json_cell(cell) for cell in row.cells]
    return {"title": full_title(row), "labels": labels, "cells": cells}


def _json_external(row: ExternalRow) -> dict[str, Any]:
    network = row.network
    return {
        "title": row.title,
        "name": network.name,
        "key": network.key,
        "origin": dict(network.origin),
        "settings": dict(network.settings),
        "precision": network.precision,
        "cells": [vars(cell) for cell in row.cells],
        "scores": [vars(score) for score in row.scores],
    }


def _json_cell(cell: TableCell) -> dict[str, Any] | None:
    if not cell.statuses:
        return None
    return {
        "mean": cell.summary.mean if cell.summary else None,
        "std": cell.summary.std if cell.summary else None,
        "stderr": cell.stderr,
        "n": cell.summary.n if cell.summary else 0,
        "wanted": len(cell.statuses),
        "delta": {**vars(cell.delta), "interval": cell.interval} if cell.delta else None,
        "mark": cell.mark,
        "status": cell.status,
        "published": {source: _json_printed(printed) for source, printed in (cell.printed or {}).items()},
        "runs": [
            {
                "name": s.entry.id,
                "key": s.key,
                "over": s.seed,
                "state": s.state,
                "value": s.value,
                "stderr": s.stderr,
                "progress": s.progress,
            }
            for s in cell.statuses
        ],
    }


def _json_printed(printed: Printed) -> dict[str, Any]:
    return {
        "value": printed.value,
        "delta": printed.delta,
        "tokens": printed.tokens,
        "text": printed.text,
        "deviations": [vars(one) for one in printed.deviations],
        "remarks": [remark.text for remark in printed.remarks],
    }


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


FORMATS: dict[str, Callable[[Table], str]] = {
    "markdown": lambda table: to_markdown(sheet(table)),
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
