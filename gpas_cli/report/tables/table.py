"""A `Table` and how it is filled: each spot with the number of its cells, their states, and what is printed beside it.

The table is data; `render` turns it into text. A grid's table (`grid_table`) derives its rows and columns from axes, a
paper's (`paper_table`) has those that the paper prints; `fill` treats both alike.

rows       one per method; a method with a base is compared with it
a cell     mean and standard deviation over seeds, paired difference from the base, published numbers, status
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import Annotated

from gpas_cli.grid.declared import Entry, Line, TableSpec
from gpas_cli.grid.document import Label
from gpas_cli.report.labels import RowKey
from gpas_cli.report.papers import SEPARATOR, PublishedCell, PublishedTable
from gpas_cli.report.papers.recipes import Deviation, deviations
from gpas_cli.report.tables.entry_status import (
    REFERENCE,
    EntryStatus,
    Results,
    States,
    as_averaged,
    best_variant,
    entry_status,
    in_units_of,
    missing_numbers,
)
from gpas_cli.report.tables.sheet import Note
from gpas_cli.spec.stage import Metric
from gpas_cli.statistics import stats
from gpas_cli.structure import Frozen


class Printed(Frozen):
    """A published cell beside one of ours, and its difference from the published base."""

    cell: PublishedCell
    delta: float | None = None
    deviations: tuple[Deviation, ...] = ()  # where our cell differs from the recipe of the number
    unserved: str = ""  # why no cell of ours matches it; "" if one does

    @property
    def value(self) -> float | None:
        """The number; None for a setting and where the paper prints no number."""
        return self.cell.value

    @property
    def underlined(self) -> str:
        """How the paper marks the text: "underlined" or ""."""
        return "underlined" if self.cell.mark else ""

    @property
    def remarks(self) -> list[str]:
        """What a reader must know about the number."""
        return [remark.text for remark in self.cell.remarks]


class TableCell(Frozen):
    """One cell."""

    statuses: tuple[EntryStatus, ...] = ()
    """Empty if the grid has no such cell."""
    summary: stats.Aggregate | None = None
    delta: stats.Paired | None = None
    """None in a base row, and if no seed has both numbers."""
    status: str = ""
    """Why numbers are missing, "" if none is."""
    mark: str = ""
    """Its rank in the column: "best", "second", or "" for none."""
    printed: Mapping[str, Printed] = field(default_factory=dict)
    """What each source prints there."""
    others: tuple[EntryStatus, ...] = ()
    """The runs with other settings, where the best of several settings is shown."""
    contributed: Mapping[str, TableCell] = field(default_factory=dict)
    """What others have trained of the cell, by name; no part of our numbers."""

    @property
    def values(self) -> dict[Hashable, float]:
        """The numbers by seed."""
        return {s.seed: s.value for s in self.statuses if s.value is not None}

    @property
    def n(self) -> int:
        """The number of runs in the mean."""
        return self.summary.n if self.summary else 0

    @property
    def stderr(self) -> float | None:
        """The standard error of a single score over its questions; None for several seeds, which have a std."""
        valued = [s for s in self.statuses if s.value is not None]
        return valued[0].stderr if len(valued) == 1 else None

    @property
    def complete(self) -> bool:
        """Whether every seed has its number, and every other setting has ended."""
        ended = all(other.value is not None or other.state == "diverged" for other in self.others)
        return ended and self.summary is not None and self.summary.n == len(self.statuses)

    @property
    def runs(self) -> tuple[EntryStatus, ...]:
        """All runs that the number needs."""
        return (*self.statuses, *self.others)


class Row(Frozen):
    """One method."""

    key: RowKey
    title: str
    cells: tuple[TableCell, ...]
    indent: int = 0
    base: RowKey | None = None  # the key of the row that its deltas refer to, None for a row that is itself a base
    full: str = ""
    """The title with what the row has in common with its base, if that is above: "Pre-LN + GPAS" of "+ GPAS"."""
    section: str = ""  # the heading above the row and its neighbours, if the table has such headings
    line: Line | None = None  # in a paper's table, the row as it is listed

    @property
    def full_title(self) -> str:
        """The title with what the row has in common with its base: "Pre-LN + GPAS"."""
        return self.full or self.title

    @property
    def whole_title(self) -> str:
        """The full title after the heading above the row: "LLaMA-1B, Post-LN"."""
        return f"{self.section}, {self.full_title}" if self.section else self.full_title

    @property
    def as_printed(self) -> list[Printed]:
        """The published cells, of a table without cells of ours."""
        return [printed for cell in self.cells for printed in cell.printed.values()]

    @property
    def published(self) -> list[PublishedCell]:
        """The same, without what is said about them."""
        return [printed.cell for printed in self.as_printed]


class Column(Frozen):
    """One label of the column axis with one metric."""

    label: Label
    title: str
    metric: Metric
    sources: Annotated[tuple[str, ...], "the papers that print a number for any of its cells"] = ()
    contributors: Annotated[tuple[str, ...], "the people who have contributed results of any of them"] = ()


class Table(Frozen):
    """A table."""

    spec: TableSpec
    metric: Metric
    """The metric of the first columns."""
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    """In display order."""
    published: Mapping[str, PublishedTable]
    printed: str = ""
    """The name of the paper's table that it is, SOURCE:NUMBER, "" if it is a grid's."""
    corner: str = ""
    """The heading of the row titles."""
    remarks: tuple[Note, ...] = ()
    """Further notes."""
    alone: bool = False
    """It is as printed, without cells of ours."""
    cells_of: Table | None = None
    """Of a table of settings, the paper's table whose cells have them; the labels of its columns are the settings."""

    @property
    def source(self) -> str:
        """The source that prints it."""
        return self.printed.partition(SEPARATOR)[0]

    @property
    def tables(self) -> tuple[PublishedTable, ...]:
        """The published tables whose numbers it has, of a table without cells of ours."""
        return tuple(
            {cell.table.name: cell.table for row in self.rows for cell in row.published if cell.table.name}.values()
        )

    @property
    def papers(self) -> dict[str, str]:
        """The papers whose numbers are beside ours, with the digests of their files."""
        return {source: table.pack.digest for source, table in self.published.items()}

    @cached_property
    def statuses(self) -> tuple[EntryStatus, ...]:
        """Each entry once, with a number if it has one: with a column per task, an entry is in several cells."""
        every = [status for row in self.rows for cell in row.cells for status in cell.runs]
        return tuple({s.entry.id: s for s in sorted(every, key=lambda s: s.value is not None)}.values())


