"""Published numbers, in numbers.yaml of each pack (`gpas_cli.grid.packs`), looked up by the labels of our cells.

A table has rows with labels and one column axis; the labels in `where` apply to all of it, the file's `where` to all of
its tables. A row matches a cell that has every label of the row (`report.labels.facts`); a list of labels matches
any of them. A row without a label for the gate, the embedding or the depth means that it is unchanged.

`printed` has the tables of a paper as it prints them (`printed`). docs/reference/numbers.md has all keys.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from functools import cache, cached_property
from typing import Any

from gpas_cli.errors import GpasError, nearest
from gpas_cli.grid.packs import Pack, canonical
from gpas_cli.report.shapes import checked
from gpas_cli.structure import Frozen

CellLabels = Mapping[str, Any]
Place = tuple[str, int, int]  # published table, row and column

UNCHANGED = {"gate": "none", "embed": "plain", "parametrisation": "standard", "depth": "full", "budget": "steps"}
# With `as_if` only the direction of effects is compared.
_NOT_COMPARED = ("size", "family", "init", "std", "data", "text", "steps")


class PublishedRow(Frozen):
    """One printed row. `values`, `deltas` and `stds` have one number per column, None if it is not printed."""

    labels: CellLabels
    values: tuple[float | None, ...]
    deltas: tuple[float | None, ...] = ()
    stds: tuple[float | None, ...] = ()

    def fits(self, labels: CellLabels, ignored: Collection[str] = ()) -> bool:
        """Return whether a cell with these labels has every label of this row, apart from `ignored` axes."""
        return has_labels(labels, self._wanted, ignored)

    @cached_property
    def _wanted(self) -> CellLabels:
        return {**UNCHANGED, **self.labels}


class Remark(Frozen):
    """What a reader must know about the numbers of the cells with the labels `where`: a misprint, an unstated choice.

    Without labels it is about the whole table.
    """

    where: CellLabels
    text: str


class PublishedTable(Frozen):
    """One table of one source."""

    pack: Pack
    name: str
    what: str
    """What its numbers are, in words."""
    metric: str
    better: str
    """Which numbers are better: "lower" or "higher"."""
    axis: str
    """The axis of the columns, "" if the table has one column."""
    columns: tuple[Any, ...]
    """The labels of the columns on that axis."""
    rows: tuple[PublishedRow, ...]
    unit: str = ""
    train_tokens: tuple[int, ...] = ()
    """The tokens that each column was trained on, if the source states it."""
    as_if: str = ""
    """The column in which every cell is looked up, whatever its own label: the paper's 71m beside a smaller network; of
    a table with one column, the size of its networks."""
    compared_as: str = ""
    """The metric of ours that the numbers are compared with, "" for any of the same family."""
    batches: tuple[int, ...] = ()
    """The validation batches of each column, if perplexity_reference averages another number of them than ours."""
    relative_to: CellLabels = field(default_factory=dict)
    """The labels of the row whose number is the unit of all; the first of several."""
    recipes: tuple[str, ...] = ()
    """The names of the source's recipes by which the networks were trained."""
    remarks: tuple[Remark, ...] = ()
    sizes: Mapping[str, str] = field(default_factory=dict)
    """Shape -> the source's name of it, where that is not ours."""
    no_cells: str = "no grid declares such a cell"
    """Why a number has no cell of ours beside it."""

    @property
    def source(self) -> str:
        """The name of the pack that prints it."""
        return self.pack.name

    @property
    def short(self) -> str:
        """The short title of the paper: "GPAS paper"."""
        return short_title(self.pack)

    @property
    def digits(self) -> int:
        """The most digits after the point that the source prints of a number."""
        values = (value for row in self.rows for value in row.values if value is not None)
        return max((len(str(value).partition(".")[2].removesuffix("0")) for value in values), default=0)

    def labels_on(self, axis: str) -> list[Any]:
        """Return the labels of its rows and columns on an axis."""
        return [
            *(self.columns if axis == self.axis else ()),
            *(row.labels[axis] for row in self.rows if axis in row.labels),
        ]

    def cell(self, labels: CellLabels) -> PublishedCell | None:
        """Return the published cell of ours with these labels, None if there is none; of several rows that match, the
        one with the most labels.
        """
        own = self.in_own_words(labels)
        wanted = self.as_if or own.get(self.axis)
        columns = [i for i, label in enumerate(self.columns) if _same(label, wanted)] if self.axis else [0]
        if not columns:
            return None
        fitting = [row for row in self.rows if row.fits(own, _NOT_COMPARED if self.as_if else ())]
        if not fitting:
            return None
        return PublishedCell(self, self.rows.index(max(fitting, key=lambda row: len(row.labels))), columns[0])

    def in_own_words(self, labels: CellLabels) -> CellLabels:
        """Return the labels with the size that the source calls a network of this shape."""
        if not self.sizes or "shape" not in labels:
            return labels
        return {**labels, "size": self.sizes.get(labels["shape"])}


