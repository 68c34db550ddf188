"""Build a `Table` from entries, their states and results. The table is data; `render` turns it into text.

rows       one per method (the row axes); a method with a base (`against`) is below its base
externals  networks that were not trained here, below the rows
columns    one per label of the column axis, or one per downstream task
a cell     mean and standard deviation over seeds, paired difference from the base, published numbers, status
"""

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

from gpas_cli.errors import GpasError, nearest
from gpas_cli.grid.declared import Entry, TableSpec
from gpas_cli.grid.document import Label
from gpas_cli.report.labels import (
    RowKey,
    label_title,
    number_facts,
    row_title,
    scheme_titles,
    stage_kinds,
)
from gpas_cli.report.papers import PublishedCell, PublishedTable, published
from gpas_cli.report.papers.recipes import Deviation, deviations
from gpas_cli.report.quantities import metric, recorded_metric
from gpas_cli.report.recorded import ExternalNetwork, Recorded
from gpas_cli.report.tables.entry_status import (
    EntryStatus,
    Results,
    States,
    as_averaged,
    best_variant,
    entry_status,
    group,
    missing_numbers,
)
from gpas_cli.report.tables.external import Externals, external_rows
from gpas_cli.report.tables.sheet import Note
from gpas_cli.spec.downstream import task_title
from gpas_cli.spec.stage import MEASURED_COLUMNS, Metric, StageKind
from gpas_cli.statistics import stats


@dataclass(frozen=True)
class Printed:
    """A published cell beside one of ours, and its difference from the published base.

    deviations: where our cell differs from the recipe of the number. unserved: why none of our cells is beside it
    there, "" if one is.
    """

    cell: PublishedCell
    delta: float | None = None
    deviations: tuple[Deviation, ...] = ()
    unserved: str = ""

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


