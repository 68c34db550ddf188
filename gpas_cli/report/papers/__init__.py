"""Published numbers, in numbers.yaml of each pack (`gpas_cli.grid.packs`), looked up by the labels of our cells.

A table has rows with labels and one column axis; the labels in `where` apply to all of it, the file's `where` to all of
its tables. A row matches a cell that has every label of the row (`report.labels.facts`); a list of labels matches
any of them. A row without a label for the gate, the embedding or the depth means that it is unchanged.

The tables of a source as it prints them have its order of rows and columns, its headings and its digits. The key
`layouts` of a source's file has a layout for each table, by the number that the source gives it:

    caption, label   the caption, and the name if it is not "Table NUMBER"
    parts            tables beside each other under one caption; usually one

A part has
    corner, headings   the heading of the row titles, and the headings of the columns
    columns            the published tables that have the numbers: TABLE for all of its columns, or TABLE@LABEL for one;
                       with +N after it, the numbers are N published rows further down
    rows               titles of the rows, in the order of the published tables; or `bands`, each with a `title` above
                       its rows and with `first`, the published row that they start at
    transposed         true: the published columns are the rows
    digits             after the point, for all columns or one for each; g: as many as the number has
    absent             the text where a number is missing
    suffix             by row or column: the text after numbers without a printed standard deviation
    as_printed         by row and column: text that follows no rule
    underlined         by row: columns of underlined numbers
    texts              by row: the texts of all columns, in place of `columns` and `rows`
    quantities         with texts: the settings in the columns (gpas_cli.report.tables.paper_table)
    cells_of           with quantities: the table whose cells have these settings
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import yaml

from gpas_cli.errors import GpasError, nearest
from gpas_cli.grid.packs import Pack, canonical, pack_named

CellLabels = Mapping[str, Any]
Place = tuple[str, int, int]  # published table, row and column

UNCHANGED = {"gate": "none", "embed": "plain", "parametrisation": "standard", "depth": "full", "budget": "steps"}
# With `as_if` only the direction of effects is compared.
_NOT_COMPARED = ("size", "family", "init", "std", "data", "text", "steps")
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
        return has_labels(labels, self._wanted, ignored)

    @cached_property
    def _wanted(self) -> CellLabels:
        return {**UNCHANGED, **self.labels}


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

    better: "lower" or "higher". axis: the axis of the columns, "" if the table has one column. train_tokens: tokens
    that each column was trained on, if the source states it. as_if: the column in which every cell is looked up,
    whatever its own label: the paper's 71m beside a smaller model; of a table with one column, the size of its
    networks. compared_as: our metric that the numbers are compared with, "" for any of the same family. batches: the
    validation batches of each column, if perplexity_reference averages another number of them than ours. relative_to:
    the labels of the row whose number is the unit of all; the first of several. recipes: the names of the source's
    recipes by which the networks were trained. sizes: shape -> the source's name of it, where that is not ours.
    no_cells: why a number has no cell of ours beside it.
    """

    pack: Pack
    name: str
    what: str
    metric: str
    better: str
    axis: str
    columns: tuple[Any, ...]
    rows: tuple[PublishedRow, ...]
    unit: str = ""
    train_tokens: tuple[int, ...] = ()
    as_if: str = ""
    compared_as: str = ""
    batches: tuple[int, ...] = ()
    relative_to: CellLabels = field(default_factory=dict)
    recipes: tuple[str, ...] = ()
    remarks: tuple[Remark, ...] = ()
    sizes: Mapping[str, str] = field(default_factory=dict)
    no_cells: str = "no grid declares such a cell"

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

    def value(self, labels: CellLabels) -> float | None:
        """Return the printed number of the cell with these labels, None if there is none."""
        found = self.cell(labels)
        return found.value if found else None

    def in_own_words(self, labels: CellLabels) -> CellLabels:
        """Return the labels with the size that the source calls a network of this shape."""
        if not self.sizes or "shape" not in labels:
            return labels
        return {**labels, "size": self.sizes.get(labels["shape"])}


