"""Several metrics of the same cells in one table, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gpas_cli.report.metrics import recorded_metric
from gpas_cli.report.papers import published
from gpas_cli.report.table import Column, Table, build, stage_kinds
from gpas_cli.spec.stage import Metric

if TYPE_CHECKING:
    from gpas_cli.grid import TableSpec
    from gpas_cli.report.recorded import Recorded


def by_metrics(known: Recorded, spec: TableSpec, names: Sequence[str]) -> Table:
    """Return the table with a column for each of the recorded numbers `names`, beside each other.

    Raises GpasError with the nearest name for a number that is not recorded.
    """
    kinds = stage_kinds(known.entries)
    metrics = [recorded_metric(name, kinds, known.results) for name in dict.fromkeys(names)]
    return beside(
        [build(known.entries, known.states, known.results, spec_for(spec, what), what=what) for what in metrics]
    )


def spec_for(spec: TableSpec, what: Metric) -> TableSpec:
    """Return the declaration of the same table with the metric `what`, and the published tables that print it.

    A number that is not by task has a column for each size where the table has one for each task.
    """
    columns = "size" if spec.columns == "task" and not what.by_task else spec.columns
    sources = {source: name for source, name in spec.published.items() if published(source, name).metric == what.family}
    return replace(spec, value=what.name, columns=columns, published=sources)


def beside(tables: Sequence[Table]) -> Table:
    """Return one table with the columns of all side by side: tables of the same entries, each by another metric."""
    first = tables[0]
    if len(tables) == 1:
        return first
    labels = list(dict.fromkeys(column.label for table in tables for column in table.columns))
    places = [
        (table, i)
        for label in labels
        for table in tables
        for i, column in enumerate(table.columns)
        if column.label == label
    ]
    columns = [_titled(table.columns[i]) for table, i in places]
    rows = [
        replace(row, cells=tuple(table.rows[k].cells[i] for table, i in places)) for k, row in enumerate(first.rows)
    ]
    published = {source: printed for table in tables for source, printed in table.published.items()}
    return replace(first, columns=tuple(columns), rows=tuple(rows), published=published)


def _titled(column: Column) -> Column:
    """Return a column whose title names its metric."""
    unit = f", {column.metric.unit}" if column.metric.unit else ""
    return replace(column, title=f"{column.title}, {column.metric.title}{unit}")
