"""A paper's tables as it prints them: `printed` in the file of its numbers, by the number that the paper gives a table.

    printed:
      '2':
        title: Perplexity of pretrained models
        corner: Method
        published: table2_perplexity
        columns: {71M: {size: 71m}, 1B: {size: 1b}}
        rows: {Pre-LN: {norm: pre}, Pre + GPAS: {norm: pre, gate: gpas}}

A number has the labels of its row, its column and its band (`grid.read.in_bands`); of several that have them, it is
the one with the fewest others. docs/reference/numbers.md has all keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from gpas_cli.errors import GpasError, InvalidExperiments, Problem, nearest
from gpas_cli.grid.declared import Line, TableSpec
from gpas_cli.grid.document import spelled
from gpas_cli.grid.packs import Pack, pack_named
from gpas_cli.grid.read import in_bands, listed
from gpas_cli.grid.settings import Entries, Part, root_of
from gpas_cli.report import papers
from gpas_cli.report.papers import (
    SEPARATOR,
    CellLabels,
    PublishedCell,
    PublishedTable,
    load,
    numbers,
    published,
    short_title,
    text_alone,
)
from gpas_cli.report.shapes import checked
from gpas_cli.report.tables.table import Column, Printed, Row, Table, TableCell
from gpas_cli.spec.stage import Metric
from gpas_cli.words import count

_PLACES = ("Left", "Right")  # of two tables under one title
_OF_NUMBERS = ("published", "bands", "digits", "missing", "suffix", "texts", "underlined")
_OF_PARTS = ("corner", "columns", "rows", "cells_of", *_OF_NUMBERS)
_ALL = "all"  # digits: as many as the number has
_AS_PRINTED = Metric("", "")  # of tables without our numbers
_METRIC = "metric"  # the label of a published table


def label_of(table: PublishedTable) -> str:
    """Return what the source calls a table: "Table 2"; "" if its numbers are from the text."""
    return _labels(table.pack).get(table.name, "")


@cache
def _labels(pack: Pack) -> dict[str, str]:
    return {
        table.name: _name(pack, number)
        for number in numbers(pack)
        for part in printed(pack, number)
        for table in part.tables
    }


def _name(pack: Pack, number: str) -> str:
    return str(load(pack)["printed"][number].get("name", f"Table {number}"))


def printed_named(name: str, packs: Mapping[str, Pack]) -> tuple[Table, ...]:
    """Return the parts of the table PAPER:NUMBER, or NUMBER of GPAS. Raises GpasError with the nearest name."""
    paper, _, number = name.rpartition(SEPARATOR)
    pack = pack_named(paper or papers.USUAL, packs)
    known = numbers(pack)
    if number not in known:
        raise GpasError(f"{short_title(pack)} has no table '{number}'; {nearest(number, known)}")
    return printed(pack, number)


@cache
def printed(pack: Pack, number: str) -> tuple[Table, ...]:
    """Return the parts of the table `number` of a paper, which must exist.

    Raises InvalidExperiments for mistakes in the file, with their places.
    """
    problems: list[Problem] = []
    whole = root_of(checked(pack, "numbers"), problems).entries()["printed"].entries()[number]
    keys = whole.entries(("name", "title", "parts", *_OF_PARTS))
    parts = [part.entries(_OF_PARTS) for part in keys["parts"].items()] or [keys]
    title = f"{short_title(pack)}, {_name(pack, number)}: {keys['title'].sentence()}"
    titles = [title]
    if len(parts) > len(_PLACES):
        keys["parts"].report(f"has {len(parts)} tables; at most {len(_PLACES)} are beside each other")
    elif len(parts) > 1:
        corners = [part["corner"].text() for part in parts]
        said = ["" if len(set(corners)) == 1 else f": {corner}" for corner in corners]
        titles = [f"{title} {place}{corner}." for place, corner in zip(_PLACES, said, strict=True)]
    name = f"{pack.name}{SEPARATOR}{number}"
    made = tuple(_part(pack, name, own, part) for own, part in zip(titles, parts, strict=False))
    if problems:
        raise InvalidExperiments(problems)
    return made


def _part(pack: Pack, name: str, title: str, keys: Entries) -> Table:
    columns, cells_of = keys["columns"], _known(keys["cells_of"], numbers(pack))
    for key in ("columns", "rows"):
        if not keys[key].value:
            keys.part.report(f"needs '{key}'")
    if "published" in keys:
        heads = listed(columns)
        labels = {head.title: head.title for head in heads}
        rows = list(_Numbers(pack, keys, heads).rows())
    else:
        labels = columns.text_mapping() if isinstance(columns.value, dict) else {text: text for text in columns.texts()}
        rows = [(Line(row, {}), _texts(pack, part, len(labels))) for row, part in keys["rows"].entries().items()]
    axes = ("band", "row") if any(line.band for line, _ in rows) else ("row",)
    return Table(
        TableSpec(title, rows=axes, columns="column"),
        _AS_PRINTED,
        tuple(Column(label, head, _AS_PRINTED) for head, label in labels.items()),
        tuple(
            Row(
                (line.band, line.title)[-len(axes) :],
                line.title,
                beside(pack.name, cells),
                section=line.band,
                line=line,
            )
            for line, cells in rows
        ),
        {},
        printed=name,
        corner=keys["corner"].text(),
        alone=True,
        cells_of=printed(pack, cells_of[0])[0] if cells_of else None,
    )


def beside(source: str, cells: Iterable[PublishedCell]) -> tuple[TableCell, ...]:
    """Return the cells of a row without numbers of ours."""
    return tuple(TableCell(printed={source: Printed(cell, cell.delta)}) for cell in cells)


def _texts(pack: Pack, row: Part, columns: int) -> list[PublishedCell]:
    texts = row.texts()
    if len(texts) != columns:
        row.report(f"has {count(len(texts), 'text')} for {count(columns, 'column')}; write one for each")
    return [PublishedCell(text_alone(pack), text=text) for text in texts]


class _Numbers:
    """A table of published numbers, as declared."""

    def __init__(self, pack: Pack, keys: Entries, columns: Sequence[Line]) -> None:
        self.pack, self.keys, self.columns = pack, keys, columns
        names = _known(keys["published"], papers.tables(pack))
        self.tables = [published(pack, name) for name in names]
        self.lines = in_bands(listed(keys["rows"]), listed(keys["bands"]))
        headings, titles = [column.title for column in columns], [row.title for row in self.lines]
        self.texts = {row: _texts_by(one, headings) for row, one in keys["texts"].entries(titles).items()}
        self.underlined = {row: _known(one, headings) for row, one in keys["underlined"].entries(titles).items()}
        self.suffix = _texts_by(keys["suffix"], [*titles, *headings])
        digits = keys["digits"]
        own = digits.entries(headings) if isinstance(digits.value, dict) else dict.fromkeys(headings, digits)
        self.digits = {title: _digits(one) for title, one in own.items()}

    def rows(self) -> Iterator[tuple[Line, list[PublishedCell]]]:
        """Yield each row with its cells."""
        for line in self.lines:
            yield line, [self._cell(line, column) for column in self.columns]

    def _cell(self, row: Line, column: Line) -> PublishedCell:
        """Return the number of a row and a column with its text: its own, or its digits."""
        cell = self._number(row, column)
        text = self.texts.get(row.title, {}).get(column.title, "")
        if not text:
            text = _text(cell, self.digits.get(column.title, 2)) or self.keys["missing"].text()
            if cell.value is not None and not cell.std:
                text += self.suffix.get(row.title, self.suffix.get(column.title, ""))
        underlined = column.title in self.underlined.get(row.title, ())
        return replace(cell, text=text, mark="second" if underlined else "")

    def _number(self, row: Line, column: Line) -> PublishedCell:
        wanted: dict[str, Any] = {**column.labels, **row.labels}
        metrics = wanted.pop(_METRIC, ())
        found = [
            cell for table in self.tables if not metrics or table.metric in metrics for cell in _having(table, wanted)
        ]
        others = [len(cell.table.rows[cell.row].labels) for cell in found]
        found = [cell for cell, further in zip(found, others, strict=True) if further == min(others)]
        if len(found) == 1:
            return found[0]
        labels = [(axis, spelled(one)) for axis, several in wanted.items() for one in several]
        has = "no number has" if not found else f"{len(found)} numbers have"
        said = f"{has} the labels of this row and of the column '{column.title}': {', '.join(map(' '.join, labels))}"
        known = {axis: [str(one) for table in self.tables for one in table.labels_on(axis)] for axis in wanted}
        hints = [f"; {nearest(one, dict.fromkeys(known[axis]))}" for axis, one in labels if one not in known[axis]]
        self.keys["rows"].entries()[row.title].report("".join((said, *hints[:1])))
        return PublishedCell(text_alone(self.pack))


def _having(table: PublishedTable, wanted: CellLabels) -> list[PublishedCell]:
    """Return the cells of a published table that have these labels."""
    axis = table.axis
    columns = [
        i
        for i, label in enumerate(table.columns or ("",))
        if axis not in wanted or papers.has_labels({axis: label}, {axis: wanted[axis]})
    ]
    rows = [i for i, row in enumerate(table.rows) if papers.has_labels(row.labels, wanted, (axis,) if axis else ())]
    return [PublishedCell(table, i, j) for i in rows for j in columns]


def _texts_by(part: Part, names: Sequence[str]) -> dict[str, str]:
    """Return a mapping of these names to texts."""
    return {name: one.text() for name, one in part.entries(names).items()}


def _known(part: Part, names: Sequence[str]) -> list[str]:
    """Return the names in a text or a list of texts; other texts are reported."""
    texts = part.texts()
    for text in texts:
        if text not in names:
            part.report(f"there is no '{text}'; {nearest(text, names)}")
    return [text for text in texts if text in names]


def _digits(part: Part) -> int | str:
    """Return the digits after the point, or `all` for as many as each number has."""
    digits = _ALL if part.value == _ALL else part.count()
    return 2 if digits is None else digits


def _text(cell: PublishedCell, digits: int | str) -> str:
    """Return a number with its difference or its standard deviation in parentheses, "" if there is none."""
    if cell.value is None:
        return ""
    form = "g" if digits == _ALL else f".{digits}f"
    if cell.delta is not None:
        return f"{cell.value:{form}} ({cell.delta:+{form}})"
    return f"{cell.value:{form}}" + ("" if cell.std is None else f" ({cell.std:{form}})")
