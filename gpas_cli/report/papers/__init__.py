"""Published numbers, in one YAML file per source, looked up by the labels of our cells.

    sources:
      gpas            the GPAS paper            curse_of_depth   The Curse of Depth (LayerNorm Scaling)
      poster          the GPAS poster           spike_no_more    Spike No More
      code            the GPAS repository       raptr            RaPTr

A table has rows with labels and one column axis; the labels in `where` apply to all of it. A row matches a cell that
has every label of the row. A row without a label for the gate or the embedding means that it is unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from gpas_cli.errors import GpasError, nearest

CellLabels = Mapping[str, Any]

SOURCES = ("gpas", "poster", "code", "curse_of_depth", "spike_no_more", "raptr")
UNCHANGED = {"gate": "none", "embed": "plain"}
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml where PyYAML was built with it: ten times faster


@dataclass(frozen=True)
class PublishedRow:
    """One printed row. `values`, `deltas` and `stds` have one number per column, None if it is not printed."""

    labels: CellLabels
    values: tuple[float | None, ...]
    deltas: tuple[float | None, ...] = ()
    stds: tuple[float | None, ...] = ()

    def fits(self, labels: CellLabels) -> bool:
        """Return whether a cell with these labels has every label of this row."""
        cell = {**UNCHANGED, **labels}
        return all(_same(cell.get(axis), label) for axis, label in {**UNCHANGED, **self.labels}.items())


@dataclass(frozen=True)
class PublishedTable:
    """One table of one source.

    better: "lower" or "higher". axis: the axis of the columns, "" if the table has one column.
    train_tokens: tokens that each column was trained on, if the source states it.
    as_if: the column in which every cell is looked up, whatever its own label: the paper's 71m beside a smaller model.
    """

    source: str
    name: str
    what: str
    metric: str
    unit: str
    better: str
    axis: str
    columns: tuple[Any, ...]
    rows: tuple[PublishedRow, ...]
    train_tokens: tuple[int, ...] = ()
    as_if: str = ""

    def value(self, labels: CellLabels) -> float | None:
        """Return the printed number of the cell with these labels, None if there is none."""
        column = self._column(labels)
        row = self._row(labels)
        return row.values[column] if row is not None and column is not None else None

    def delta(self, labels: CellLabels, base: CellLabels) -> float | None:
        """Return the printed number of `labels` minus that of `base`, None if either is missing."""
        own, other = self.value(labels), self.value(base)
        # Printed numbers have a few decimals, and so has their difference.
        return None if own is None or other is None else round(own - other, 6)

    def tokens(self, labels: CellLabels) -> int | None:
        """Return the tokens that the cell's column was trained on; None if not stated, or with `as_if`."""
        column = self._column(labels)
        return self.train_tokens[column] if self.train_tokens and column is not None and not self.as_if else None

    def _column(self, labels: CellLabels) -> int | None:
        if not self.axis:
            return 0
        wanted = self.as_if or labels.get(self.axis)
        return next((i for i, label in enumerate(self.columns) if _same(label, wanted)), None)

    def _row(self, labels: CellLabels) -> PublishedRow | None:
        """Return the matching row; of several, the one with the most labels."""
        fitting = [row for row in self.rows if row.fits(labels)]
        return max(fitting, key=lambda row: len(row.labels), default=None)


def published(source: str, name: str) -> PublishedTable:
    """Return the table `name` of `source`.

    A name such as "table2_perplexity@71m" looks every cell up in the column 71m, whatever its own label. Raises
    GpasError with the nearest name for an unknown source, table or column.
    """
    name, _, as_if = name.partition("@")
    known = load(source)["tables"]
    if name not in known:
        raise GpasError(f"'{source}' has no table '{name}'; {nearest(name, known)}")
    table = _table(source, name)
    if as_if and not any(_same(label, as_if) for label in table.columns):
        raise GpasError(f"{source}: {name} has no column '{as_if}'; {nearest(as_if, map(str, table.columns))}")
    return replace(table, as_if=as_if)


def tables(source: str) -> tuple[str, ...]:
    """Return the names of the source's tables."""
    return tuple(load(source)["tables"])


@cache
def load(source: str) -> dict[str, Any]:
    """Return the file of one source as plain data. Raises GpasError with the nearest name for an unknown source."""
    if source not in SOURCES:
        raise GpasError(f"unknown source '{source}'; {nearest(source, SOURCES)}")
    text = (Path(__file__).parent / f"{source}.yaml").read_text(encoding="utf-8")
    data: dict[str, Any] = yaml.load(text, Loader=_LOADER)
    return data


@cache
def _table(source: str, name: str) -> PublishedTable:
    data = load(source)["tables"][name]
    columns, where = data.get("columns", {}), data.get("where", {})
    return PublishedTable(
        source=source,
        name=name,
        what=data["what"],
        metric=data["metric"],
        unit=data.get("unit", ""),
        better=data["better"],
        axis=columns.get("axis", ""),
        columns=tuple(columns.get("labels", ())),
        rows=tuple(_row(row, where) for row in data["rows"]),
        train_tokens=tuple(data.get("train_tokens", ())),
    )


def _row(row: Mapping[str, Any], where: CellLabels) -> PublishedRow:
    numbers = {name: tuple(row[name]) for name in ("values", "deltas", "stds") if name in row}
    return PublishedRow({**where, **row["labels"]}, **numbers)


def _same(a: object, b: object) -> bool:
    return a == b or str(a).lower() == str(b).lower()
