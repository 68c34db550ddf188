"""Several metrics of the same cells in one table, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from gpas_cli.report.metrics import metric, recorded_metric
from gpas_cli.report.papers import published
from gpas_cli.report.tables.entry_status import Results, States
from gpas_cli.report.tables.paper_table import Serving, paper_table
from gpas_cli.report.tables.table import Column, Table, build, stage_kinds
from gpas_cli.spec.stage import MEASURED_COLUMNS, Metric

if TYPE_CHECKING:
    from gpas_cli.grid import TableSpec
    from gpas_cli.report.recorded import Recorded

T = TypeVar("T")


def by_metrics(known: Recorded, spec: TableSpec, names: Sequence[str]) -> Table:
    """Return the table with a column for each of the recorded numbers `names`, beside each other.

    Raises GpasError with the nearest name for a number that is not recorded.
    """
    kinds = stage_kinds(known.entries)
    metrics = [recorded_metric(name, kinds, known.results) for name in dict.fromkeys(names)]
    return beside(
        [build(known.entries, known.states, known.results, _spec_for(spec, what), what=what) for what in metrics]
    )


def beside_published(known: Recorded, spec: TableSpec) -> Table:
    """Return the table with the published numbers beside the metric that they are compared with.

    Where that is not the declared metric, the declared one has columns of its own: the perplexity over all tokens is
    beside the average of the published code.
    """
    compared = build(known.entries, known.states, known.results, spec)
    if compared.metric.name == spec.value:
        return compared
    own = metric(spec.value, stage_kinds(known.entries))
    plain = replace(spec, published={})
    declared = build(known.entries, known.states, known.results, plain, what=own)
    joined = beside([compared, declared])
    columns = [
        column if column.metric.name == own.name else replace(column, title=before.title)
        for column, before in zip(joined.columns, _alternating(compared.columns, declared.columns), strict=True)
    ]
    return replace(joined, columns=tuple(columns), corner=compared.metric.title)


def paper_beside_declared(served: Serving, states: States, results: Results) -> Table:
    """Return a paper's table with the metric that the grid declares beside the one that its numbers are compared with.

    Where the published code averages otherwise, the perplexity over all tokens has columns of its own.
    """
    compared = paper_table(served, states, results)
    own = metric(served.grid.table_spec.value, stage_kinds(served.entries))
    shown = {column.metric.name for column in compared.columns}
    if own.name in shown or any(column.metric.family != own.family for column in compared.columns):
        return compared
    declared = paper_table(served, states, results, own)
    filled = [any(row.cells[i].statuses for row in declared.rows) for i in range(len(declared.columns))]
    columns = [replace(column, title=own.title, sources=()) for column in declared.columns]
    rows = [
        replace(row, cells=_alternating(row.cells, [replace(cell, printed={}) for cell in other.cells], filled))
        for row, other in zip(compared.rows, declared.rows, strict=True)
    ]
    return replace(compared, columns=_alternating(compared.columns, columns, filled), rows=tuple(rows))


def _alternating(ours: Sequence[T], others: Sequence[T], taken: Sequence[bool] | None = None) -> tuple[T, ...]:
    """Return each of ours, followed by the one of `others` at its place if that is `taken`, by default always."""
    pairs = zip(ours, others, taken or [True] * len(ours), strict=True)
    return tuple(one for own, other, both in pairs for one in ((own, other) if both else (own,)))


def _spec_for(spec: TableSpec, what: Metric) -> TableSpec:
    """Return the declaration of the same table with the metric `what`, and the published tables that print it.

    A number that is not by task has a column for each size where the table has one for each task.
    """
    columns = "size" if spec.columns in MEASURED_COLUMNS and not what.by_task else spec.columns
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