@dataclass(frozen=True)
class PublishedCell:
    """One cell of a published table, by its row and column; in the paper's layout with its text.

    table: None for a setting, which is text alone. mark: "second" where the text is underlined.
    """

    table: PublishedTable | None
    row: int = 0
    column: int = 0
    text: str = ""
    mark: str = ""

    @property
    def place(self) -> Place:
        """Its table, row and column."""
        return (self.table.name if self.table else "", self.row, self.column)

    @property
    def labels(self) -> CellLabels:
        """The labels of its row and column, {} for a setting."""
        if self.table is None:
            return {}
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
        numbers: Sequence[float | None] = getattr(self.table.rows[self.row], kind) if self.table else ()
        return numbers[self.column] if numbers else None

    @property
    def tokens(self) -> int | None:
        """The tokens that its column was trained on; None if not stated, or with `as_if`."""
        table = self.table
        return table.train_tokens[self.column] if table and table.train_tokens and not table.as_if else None

    @property
    def batches(self) -> int:
        """The validation batches that the number is averaged over, 0 for as many as ours are."""
        return self.table.batches[self.column] if self.table and self.table.batches else 0

    @property
    def is_unit(self) -> bool:
        """Whether the numbers of its table are relative to the number of its row."""
        if self.table is None or not self.table.relative_to:
            return False
        wanted = self.table.relative_to
        return self.row == next(i for i, row in enumerate(self.table.rows) if has_labels(row.labels, wanted))

    @property
    def remarks(self) -> tuple[Remark, ...]:
        """The remarks about it."""
        return tuple(one for one in self.table.remarks if has_labels(self.labels, one.where)) if self.table else ()

    @property
    def base(self) -> PublishedCell | None:
        """The cell of the row without a gate that it is compared with, None for one without a gate."""
        if self.table is None:
            return None
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
    """Return the numbers of a paper as plain data, {} if it has none."""
    data: dict[str, Any] = {}
    if pack.has("numbers"):
        data = yaml.load(pack.document("numbers").read_text(encoding="utf-8"), Loader=_LOADER)
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
_PLACES = ("Left", "Right")  # of two tables under one caption


@dataclass(frozen=True)
class PrintedLine:
    """One row. `band` is the heading above the rows that it belongs to, "" if there is none."""

    title: str
    cells: tuple[PublishedCell, ...]
    band: str = ""

    @property
    def full_title(self) -> str:
        """The title after its band's: "LLaMA-1B, Post-LN"."""
        return ", ".join(filter(None, (self.band, self.title)))


@dataclass(frozen=True)
class PrintedPart:
    """A printed table as declared, or one of two under a caption. `name` is SOURCE:NUMBER, as on the command line.

    quantities: the settings in its columns, for a table of settings; cells_of: the table whose cells have them.
    """

    name: str
    title: str
    corner: str
    headings: tuple[str, ...]
    lines: tuple[PrintedLine, ...]
    quantities: tuple[str, ...] = ()
    cells_of: PrintedPart | None = None

    @property
    def source(self) -> str:
        """The source that prints it."""
        return self.name.partition(SEPARATOR)[0]

    @property
    def tables(self) -> tuple[PublishedTable, ...]:
        """The published tables that the part shows."""
        named = {cell.table.name: cell.table for line in self.lines for cell in line.cells if cell.table}
        return tuple(named.values())


def numbers(pack: Pack) -> tuple[str, ...]:
    """Return the numbers of a paper's tables."""
    return tuple(load(pack).get("layouts", {}))


def label_of(table: PublishedTable) -> str:
    """Return what the paper calls a table: "Table 2"; "" if its numbers are from the text."""
    return _labels(table.pack).get(table.name, "")


@cache
def _labels(pack: Pack) -> dict[str, str]:
    return {
        table.name: load(pack)["layouts"][number].get("label", f"Table {number}")
        for number in numbers(pack)
        for part in printed(pack, number)
        for table in part.tables
    }


def is_printed_name(name: str) -> bool:
    """Return whether `name` names a printed table, SOURCE:NUMBER, and not a grid."""
    return SEPARATOR in name


def printed_named(name: str, packs: Mapping[str, Pack]) -> tuple[PrintedPart, ...]:
    """Return the parts of the table PAPER:NUMBER, or NUMBER of GPAS. Raises GpasError with the nearest name."""
    paper, _, number = name.rpartition(SEPARATOR)
    pack = pack_named(paper or USUAL, packs)
    known = numbers(pack)
    if number not in known:
        raise GpasError(f"{short_title(pack)} has no table '{number}'; {nearest(number, known)}")
    return printed(pack, number)