class Spot(Frozen):
    """What a cell of a table shows: the number of some cells of the grid, and published numbers beside it.

    base, unit: the row and column of the number that it is compared with, and of its unit.
    """

    metric: Metric
    runs: Sequence[tuple[Entry, str | None]] = ()
    """The entries, each with the task or text that its number is measured on, None for the usual one."""
    beside: Callable[[Entry | None], Mapping[str, PublishedCell]] = lambda entry: {}
    """The published cells by source, those beside an entry's number or, for None, beside no number."""
    unserved: str = ""  # why no cell of ours is there
    base: tuple[int, int] | None = None
    unit: tuple[int, int] | None = None

    def batches(self, entry: Entry) -> int:
        """Return the validation batches of the published number beside an entry's, 0 for as many as ours."""
        if self.metric.name != REFERENCE:
            return 0
        return next((cell.batches for cell in self.beside(entry).values() if cell.table.batches), 0)


class Frame(Frozen):
    """A table without its numbers: the table without rows, and its rows without cells, each with its spots."""

    table: Table
    lines: Sequence[tuple[Row, Sequence[Spot]]]

    def showing(self, metric: Metric) -> Frame:
        """Return the frame with another metric everywhere, and nothing beside it."""
        columns = tuple(replace(column, metric=metric) for column in self.table.columns)
        lines = [
            (row, [replace(spot, metric=metric, beside=Spot.beside, unit=None) for spot in spots])
            for row, spots in self.lines
        ]
        return Frame(replace(self.table, metric=metric, columns=columns, published={}), lines)


def fill(frame: Frame, states: States, results: Results) -> Table:
    """Return the table with its numbers; `states` and `results` are by stage key."""
    table = frame.table
    spots = {(i, j): spot for i, (_, own) in enumerate(frame.lines) for j, spot in enumerate(own)}
    plain = {at: _cell(spot, table.spec.over, states, results) for at, spot in spots.items()}
    found = {
        at: _in_unit(plain[at], plain[spot.unit], table.spec.over) if spot.unit else plain[at]
        for at, spot in spots.items()
    }
    cells = {
        at: _compared(spot, found[at], (spots[spot.base], found[spot.base]) if spot.base else None)
        for at, spot in spots.items()
    }
    places = range(len(table.columns))
    rows = [replace(row, cells=tuple(cells[i, j] for j in places)) for i, (row, _) in enumerate(frame.lines)]
    columns = [
        replace(column, sources=_sources(table, [row.cells[j] for row in rows]))
        for j, column in enumerate(table.columns)
    ]
    return replace(table, columns=tuple(columns), rows=tuple(_ranked(rows, spots)))


def _cell(spot: Spot, over: str, states: States, results: Results) -> TableCell:
    every = [
        as_averaged(entry_status(entry, over, spot.metric, label, states, results), spot.batches(entry), spot.metric)
        for entry, label in spot.runs
    ]
    own, others = best_variant(every, over, spot.metric)
    return _with_summary(TableCell(own, others=others), over)