class PublishedCell(Frozen):
    """One cell of a published table, by its row and column; in a printed table with its text.

    A setting is text alone, in a table of `text_alone`. mark: "second" where the text is underlined.
    """

    table: PublishedTable
    row: int = 0
    column: int = 0
    text: str = ""
    mark: str = ""

    @property
    def place(self) -> Place:
        """Its table, row and column."""
        return (self.table.name, self.row, self.column)

    @property
    def labels(self) -> CellLabels:
        """The labels of its row and column, {} for a setting."""
        column = {self.table.axis: self.table.columns[self.column]} if self.table.axis else {}
        return {**self.table.rows[self.row].labels, **column}

    @property
    def value(self) -> float | None:
        """The number, None if there is none."""
        return self._number("values")

    @property
    def delta(self) -> float | None:
        """The printed difference from the base, None if none is printed."""
        return self._number("deltas")

    @property
    def std(self) -> float | None:
        """The printed standard deviation, None if none is printed."""
        return self._number("stds")

    def _number(self, kind: str) -> float | None:
        numbers: Sequence[float | None] = getattr(self.table.rows[self.row], kind)
        return numbers[self.column] if numbers else None

    @property
    def tokens(self) -> int | None:
        """The tokens that its column was trained on; None if not stated, or with `as_if`."""
        table = self.table
        return table.train_tokens[self.column] if table.train_tokens and not table.as_if else None

    @property
    def batches(self) -> int:
        """The validation batches that the number is averaged over, 0 for as many as ours are."""
        return self.table.batches[self.column] if self.table.batches else 0

    @property
    def is_unit(self) -> bool:
        """Whether the numbers of its table are relative to the number of its row."""
        if not (wanted := self.table.relative_to):
            return False
        return self.row == next(i for i, row in enumerate(self.table.rows) if has_labels(row.labels, wanted))

    @property
    def remarks(self) -> tuple[Remark, ...]:
        """The remarks about it."""
        return tuple(one for one in self.table.remarks if has_labels(self.labels, one.where))

    @property
    def base(self) -> PublishedCell | None:
        """The cell of the row without a gate that it is compared with, None for one without a gate."""
        own = {"gate": "none", **self.table.rows[self.row].labels}
        # DeepNorm starts otherwise with a gate than without one.
        wanted = {axis: label for axis, label in own.items() if axis not in ("gate", "init")}
        for place, row in enumerate(self.table.rows if own["gate"] != "none" else ()):
            if row.labels.get("gate", "none") == "none" and has_labels(row.labels, wanted):
                return replace(self, row=place)
        return None

    def minus(self, base: PublishedCell | None) -> float | None:
        """Return the difference of two numbers, None if either is missing."""
        if self.value is None or base is None or base.value is None:
            return None
        return round(self.value - base.value, 6)  # printed numbers have a few decimals, and so has their difference