@dataclass(frozen=True)
class TableCell:
    """One cell. `mark` is "best", "second" or ""; `status` is why numbers are missing, "" if none is.

    `delta` is None in a base row, and if no seed has both numbers. `statuses` is empty if the grid has no such cell.
    others: the runs with other settings, where the best of several settings is shown. contributed: what others have
    trained of the cell, by name; no part of our numbers.
    """

    statuses: tuple[EntryStatus, ...] = ()
    summary: stats.Aggregate | None = None
    delta: stats.Paired | None = None
    status: str = ""
    mark: str = ""
    printed: Mapping[str, Printed] = field(default_factory=dict)
    others: tuple[EntryStatus, ...] = ()
    contributed: Mapping[str, "TableCell"] = field(default_factory=dict)

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
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the difference from the base; None if there are fewer than two pairs."""
        return stats.mean_interval(self.delta) if self.delta is not None else None

    @property
    def complete(self) -> bool:
        """Whether every seed has its number, and every other setting has ended."""
        ended = all(other.value is not None or other.state == "diverged" for other in self.others)
        return ended and self.summary is not None and self.summary.n == len(self.statuses)

    @property
    def runs(self) -> tuple[EntryStatus, ...]:
        """All runs that the number needs."""
        return (*self.statuses, *self.others)


@dataclass(frozen=True)
class Row:
    """One method. `base` is the key of the row that its deltas refer to, None for a row that is itself a base.

    full: the title with what the row has in common with its base, if that is above: "Pre-LN + GPAS" of "+ GPAS".
    section: the heading above the row and its neighbours, if the table has such headings.
    """

    key: RowKey
    title: str
    cells: tuple[TableCell, ...]
    indent: int = 0
    base: RowKey | None = None
    full: str = ""
    section: str = ""

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


@dataclass(frozen=True)
class Column:
    """One label of the column axis with one metric, and the sources that print a number for any of its cells.

    contributors: the people who have contributed results of any of them.
    """

    label: Label
    title: str
    metric: Metric
    sources: tuple[str, ...] = ()
    contributors: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """A table. `rows` are in display order. `metric` is the metric of the first columns.

    printed: the name of the printed table whose layout it has, SOURCE:NUMBER, "" if it has its own. corner: then, the
    heading of the row titles. remarks: further notes. alone: it is as printed, without cells of ours.
    """

    spec: TableSpec
    metric: Metric
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    published: Mapping[str, PublishedTable]
    externals: Externals = field(default_factory=Externals)
    printed: str = ""
    corner: str = ""
    remarks: tuple[Note, ...] = ()
    alone: bool = False

    @cached_property
    def statuses(self) -> tuple[EntryStatus, ...]:
        """Each entry once, with a number if it has one: with a column per task, an entry is in several cells."""
        every = [status for row in self.rows for cell in row.cells for status in cell.runs]
        return tuple({s.entry.id: s for s in sorted(every, key=lambda s: s.value is not None)}.values())


def build(
    entries: Sequence[Entry],
    states: States,
    results: Results,
    spec: TableSpec,
    networks: Sequence[ExternalNetwork] | None = None,
    what: Metric | None = None,
) -> Table:
    """Return the table of `entries`; `states` and `results` are by stage key. `networks` are shown below the cells.

    what: the metric, by default the one that `spec` names.

    Raises GpasError for an unknown metric, axis or published table, if two entries of one table cell differ in more
    than the averaged axis, and for networks if the columns are not tasks.
    """
    sources = {pack.name: published(pack, name) for pack, name in spec.published.items()}
    kinds = stage_kinds(entries)
    what = what or metric(_compared_value(spec.value, sources.values(), kinds), kinds)
    return _Builder(entries, states, results, replace(spec, value=what.name), what, sources).table(networks)


@dataclass(frozen=True)
class _Builder:
    """What a table is built from. sources: the published tables beside it."""

    entries: Sequence[Entry]
    states: States
    results: Results
    spec: TableSpec
    what: Metric
    sources: Mapping[str, PublishedTable]

    @property
    def measured_on(self) -> bool:
        """Whether there is a column for each task or text."""
        return self.spec.columns in MEASURED_COLUMNS

    def table(self, networks: Sequence[ExternalNetwork] | None) -> Table:
        """Return the table, with the networks below its rows."""
        self._check()
        spec = self.spec
        groups = group(self.entries, spec)
        labels = list(dict.fromkeys(label for columns in groups.values() for label in columns))
        bases = {
            key: base
            for key in groups
            if (base := tuple(spec.against.get(axis, label) for axis, label in zip(spec.rows, key, strict=True))) != key
        }
        plain = {
            key: [self._cell(label, columns.get(label, ())) for label in labels] for key, columns in groups.items()
        }
        cells = {
            key: self._compared(row, plain.get(bases[key]) if key in bases else None, labels)
            for key, row in plain.items()
        }
        rows = ranked(_order(cells, bases, spec, scheme_titles(self.entries)), lambda row, column: self.what)
        columns = tuple(self._column(label, i, rows) for i, label in enumerate(labels))
        externals = Externals() if networks is None else self._externals(networks, columns)
        return Table(spec, self.what, columns, tuple(rows), self.sources, externals)

    def _check(self) -> None:
        spec = self.spec
        if not self.entries:
            raise self._error("there are no cells to show")
        axes = list(dict.fromkeys(axis for entry in self.entries for axis in entry.axes))
        for axis in filter(None, (*spec.rows, "" if self.measured_on else spec.columns, spec.best)):
            if axis not in axes:
                raise self._error(f"no cell has an axis '{axis}'; {nearest(axis, axes)}")
        if spec.best == spec.over:
            raise self._error(f"best: the mean is over '{spec.best}'; name another axis")
        if spec.best and len({entry.axes.get(spec.best) for entry in self.entries}) < 2:
            raise self._error(f"best: the cells have one value of '{spec.best}'; the best of an axis needs several")
        if spec.best and not self.what.better:
            raise self._error(f"best: neither a lower nor a higher {self.what.name} is better")
        for axis in spec.against:
            if axis not in spec.rows:
                raise self._error(f"against: '{axis}' is not a row axis; {nearest(axis, spec.rows)}")
        for source, table in self.sources.items():
            if table.metric != self.what.family:
                raise self._error(f"published {source}: {table.name} prints {table.metric}, not {self.what.family}")

    def _error(self, message: str) -> GpasError:
        return GpasError(f"table '{self.spec.title}': {message}")

    def _externals(self, networks: Sequence[ExternalNetwork], columns: Sequence[Column]) -> Externals:
        if self.spec.columns != "task":
            what = "networks that were not trained here have scores at tasks"
            remedy = "--external is for grids with `table: {columns: task}`"
            raise self._error(f"{what}, and its columns are '{self.spec.columns}'; {remedy}")
        sections = [
            replace(section, max_length=entry.cell.model.family.row_length(section.max_length))
            for entry in self.entries
            if (section := entry.cell.parameters("downstream"))
        ]
        return external_rows(networks, sections, [self.what.recorded_as(str(column.label)) for column in columns])

    def _cell(self, label: Label, entries: Sequence[Entry]) -> TableCell:
        statuses = []
        for entry in entries:
            measured_on = str(label) if self.measured_on else None
            status = entry_status(entry, self.spec.over, self.what, measured_on, self.states, self.results)
            statuses.append(as_averaged(status, self._batches(entry, label), self.what))
        own, others = best_variant(statuses, self.spec.over, self.what)
        return with_summary(TableCell(own, others=others), self.spec.over)

    def _batches(self, entry: Entry, label: Label) -> int:
        """Return the validation batches of the published number beside an entry's, 0 for as many as ours."""
        cells = (table.cell(self._facts(entry, label)) for table in self.sources.values() if table.batches)
        return next((cell.batches for cell in cells if cell), 0)

    def _compared(
        self, row: Sequence[TableCell], base: Sequence[TableCell] | None, labels: Sequence[Label]
    ) -> list[TableCell]:
        """Return the cells of a row with their differences from the base's cells, and the published numbers."""
        found = []
        for own, other, label in zip(row, base or [TableCell()] * len(labels), labels, strict=True):
            printed = {}
            for name, table in self.sources.items() if own.statuses else ():
                cell = table.cell(self._facts(own.statuses[0].entry, label))
                if cell is not None and cell.value is not None:
                    bases = [table.cell(self._facts(run.entry, label)) for run in other.statuses[:1]]
                    differing = deviations([run.entry for run in own.runs], table)
                    printed[name] = Printed(cell, cell.minus(bases[0] if bases else None), differing)
            found.append(replace(own, delta=stats.paired(own.values, other.values) if base else None, printed=printed))
        return found

    def _facts(self, entry: Entry, label: Label) -> dict[str, Label]:
        """Return the labels by which the number of an entry in the column `label` is looked up in papers."""
        return number_facts(entry, self.what, str(label) if self.measured_on else None)

    def _column(self, label: Label, index: int, rows: Sequence[Row]) -> Column:
        cells = [row.cells[index] for row in rows]
        present = tuple(source for source in self.sources if any(source in cell.printed for cell in cells))
        columns = self.spec.columns
        title = task_title(str(label)) if self.measured_on else label_title(columns, label, {}) or str(label)
        return Column(label, title, self.what, present)