@cache
def printed(pack: Pack, number: str) -> tuple[PrintedPart, ...]:
    """Return the parts of the table `number` of a paper, which must exist."""
    data = load(pack)["layouts"][number]
    title = f"{short_title(pack)}, {data.get('label', f'Table {number}')}: {data['caption']}"
    parts = data["parts"]
    titles = [title]
    if len(parts) > 1:
        alike = len({part["corner"] for part in parts}) == 1
        corners = ["" if alike else f": {part['corner']}" for part in parts]
        titles = [f"{title} {place}{corner}." for place, corner in zip(_PLACES, corners, strict=True)]
    name = f"{pack.name}{SEPARATOR}{number}"
    return tuple(_part(pack, name, own, part) for own, part in zip(titles, parts, strict=True))


def _part(pack: Pack, name: str, title: str, data: Mapping[str, Any]) -> PrintedPart:
    texts: Mapping[str, Any] = data.get("texts", {})
    lines = [PrintedLine(row, tuple(PublishedCell(None, text=one) for one in own)) for row, own in texts.items()]
    if not lines:
        lines = [line for band in data.get("bands") or [data] for line in _lines(pack, data, band)]
    return PrintedPart(
        name=name,
        title=title,
        corner=data["corner"],
        headings=tuple(data["headings"]),
        lines=tuple(lines),
        quantities=tuple(data.get("quantities", ())),
        cells_of=printed(pack, data["cells_of"])[0] if "cells_of" in data else None,
    )


def _lines(pack: Pack, part: Mapping[str, Any], band: Mapping[str, Any]) -> Iterator[PrintedLine]:
    columns = [column for name in band.get("columns") or part["columns"] for column in _columns(pack, name, part)]
    title = band["title"] if "bands" in part and "title" in band else ""
    for place, row in enumerate(band["rows"], band.get("first", 0)):
        cells = []
        for index, (table, column, further) in enumerate(columns):
            # The published columns of a transposed part are its rows.
            at = (column, place + further) if part.get("transposed") else (place + further, column)
            cells.append(_cell(part, band, row, index, PublishedCell(table, *at)))
        yield PrintedLine(row, tuple(cells), title)


def _columns(pack: Pack, name: str, part: Mapping[str, Any]) -> Iterator[tuple[PublishedTable, int, int]]:
    """Yield the published table, the position and the offset of the rows of each column that `name` stands for."""
    name, _, further = name.partition("+")
    name, at, label = name.partition("@")
    table = published(pack, name)
    every = range(len(table.rows)) if part.get("transposed") else range(len(table.columns) or 1)
    yield from ((table, i, int(further or 0)) for i in every if not at or str(table.columns[i]) == label)


def _cell(
    part: Mapping[str, Any], band: Mapping[str, Any], title: str, index: int, cell: PublishedCell
) -> PublishedCell:
    """Return the cell below a heading with its text: its own, or its number in the digits of the part."""
    heading = part["headings"][index]
    exceptions = {**part.get("as_printed", {}), **band.get("as_printed", {})}
    text = exceptions.get(title, {}).get(heading)
    if text is None:
        digits = part.get("digits", 2)
        text = _text(cell, digits if isinstance(digits, int | str) else digits[index]) or part.get("absent", "")
        if cell.value is not None and not cell.std:
            suffixes = part.get("suffix", {})
            text += suffixes.get(title, suffixes.get(heading, ""))
    marked = heading in part.get("underlined", {}).get(title, ())
    return replace(cell, text=text, mark="second" if marked else "")


def _text(cell: PublishedCell, digits: int | str) -> str:
    """Return a number with its difference or its standard deviation in parentheses, "" if there is none."""
    if cell.value is None:
        return ""
    form = digits if isinstance(digits, str) else f".{digits}f"
    if cell.delta is not None:
        return f"{cell.value:{form}} ({cell.delta:+{form}})"
    return f"{cell.value:{form}}" + ("" if cell.std is None else f" ({cell.std:{form}})")
