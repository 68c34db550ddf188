"""A grid's table: its rows and columns are the labels of its cells on the axes that `table` names.

A method is followed by the rows that are compared with it (`against`). There is a column for each label of the column
axis, or for each task or text.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from gpas_cli.errors import GpasError, nearest
from gpas_cli.grid.declared import Entry, Line, TableSpec
from gpas_cli.grid.document import Label, spelled
from gpas_cli.report.labels import RowKey, label_title, number_facts, row_title, scheme_titles, stage_kinds
from gpas_cli.report.papers import PublishedCell, PublishedTable, has_labels, published
from gpas_cli.report.quantities import metric, recorded_metric
from gpas_cli.report.recorded import Recorded
from gpas_cli.report.tables.entry_status import Results, States, group
from gpas_cli.report.tables.table import Column, Frame, Row, Spot, Table, fill, side_by_side, with_declared
from gpas_cli.spec.extensions import column_title, measured_columns
from gpas_cli.spec.stage import Metric, StageKind
from gpas_cli.structure import Frozen
from gpas_cli.words import count, listed

_NAMED = 3  # rows in one message


def build(
    entries: Sequence[Entry], states: States, results: Results, spec: TableSpec, what: Metric | None = None
) -> Table:
    """Return the table of `entries`; `states` and `results` are by stage key.

    what: the metric, by default the one that `spec` names.

    Raises GpasError for an unknown metric, axis or published table, if two entries of one table cell differ in more
    than the averaged axis.
    """
    return fill(_frame(entries, spec, what), states, results)


def _frame(entries: Sequence[Entry], spec: TableSpec, what: Metric | None = None) -> Frame:
    sources = {pack.name: published(pack, name) for pack, name in spec.published.items()}
    kinds = stage_kinds(entries)
    what = what or _declared_metric(spec, _compared_value(spec.value, sources.values(), kinds), kinds)
    return _Axes(entries, replace(spec, value=what.name), what, sources).frame()


def _declared_metric(spec: TableSpec, name: str, kinds: Collection[StageKind]) -> Metric:
    found = metric(name, kinds)
    return found if spec.digits is None else replace(found, digits=spec.digits)


class _Axes(Frozen):
    """What the rows and columns of a table are derived from. sources: the published tables beside it."""

    entries: Sequence[Entry]
    spec: TableSpec
    what: Metric
    sources: Mapping[str, PublishedTable]

    @property
    def measured_on(self) -> bool:
        """Whether there is a column for each task or text."""
        return self.spec.columns in measured_columns()

    def frame(self) -> Frame:
        """Return the table without its numbers."""
        self._check()
        spec = self.spec
        groups = group(self.entries, spec)
        labels = sorted(dict.fromkeys(label for columns in groups.values() for label in columns), key=self._heading)
        bases = {
            key: base
            for key in groups
            if (base := tuple(spec.against.get(axis, label) for axis, label in zip(spec.rows, key, strict=True))) != key
        }
        rows = self._listed(_order(groups, bases, spec, scheme_titles(self.entries)))
        place = {row.key: i for i, row in enumerate(rows)}
        lines = []
        for row in rows:
            below = place.get(row.base) if row.base else None
            entries = [groups[row.key].get(label, ()) for label in labels]
            lines.append(
                (row, [self._spot(*item, below, j) for j, item in enumerate(zip(labels, entries, strict=True))])
            )
        columns = tuple(map(self._column, labels))
        return Frame(Table(spec, self.what, columns, (), self.sources, corner=spec.corner), lines)

    def _listed(self, rows: list[Row]) -> list[Row]:
        """Return the rows in the order of those that the table lists, with their titles and bands; others follow."""
        lines = self.spec.lines
        place = {row.key: _line_of(dict(zip(self.spec.rows, row.key, strict=True)), lines) for row in rows}
        found = []
        for row in sorted(rows, key=lambda row: place[row.key]):
            line = (*lines, Line("", {}))[place[row.key]]
            if line.title and (alike := [key for key, other in place.items() if other == place[row.key]])[1:]:
                words = listed([", ".join(map(spelled, key)) for key in alike], _NAMED, "; ")
                raise self._error(f"rows: '{line.title}' names {count(len(alike), 'row')} ({words}); add a label to it")
            title = line.title or (row.full_title if lines and line not in lines else "")
            titled = replace(row, title=title, indent=0, full="") if title else row
            found.append(replace(titled, section=line.band))
        return found

    def _heading(self, label: Label) -> int:
        return _line_of({self.spec.columns: label}, self.spec.headings)

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

    def _spot(self, label: Label, entries: Sequence[Entry], base: int | None, column: int) -> Spot:
        measured_on = str(label) if self.measured_on else None

        def beside(entry: Entry | None) -> dict[str, PublishedCell]:
            own = number_facts(entry, self.what, measured_on) if entry and self.sources else {}
            found = {source: table.cell(own) for source, table in self.sources.items() if own}
            return {source: cell for source, cell in found.items() if cell}

        at = None if base is None else (base, column)
        return Spot(self.what, [(entry, measured_on) for entry in entries], beside, base=at)

    def _column(self, label: Label) -> Column:
        axis = self.spec.columns
        title = column_title(str(label)) if self.measured_on else label_title(axis, label, {}) or str(label)
        titles = (*(line.title for line in self.spec.headings), title)
        return Column(label, titles[self._heading(label)], self.what)


def _line_of(labels: Mapping[str, Label | None], lines: Sequence[Line]) -> int:
    """Return the place of the line with the most of these labels, the number of lines if none fits."""
    fitting = [i for i, line in enumerate(lines) if has_labels(labels, line.labels)]
    return max(fitting, key=lambda i: len(lines[i].labels), default=len(lines))


def _order(
    keys: Collection[RowKey], bases: Mapping[RowKey, RowKey], spec: TableSpec, titles: Mapping[Label, str]
) -> list[Row]:
    """Return bases in declared order, each followed by the rows that are compared with it."""
    rows = []
    bands = [line for line in spec.lines if not line.title]
    said = [axis for axis in spec.rows if bands and all(len(band.labels.get(axis, ())) == 1 for band in bands)]
    shown = [axis for axis in spec.rows if axis not in said]  # the title of the band says the others

    def title(key: RowKey) -> str:
        return row_title(
            shown, tuple(label for axis, label in zip(spec.rows, key, strict=True) if axis in shown), titles
        )

    for key in keys:
        if bases.get(key) in keys:
            continue
        rows.append(Row(key, title(key), (), base=bases.get(key)))
        for child in keys:
            if bases.get(child) == key:
                rows.append(Row(child, _changed_title(spec.rows, child, key, titles), (), 1, key, title(child)))
    return rows


def _changed_title(axes: Sequence[str], key: RowKey, base: RowKey, titles: Mapping[Label, str]) -> str:
    """Return how a row differs from its base: "+ GPAS" if it has more, "init scaled" if it has something else."""
    changed = [i for i, label in enumerate(key) if label != base[i]]
    title = row_title([axes[i] for i in changed], tuple(key[i] for i in changed), titles)
    return title if any(label_title(axes[i], base[i], titles) for i in changed) else f"+ {title}"


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


def with_bits_per_byte(spec: TableSpec, entries: Sequence[Entry]) -> tuple[str, ...]:
    """Return the table's number and bits per byte if the entries' tokenizers differ, as their losses per token do not
    compare; else nothing.
    """
    tokenizers = {(e.cell.data.tokenizer, e.cell.text_vocab) for e in entries if e.cell.network is None}
    return (spec.value, "bits_per_byte") if spec.value in ("perplexity", "loss") and len(tokenizers) > 1 else ()


def by_metrics(known: Recorded, spec: TableSpec, names: Sequence[str]) -> Table:
    """Return the table with a column for each of the recorded numbers `names`, beside each other.

    Raises GpasError with the nearest name for a number that is not recorded.
    """
    kinds = stage_kinds(known.entries)
    tables = []
    for name in dict.fromkeys(names):
        what = recorded_metric(name, kinds, known.results)
        # A number that is not by task has a column for each size where the table has one for each task.
        axis = "size" if spec.columns in measured_columns() and not what.by_task else spec.columns
        printing = {of: table for of, table in spec.published.items() if published(of, table).metric == what.family}
        own = replace(spec, value=what.name, columns=axis, published=printing)
        tables.append(build(known.entries, known.states, known.results, own, what=what))
    labels = dict.fromkeys(column.label for table in tables for column in table.columns)
    columns = [
        (table, j, f"{column.title}, {column.metric.heading}")
        for label in labels
        for table in tables
        for j, column in enumerate(table.columns)
        if column.label == label
    ]
    beside = {source: table for one in tables for source, table in one.published.items()}
    return replace(side_by_side(columns), published=beside) if tables[1:] else tables[0]


def beside_published(known: Recorded, spec: TableSpec) -> Table:
    """Return the table with published numbers, also with the metric that is declared (`table.with_declared`)."""
    own = _declared_metric(spec, spec.value, stage_kinds(known.entries))
    return with_declared(_frame(known.entries, spec), own, known.states, known.results)