def with_summary(cell: TableCell, over: str) -> TableCell:
    """Return a cell of runs with its mean, its standard deviation and why numbers are missing."""
    numbers = [run.value for run in cell.statuses if run.value is not None]
    status = missing_numbers(cell.runs, "variant" if cell.others else over)
    return replace(cell, summary=stats.aggregate(numbers) if numbers else None, status=status)


def _order(
    cells: Mapping[RowKey, Sequence[TableCell]],
    bases: Mapping[RowKey, RowKey],
    spec: TableSpec,
    titles: Mapping[Label, str],
) -> list[Row]:
    """Return bases in declared order, each followed by the rows that are compared with it."""
    rows = []
    for key in cells:
        if bases.get(key) in cells:
            continue
        rows.append(Row(key, row_title(spec.rows, key, titles), tuple(cells[key]), base=bases.get(key)))
        for child in cells:
            if bases.get(child) == key:
                title = _changed_title(spec.rows, child, key, titles)
                rows.append(Row(child, title, tuple(cells[child]), 1, key, row_title(spec.rows, child, titles)))
    return rows


def _changed_title(axes: Sequence[str], key: RowKey, base: RowKey, titles: Mapping[Label, str]) -> str:
    """Return how a row differs from its base: "+ GPAS" if it has more, "init scaled" if it has something else."""
    changed = [i for i, label in enumerate(key) if label != base[i]]
    title = row_title([axes[i] for i in changed], tuple(key[i] for i in changed), titles)
    return title if any(label_title(axes[i], base[i], titles) for i in changed) else f"+ {title}"