def text_alone(pack: Pack) -> PublishedTable:
    """Return a table without a number, to which the settings that a paper prints belong."""
    return PublishedTable(pack, "", "", "", "", "", (), (PublishedRow({}, (None,)),))


def published(pack: Pack, name: str) -> PublishedTable:
    """Return the table `name` of a paper.

    A name such as "table2_perplexity@71m" looks every cell up in the column 71m, whatever its own label. Raises
    GpasError with the nearest name for an unknown table or column.
    """
    name, _, as_if = name.partition("@")
    known = load(pack).get("tables", {})
    if name not in known:
        raise GpasError(f"'{pack.name}' has no table '{name}'; {nearest(name, known)}")
    table = _table(pack, name)
    columns = table.columns or tuple(dict.fromkeys(row.labels.get("size", "") for row in table.rows))
    if as_if and not any(_same(label, as_if) for label in columns):
        raise GpasError(f"{pack.name}: {name} has no column '{as_if}'; {nearest(as_if, map(str, columns))}")
    return replace(table, as_if=as_if, compared_as="", batches=()) if as_if else table


def tables(pack: Pack) -> tuple[str, ...]:
    """Return the names of a paper's tables."""
    return tuple(load(pack).get("tables", {}))


def short_title(pack: Pack) -> str:
    """Return the short title of a paper: "GPAS paper"; without one, the name of its pack."""
    return str(load(pack).get("short", pack.name))


def title_of(paper: str, packs: Mapping[str, Pack]) -> str:
    """Return the short title of a paper that a claim names; its name if it is not one of the packs."""
    return short_title(packs[canonical(paper)]) if canonical(paper) in packs else paper


@cache
def load(pack: Pack) -> dict[str, Any]:
    """Return the numbers of a paper as plain data, {} if it has none. Raises InvalidExperiments for an invalid file."""
    data: dict[str, Any] = checked(pack, "numbers").plain()
    return data


@cache
def _table(pack: Pack, name: str) -> PublishedTable:
    whole = load(pack)
    data: dict[str, Any] = dict(whole["tables"][name])
    where = frozen({**whole.get("where", {}), **data.pop("where", {})})
    columns = data.pop("columns", {"axis": "", "labels": ()})
    return PublishedTable(
        pack=pack,
        name=name,
        axis=columns["axis"],
        columns=tuple(columns["labels"]),
        rows=tuple(
            PublishedRow(**{**frozen(row), "labels": {**where, **frozen(row["labels"])}}) for row in data.pop("rows")
        ),
        remarks=tuple(Remark(frozen(one["where"]), one["text"]) for one in data.pop("remarks", ())),
        sizes={shape: name for name, shape in whole.get("sizes", {}).items()},
        **frozen(data),
    )


def frozen(labels: CellLabels) -> dict[str, Any]:
    """Return the labels with tuples in place of lists."""
    return {axis: tuple(label) if isinstance(label, list) else label for axis, label in labels.items()}


def has_labels(cell: CellLabels, wanted: CellLabels, ignored: Collection[str] = ()) -> bool:
    """Return whether a cell has each of the wanted labels; a tuple of labels stands for any of them."""
    return all(
        _matches(cell.get(axis, UNCHANGED.get(axis)), label) for axis, label in wanted.items() if axis not in ignored
    )


def _matches(own: object, wanted: object) -> bool:
    return own == wanted or any(_same(one, name) for one in _several(own) for name in _several(wanted))


def _several(label: object) -> tuple[object, ...]:
    return label if isinstance(label, tuple) else (label,)


def _same(a: object, b: object) -> bool:
    return a == b or str(a).lower() == str(b).lower()


SEPARATOR = ":"  # in the name of a printed table: gpas:2
USUAL = "gpas"


def numbers(pack: Pack) -> tuple[str, ...]:
    """Return the numbers of a paper's tables."""
    return tuple(load(pack).get("printed", {}))


def is_printed_name(name: str) -> bool:
    """Return whether `name` names a printed table, SOURCE:NUMBER, and not a grid."""
    return SEPARATOR in name
