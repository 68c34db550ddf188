"""Published numbers, in one YAML file per source, looked up by the labels of our cells.

    sources:
      gpas            the GPAS paper            curse_of_depth   The Curse of Depth (LayerNorm Scaling)
      poster          the GPAS poster           spike_no_more    Spike No More
      code            the GPAS repository       raptr            RaPTr

A table has rows with labels and one column axis; the labels in `where` apply to all of it, those in the source's
`where` to all of its tables. A row matches a cell that has every label of the row (`report.labels.facts`); a list of
labels matches any of them. A row without a label for the gate, the embedding or the depth means that it is unchanged.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from gpas_cli.errors import GpasError, nearest

CellLabels = Mapping[str, Any]

SOURCES = ("gpas", "poster", "code", "curse_of_depth", "spike_no_more", "raptr")
UNCHANGED = {"gate": "none", "embed": "plain", "depth": "full", "budget": "steps"}
# What says which experiment a number belongs to; of these, a row has what its source states.
IDENTITY = ("family", "norm", "init", "data")
_NOT_COMPARED = (
    "size",
    "family",
    "init",
    "std",
    "data",
    "text",
    "steps",
)  # with `as_if`: only the direction of effects is compared
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml where PyYAML was built with it: ten times faster


@dataclass(frozen=True)
class PublishedRow:
    """One printed row. `values`, `deltas` and `stds` have one number per column, None if it is not printed."""

    labels: CellLabels
    values: tuple[float | None, ...]
    deltas: tuple[float | None, ...] = ()
    stds: tuple[float | None, ...] = ()

    def fits(self, labels: CellLabels, ignored: Collection[str] = ()) -> bool:
        """Return whether a cell with these labels has every label of this row, apart from `ignored` axes."""
        return has_labels(labels, {**UNCHANGED, **self.labels}, ignored)


@dataclass(frozen=True)
class Remark:
    """What a reader must know about the numbers of the cells with the labels `where`: a misprint, an unstated choice.

    Without labels it is about the whole table.
    """

    where: CellLabels
    text: str


@dataclass(frozen=True)
class PublishedTable:
    """One table of one source.

    better: "lower" or "higher". axis: the axis of the columns, "" if the table has one column.
    train_tokens: tokens that each column was trained on, if the source states it.
    as_if: the column in which every cell is looked up, whatever its own label: the paper's 71m beside a smaller model;
    of a table with one column, the size of its networks.
    compared_as: our metric that the numbers are compared with, "" for any of the same family.
    recipes: the names of the source's recipes by which the networks were trained. sizes: shape -> the source's name of
    it, where that is not ours. no_cells: why a number has no cell of ours beside it.
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
    compared_as: str = ""
    recipes: tuple[str, ...] = ()
    remarks: tuple[Remark, ...] = ()
    sizes: Mapping[str, str] = field(default_factory=dict)
    no_cells: str = "no grid declares such a cell"

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

    def remarks_for(self, labels: CellLabels) -> tuple[Remark, ...]:
        """Return the remarks about the printed number of the cell with these labels."""
        column = self._column(labels)
        row = self._row(labels)
        if row is None or column is None:
            return ()
        own = {**row.labels, **({self.axis: self.columns[column]} if self.axis else {})}
        return tuple(remark for remark in self.remarks if has_labels(own, remark.where))

    def in_own_words(self, labels: CellLabels) -> CellLabels:
        """Return the labels with the size that the source calls a network of this shape."""
        if not self.sizes or "shape" not in labels:
            return labels
        return {**labels, "size": self.sizes.get(labels["shape"])}

    def place(self, labels: CellLabels) -> tuple[int, int] | None:
        """Return the row and column of the cell with these labels, None if there is none."""
        column, row = self._column(labels), self._row(labels)
        return None if column is None or row is None else (self.rows.index(row), column)

    def _column(self, labels: CellLabels) -> int | None:
        if not self.axis:
            return 0
        wanted = self.as_if or self.in_own_words(labels).get(self.axis)
        return next((i for i, label in enumerate(self.columns) if _same(label, wanted)), None)

    def _row(self, labels: CellLabels) -> PublishedRow | None:
        """Return the matching row; of several, the one with the most labels."""
        cell = self.in_own_words(labels)
        fitting = [row for row in self.rows if row.fits(cell, _NOT_COMPARED if self.as_if else ())]
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
    columns = table.columns or tuple(dict.fromkeys(row.labels.get("size", "") for row in table.rows))
    if as_if and not any(_same(label, as_if) for label in columns):
        raise GpasError(f"{source}: {name} has no column '{as_if}'; {nearest(as_if, map(str, columns))}")
    return replace(table, as_if=as_if, compared_as="") if as_if else table


def tables(source: str) -> tuple[str, ...]:
    """Return the names of the source's tables."""
    return tuple(load(source)["tables"])


def path_of(source: str) -> Path:
    """Return the path of a source's file. Raises GpasError with the nearest name for an unknown source."""
    if source not in SOURCES:
        raise GpasError(f"unknown source '{source}'; {nearest(source, SOURCES)}")
    return Path(__file__).parent / f"{source}.yaml"


@cache
def load(source: str) -> dict[str, Any]:
    """Return the file of one source as plain data. Raises GpasError with the nearest name for an unknown source."""
    text = path_of(source).read_text(encoding="utf-8")
    data: dict[str, Any] = yaml.load(text, Loader=_LOADER)
    return data


@cache
def _table(source: str, name: str) -> PublishedTable:
    whole = load(source)
    data = whole["tables"][name]
    columns = data.get("columns", {})
    where = frozen({**whole.get("where", {}), **data.get("where", {})})
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
        compared_as=data.get("compared_as", ""),
        recipes=tuple(data.get("recipes", ())),
        remarks=tuple(Remark(frozen(remark["where"]), remark["text"]) for remark in data.get("remarks", ())),
        sizes={shape: name for name, shape in whole.get("sizes", {}).items()},
        no_cells=data.get("no_cells", PublishedTable.no_cells),
    )


def _row(row: Mapping[str, Any], where: CellLabels) -> PublishedRow:
    numbers = {name: tuple(row[name]) for name in ("values", "deltas", "stds") if name in row}
    return PublishedRow({**where, **frozen(row["labels"])}, **numbers)


def frozen(labels: CellLabels) -> CellLabels:
    """Return the labels with tuples in place of lists."""
    return {axis: tuple(label) if isinstance(label, list) else label for axis, label in labels.items()}


def has_labels(cell: CellLabels, wanted: CellLabels, ignored: Collection[str] = ()) -> bool:
    """Return whether a cell has each of the wanted labels; a tuple of labels stands for any of them."""
    known = {**UNCHANGED, **cell}
    return all(_is_one_of(known.get(axis), label) for axis, label in wanted.items() if axis not in ignored)


def _is_one_of(label: object, wanted: object) -> bool:
    labels = label if isinstance(label, tuple) else (label,)
    names = wanted if isinstance(wanted, tuple) else (wanted,)
    return any(_same(own, name) for own in labels for name in names)


def _same(a: object, b: object) -> bool:
    return a == b or str(a).lower() == str(b).lower()