def ranked(rows: Sequence[Row], metric_of: Callable[[int, int], Metric]) -> list[Row]:
    """Return the rows with the best and second best of each column of a section marked; unfinished cells have no rank.

    metric_of: returns the metric of the numbers in a section, by the place of its first row, and a column.
    """
    cells = [list(row.cells) for row in rows]
    for section in dict.fromkeys(row.section for row in rows):
        places = [i for i, row in enumerate(rows) if row.section == section]
        for column in range(len(rows[0].cells)):
            alike = [cells[i][column] for i in places]
            numbers = [cell.summary.mean if cell.summary and cell.complete else None for cell in alike]
            for i, mark in zip(places, marks(numbers, metric_of(places[0], column)), strict=True):
                cells[i][column] = replace(cells[i][column], mark=mark)
    return [replace(row, cells=tuple(own)) for row, own in zip(rows, cells, strict=True)]


T = TypeVar("T")


def marks(numbers: Sequence[float | None], metric: Metric) -> list[str]:
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


def _compared_value(value: str, tables: Iterable[PublishedTable], kinds: Collection[StageKind] = ()) -> str:
    """Return the metric to show beside the numbers of `tables` in place of the metric `value`.

    It is the one that all of them are `compared_as`: the published code of GPAS computes perplexity_reference. If they
    disagree, in it or in their numbers of batches, or if it comes from another stage than `value`, `value` is returned.
    """
    named = {(table.compared_as or value, table.batches) for table in tables}
    if len(named) != 1:
        return value
    only, _ = named.pop()
    return only if metric(only, kinds).stage == metric(value, kinds).stage else value


def by_metrics(known: Recorded, spec: TableSpec, names: Sequence[str]) -> Table:
    """Return the table with a column for each of the recorded numbers `names`, beside each other.

    Raises GpasError with the nearest name for a number that is not recorded.
    """
    kinds = stage_kinds(known.entries)
    tables = []
    for name in dict.fromkeys(names):
        what = recorded_metric(name, kinds, known.results)
        # A number that is not by task has a column for each size where the table has one for each task.
        columns = "size" if spec.columns in MEASURED_COLUMNS and not what.by_task else spec.columns
        printing = {of: table for of, table in spec.published.items() if published(of, table).metric == what.family}
        own = replace(spec, value=what.name, columns=columns, published=printing)
        tables.append(build(known.entries, known.states, known.results, own, what=what))
    return _beside(tables)


def _beside(tables: Sequence[Table]) -> Table:
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
    columns = [
        replace(table.columns[i], title=f"{table.columns[i].title}, {table.columns[i].metric.heading}")
        for table, i in places
    ]
    rows = [
        replace(row, cells=tuple(table.rows[k].cells[i] for table, i in places)) for k, row in enumerate(first.rows)
    ]
    published = {source: printed for table in tables for source, printed in table.published.items()}
    return replace(first, columns=tuple(columns), rows=tuple(rows), published=published)


def beside_published(known: Recorded, spec: TableSpec) -> Table:
    """Return the table with the published numbers beside the metric that they are compared with.

    Where that is not the declared metric, the declared one has separate columns: the perplexity over all tokens is
    beside the average of the published code.
    """
    compared = build(known.entries, known.states, known.results, spec)
    if compared.metric.name == spec.value:
        return compared
    own = metric(spec.value, stage_kinds(known.entries))
    declared = build(known.entries, known.states, known.results, replace(spec, published={}), what=own)
    joined = with_columns(
        compared, declared, [f"{column.title}, {column.metric.heading}" for column in declared.columns]
    )
    return replace(joined, corner=compared.metric.title)


def with_columns(table: Table, other: Table, titles: Sequence[str]) -> Table:
    """Return the table with each column followed by the one of `other`, under another title, if it has cells."""
    filled = [any(row.cells[i].statuses for row in other.rows) for i in range(len(other.columns))]
    columns = [replace(column, title=title, sources=()) for column, title in zip(other.columns, titles, strict=True)]
    rows = []
    for row, beside in zip(table.rows, other.rows, strict=True):
        cells = [replace(cell, printed={}) for cell in beside.cells]
        rows.append(replace(row, cells=_alternating(row.cells, cells, filled)))
    return replace(table, columns=_alternating(table.columns, columns, filled), rows=tuple(rows))


def _alternating(ours: Sequence[T], others: Sequence[T], taken: Sequence[bool]) -> tuple[T, ...]:
    """Return each of ours, followed by the one of `others` at its place if that is `taken`."""
    pairs = zip(ours, others, taken, strict=True)
    return tuple(one for own, other, both in pairs for one in ((own, other) if both else (own,)))
