"""One `Table` -> Markdown, LaTeX, HTML, CSV, JSON. The same table gives the same text on every machine."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from gpas_cli.errors import GpasError, nearest
from gpas_cli.report.tables.cell_text import sheet
from gpas_cli.report.tables.csv_table import to_csv
from gpas_cli.report.tables.external import ExternalRow
from gpas_cli.report.tables.html_table import to_html
from gpas_cli.report.tables.latex import to_latex
from gpas_cli.report.tables.markdown import to_markdown
from gpas_cli.report.tables.notes import gains, notes
from gpas_cli.report.tables.shown import full_title
from gpas_cli.report.tables.table import Printed, Row, Table, TableCell
from gpas_cli.spec.stage import Metric

SCHEMA = 1  # version of the JSON; grows when a reader of the old form would misread the new one


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
