"""Group the entries of a table by row and column, and refuse groups whose mean has no meaning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpas_cli.errors import GpasError
from gpas_cli.grid.document import Label
from gpas_cli.report.labels import RowKey, measured_labels
from gpas_cli.spec.stage import MEASURED_COLUMNS

if TYPE_CHECKING:
    from gpas_cli.grid import Entry, TableSpec

Groups = dict[RowKey, dict[Label, list["Entry"]]]


def group(entries: Sequence[Entry], spec: TableSpec) -> Groups:
    """Return the entries by row key and column label. An entry is in the column of each of its tasks or texts."""
    groups: Groups = {}
    # Grids that include one another may have the same cell twice.
    for entry in {(entry.cell.key, frozenset(entry.axes.items())): entry for entry in entries}.values():
        row = groups.setdefault(tuple(entry.axes.get(axis) for axis in spec.rows), {})
        for label in _column_labels(entry, spec):
            row.setdefault(label, []).append(entry)
    for columns in groups.values():
        for alike in columns.values():
            refuse_mixture(alike, spec)
    return groups


def _column_labels(entry: Entry, spec: TableSpec) -> tuple[Label, ...]:
    if spec.columns not in MEASURED_COLUMNS:
        return (entry.axes[spec.columns],) if spec.columns in entry.axes else ()
    return measured_labels(entry.cell, spec.value)


def refuse_mixture(alike: Sequence[Entry], spec: TableSpec) -> None:
    """Raise GpasError if entries of one table cell differ in more than the averaged axis: their mean has no meaning."""
    first = alike[0]
    usual = {**first.axes, spec.over: None}
    for entry in alike[1:]:
        if {**entry.axes, spec.over: None} == usual:
            continue
        axes = sorted(entry.axes.keys() | first.axes.keys())
        differing = [axis for axis in axes if entry.axes.get(axis) != first.axes.get(axis) and axis != spec.over]
        if differing:
            raise GpasError(
                f"table '{spec.title}': {first.id} and {entry.id} are in the same table cell but differ in "
                f"{', '.join(differing)}; add it to the rows, or select cells with --where"
            )
    seeds = [entry.axes.get(spec.over) for entry in alike]
    if len(set(seeds)) < len(seeds):
        raise GpasError(f"table '{spec.title}': {first.id} occurs twice; a cell counts once for each {spec.over}")