def _with_summary(cell: TableCell, over: str) -> TableCell:
    """Return a cell of runs with its mean, its standard deviation and why numbers are missing."""
    numbers = [run.value for run in cell.statuses if run.value is not None]
    status = missing_numbers(cell.runs, "variant" if cell.others else over)
    return replace(cell, summary=stats.aggregate(numbers) if numbers else None, status=status)


def _in_unit(cell: TableCell, unit: TableCell, over: str) -> TableCell:
    mean = unit.summary.mean if unit.summary else None
    statuses, others = (in_units_of(runs, mean) for runs in (cell.statuses, cell.others))
    return _with_summary(replace(cell, statuses=statuses, others=others), over)


def _compared(spot: Spot, cell: TableCell, base: tuple[Spot, TableCell] | None) -> TableCell:
    """Return a cell with its difference from its base, and the published numbers with theirs."""
    bases = base[0].beside(_first(base[1])) if base else {}
    entries = [entry for entry, _ in spot.runs]
    beside = {
        source: Printed(
            one, one.minus(bases.get(source)), deviations(entries, one.table) if entries else (), spot.unserved
        )
        for source, one in spot.beside(_first(cell)).items()
        if one.value is not None or one.text  # also N/A and a dash
    }
    return replace(cell, delta=stats.paired(cell.values, base[1].values) if base else None, printed=beside)


def _first(cell: TableCell) -> Entry | None:
    return cell.statuses[0].entry if cell.statuses else None


def _sources(table: Table, cells: Sequence[TableCell]) -> tuple[str, ...]:
    """Return the sources that print a number beside one of the cells of a column."""
    printed = {source for cell in cells for source, one in cell.printed.items() if one.value is not None}
    return tuple(source for source in table.published if source in printed)


def _ranked(rows: Sequence[Row], spots: Mapping[tuple[int, int], Spot]) -> list[Row]:
    """Mark the best and the second best of each column in each section. Unfinished cells are not ranked."""
    cells = [list(row.cells) for row in rows]
    for section in dict.fromkeys(row.section for row in rows):
        places = [i for i, row in enumerate(rows) if row.section == section]
        for column in range(len(rows[0].cells)):
            alike = [cells[i][column] for i in places]
            numbers = [cell.summary.mean if cell.summary and cell.complete else None for cell in alike]
            for i, mark in zip(places, _marks(numbers, spots[places[0], column].metric), strict=True):
                cells[i][column] = replace(cells[i][column], mark=mark)
    return [replace(row, cells=tuple(own)) for row, own in zip(rows, cells, strict=True)]


def _marks(numbers: Sequence[float | None], metric: Metric) -> list[str]:
    """Return "best", "second" or "" for each number of a column; None and nan are not ranked.

    Numbers equal in the displayed digits tie; after a tie for best there is no second. One number alone has no mark,
    and neither have numbers of a metric without a better direction.
    """
    shown = [None if n is None or math.isnan(n) else round(n, metric.digits) for n in numbers]
    ranked = sorted((n for n in shown if n is not None), reverse=metric.better == "higher")
    if len(ranked) < 2 or not metric.better:
        return [""] * len(shown)
    names = {ranked[1]: "second", ranked[0]: "best"}  # if both are the same number, it is the best
    return ["" if n is None else names.get(n, "") for n in shown]


def with_declared(frame: Frame, declared: Metric, states: States, results: Results) -> Table:
    """Return the table with the metric that its grid declares beside the one that published numbers are compared with.

    Where the published code averages otherwise, the perplexity over all tokens has separate columns.
    """
    compared = fill(frame, states, results)
    shown = [column.metric for column in compared.columns]
    if declared.name in [one.name for one in shown] or any(one.family != declared.family for one in shown):
        return compared
    other, columns = fill(frame.showing(declared), states, results), []
    for j, column in enumerate(compared.columns):
        columns.append((compared, j, column.title))
        if any(row.cells[j].statuses for row in other.rows):
            what = f" ours, {declared.title}" if compared.printed else f", {declared.heading}"
            columns.append((other, j, f"{column.title}{what}"))
    corner = compared.corner if compared.printed else compared.corner or compared.metric.title
    return replace(side_by_side(columns), corner=corner)


def side_by_side(columns: Sequence[tuple[Table, int, str]]) -> Table:
    """Return one table with columns of several tables of the same rows: each a table, a column of it and a title."""
    first = columns[0][0]
    rows = [
        replace(row, cells=tuple(table.rows[i].cells[j] for table, j, _ in columns)) for i, row in enumerate(first.rows)
    ]
    titled = [replace(table.columns[j], title=title) for table, j, title in columns]
    return replace(first, columns=tuple(titled), rows=tuple(rows))
