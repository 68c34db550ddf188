"""A paper's table as a `Table`: in its order of rows and columns, its bands and its notation.

`serving` finds the grid whose cells belong beside the numbers of one part of a printed table; `paper_table` has our
numbers first and the published ones beside them, `published_table` the published ones alone.

Several cells of a grid may match one number. A variant is the cells that differ only in the seed; the variants nearest
to the paper's recipe are taken: of those that differ in a setting of which the paper reports the best (`best_of` in its
recipe) all, and the best is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import inf
from statistics import fmean
from typing import TYPE_CHECKING

from gpas_cli.grid.declared import TableSpec
from gpas_cli.grid.document import identity
from gpas_cli.report.labels import RowKey, facts
from gpas_cli.report.metrics import METRICS
from gpas_cli.report.papers import PublishedTable, has_labels
from gpas_cli.report.papers.layouts import PrintedCell, PrintedLine, PrintedPart
from gpas_cli.report.papers.recipes import deviations, fit
from gpas_cli.report.tables.entry_status import EntryStatus, Results, States, entry_status, missing_numbers
from gpas_cli.report.tables.sheet import Note
from gpas_cli.report.tables.table import Column, Printed, Row, Table, TableCell, marks
from gpas_cli.spec.downstream import BY_TASK, KNOWN_TEXTS, base_name
from gpas_cli.spec.downstream import columns as task_columns
from gpas_cli.spec.stage import Metric
from gpas_cli.statistics import stats
from gpas_cli.words import abbreviated, listed

if TYPE_CHECKING:
    from gpas_cli.grid import Entry
    from gpas_cli.grid.declared import Grid


_NAMED = 3  # cells or rows in one note
_AS_PRINTED = Metric("", "")  # of tables without our numbers
Place = tuple[str, int, int]  # published table, row and column


@dataclass(frozen=True)
class Serving:
    """The cells of a grid that belong beside the numbers of a part of a printed table, or why a number has none."""

    part: PrintedPart
    grid: Grid
    places: Mapping[Place, Sequence[Entry]] = field(default_factory=dict)
    unclear: Mapping[Place, str] = field(default_factory=dict)

    @property
    def entries(self) -> list[Entry]:
        """The cells, each once."""
        return list({entry.id: entry for entries in self.places.values() for entry in entries}.values())


def serving(part: PrintedPart, grids: Mapping[str, tuple[Grid, Sequence[Entry]]]) -> Serving | None:
    """Return the cells of the grid that has most of the part's cells, None if no grid has any.

    grids: the grids, by name, with the entries to choose from. If some of them name one of the part's published tables,
    no other is considered.
    """
    if not part.tables:
        return None
    named = [item for item in grids.values() if is_published_beside(item[0], part)]
    found = [_served(part, grid, entries) for grid, entries in named or grids.values()]
    return max((one for one in found if one.places or one.unclear), key=lambda one: len(one.places), default=None)


def _served(part: PrintedPart, grid: Grid, entries: Sequence[Entry]) -> Serving:
    """Return the cells of one grid; of several for one number, those nearest to its recipe."""
    tables = {table.name: table for table in part.tables}
    over = grid.table_spec.over
    chosen = {
        place: _nearest_to_recipe(found, tables[place[0]], over) for place, found in _places(part, entries).items()
    }
    places = {place: entries for place, (entries, _) in chosen.items() if entries}
    return Serving(part, grid, places, {place: why for place, (_, why) in chosen.items() if why})


def is_published_beside(grid: Grid, part: PrintedPart) -> bool:
    """Return whether the grid declares that one of the part's tables is published beside it."""
    declared = grid.table.published if grid.table else {}
    return any(declared.get(table.source) == table.name for table in part.tables)


def _places(part: PrintedPart, entries: Sequence[Entry]) -> dict[Place, list[Entry]]:
    """Return the entries that belong beside each number of the part."""
    shown = {_place(cell): cell for line in part.lines for cell in line.cells}
    found: dict[Place, list[Entry]] = {}
    for entry in {entry.cell.key: entry for entry in entries}.values():
        kinds = {stage.kind for stage in entry.cell.stages}
        for table in part.tables:
            for task, place in _in_table(table, entry):
                cell = shown.get(place)
                if cell and _task(cell) == task and _compared_metric(cell).stage in kinds:
                    found.setdefault(place, []).append(entry)
    return found


def _in_table(table: PublishedTable, entry: Entry) -> Iterator[tuple[str | None, Place]]:
    """Yield the places in the table of the numbers of an entry: of its training, and of each of its tasks and texts."""
    own = facts(entry)
    for task in (None, *map(base_name, _tasks(entry)), *_texts(entry)):
        place = table.place(own if task is None else {**own, "task": task, "text": task})
        if place is not None:
            yield task, (table.name, *place)


def _tasks(entry: Entry) -> tuple[str, ...]:
    """Return the tasks that the entry is scored at, and its averages."""
    section = entry.cell.parameters("downstream")
    if section is None:
        return ()
    return tuple(dict.fromkeys(label for what in BY_TASK for label in task_columns(section.tasks, what)))


def _texts(entry: Entry) -> tuple[str, ...]:
    """Return the texts that the entry is scored on."""
    section = entry.cell.parameters("texts")
    return tuple(section.names) if section else ()


def _task(cell: PrintedCell) -> str | None:
    """Return the task or text that the number of a printed cell is measured on, None for a result of the training."""
    labels = cell.labels if cell.table else {}
    return str(labels["task"]) if "task" in labels else _text(cell)


def _text(cell: PrintedCell) -> str | None:
    """Return the text of KNOWN_TEXTS that the number of a printed cell is measured on, None if it is on none."""
    text = cell.labels.get("text") if cell.table else None
    return str(text) if text in KNOWN_TEXTS else None


def _compared_metric(cell: PrintedCell) -> Metric:
    """Return the metric of ours that a printed number is compared with."""
    assert cell.table is not None  # settings are no results
    table = cell.table
    name = table.compared_as or table.metric
    if table.metric == "perplexity" and _text(cell):
        name = "text_perplexity"
    return METRICS.get(name) or Metric(table.metric, table.what, better=table.better, unit=table.unit)


def paper_table(served: Serving, states: States, results: Results, what: Metric | None = None) -> Table:
    """Return the part as printed, with our numbers first and the published ones beside them.

    what: the metric of our numbers, by default the one that the published are compared with.
    """
    part, spec = served.part, _spec(served.part, served.grid)
    plain = {
        _place(cell): _cell(cell, served, spec, what, states, results) for line in part.lines for cell in line.cells
    }
    rows = _ranked([_row(line, part, spec, plain) for line in part.lines], part)
    columns = [_column(part, i, spec, what) for i in range(len(part.headings))]
    sources = {table.source: table for table in reversed(part.tables)}
    tuned = [cell.statuses[0].entry.name for row in rows for cell in row.cells if cell.others and cell.summary]
    best = f"; as in the paper, the best of several settings is shown: {listed(tuned, _NAMED)}" if tuned else ""
    note = Note("cells", f"our numbers are those of the grid {served.grid.name}{best}")
    return Table(
        spec,
        columns[0].metric,
        tuple(columns),
        tuple(rows),
        sources,
        printed=part.name,
        corner=part.corner,
        remarks=(note,),
    )


def published_table(part: PrintedPart, *, unserved: bool = False) -> Table:
    """Return the part as printed, without numbers of ours. unserved: with the reasons why no grid has a cell of it."""
    spec = TableSpec(part.title, rows=_row_axes(part), columns="column")
    rows = [
        Row(_key(line, spec), line.title, tuple(_as_printed(cell, part) for cell in line.cells), section=line.band)
        for line in part.lines
    ]
    columns = tuple(Column(heading, heading, _AS_PRINTED) for heading in part.headings)
    remarks = _remarks(part, unserved)
    return Table(
        spec, _AS_PRINTED, columns, tuple(rows), {}, printed=part.name, corner=part.corner, remarks=remarks, alone=True
    )


def _as_printed(cell: PrintedCell, part: PrintedPart) -> TableCell:
    return TableCell(printed={part.source: Printed(cell.value, cell.delta, text=cell.text, mark=cell.mark)})


def _remarks(part: PrintedPart, unserved: bool) -> tuple[Note, ...]:
    """Return why no grid has a cell of the part, and the remarks about its numbers with the rows that they concern."""
    rows: dict[str, list[str]] = {}
    valued = {
        ", ".join(filter(None, (line.band, line.title))): [c for c in line.cells if c.table and c.value is not None]
        for line in part.lines
    }
    for title, cells in valued.items():
        remarks = (remark for cell in cells if cell.table for remark in cell.table.remarks_for(cell.labels))
        for text in dict.fromkeys(remark.text for remark in remarks):
            rows.setdefault(text, []).append(title)
    reasons = dict.fromkeys(table.no_cells for table in part.tables) if unserved else ()
    absent = [Note("remark", f"no cell here: {why}") for why in reasons]
    everywhere = [title for title, cells in valued.items() if cells]
    where = {text: "" if own == everywhere else f"{listed(own, _NAMED)}: " for text, own in rows.items()}
    return (*absent, *(Note("remark", where[text] + text) for text in rows))


def _row_axes(part: PrintedPart) -> tuple[str, ...]:
    return ("band", "row") if any(line.band for line in part.lines) else ("row",)


def _spec(part: PrintedPart, grid: Grid) -> TableSpec:
    first = part.tables[0]
    cells = [cell for line in part.lines for cell in line.cells]
    return TableSpec(
        title=part.title,
        rows=_row_axes(part),
        columns=_columns(cells) or first.axis or "column",
        value=_compared_metric(cells[0]).name,
        over=grid.table_spec.over,
        against={"gate": "none"} if any(_base(cell) is not None for cell in cells) else {},
        published={first.source: first.name},
    )


def _columns(cells: Sequence[PrintedCell]) -> str:
    """Return "text" or "task" if every number is measured on one, "" otherwise."""
    if all(map(_text, cells)):
        return "text"
    return "task" if all(map(_task, cells)) else ""


def _place(cell: PrintedCell) -> Place:
    return (cell.table.name if cell.table else "", cell.row, cell.column)


def _row(line: PrintedLine, part: PrintedPart, spec: TableSpec, plain: Mapping[Place, TableCell]) -> Row:
    """Return a row with the differences from the cells of its base."""
    cells = []
    for cell in line.cells:
        base, own = _base(cell), plain[_place(cell)]
        if cell.table is not None and base is not None:
            own = replace(own, delta=stats.paired(own.values, plain[cell.table.name, base, cell.column].values))
        cells.append(own)
    first = _base(line.cells[0])
    below = [
        other for other in part.lines if other.cells[0].table is line.cells[0].table and other.cells[0].row == first
    ]
    base_key = _key(below[0], spec) if below else None
    return Row(_key(line, spec), line.title, tuple(cells), base=base_key, section=line.band)


def _key(line: PrintedLine, spec: TableSpec) -> RowKey:
    return (line.band, line.title) if len(spec.rows) > 1 else (line.title,)


def _cell(
    printed: PrintedCell,
    served: Serving,
    spec: TableSpec,
    what: Metric | None,
    states: States,
    results: Results,
) -> TableCell:
    table = printed.table
    assert table is not None  # settings have no cells
    what, task = what or _compared_metric(printed), _task(printed)
    entries = served.places.get(_place(printed), ())
    every = [
        entry_status(one, one.axes.get(spec.over), what, _recorded(one, what, task), states, results) for one in entries
    ]
    statuses, others = _best_variant(every, spec.over, what)
    numbers = [status.value for status in statuses if status.value is not None]
    summary = stats.aggregate(numbers) if numbers else None
    beside = {}
    if printed.value is not None:
        tokens = table.train_tokens[printed.column] if table.train_tokens else None
        deviating = deviations(entries, table) if entries else ()
        remarks = table.remarks_for(printed.labels)
        unserved = "" if entries else served.unclear.get(_place(printed), table.no_cells)
        number = Printed(
            printed.value, _printed_delta(printed), tokens, deviating, remarks, printed.text, unserved, table
        )
        beside = {table.source: number}
    status = missing_numbers(every, "variant" if others else spec.over)
    return TableCell(statuses, summary, status=status, printed=beside, others=others)


def _recorded(entry: Entry, what: Metric, task: str | None) -> str:
    """Return the name under which an attempt reports the number of `entry` at `task`, None for no task."""
    own = next((label for label in _tasks(entry) if base_name(label) == task), task)
    return what.recorded_as(own) if own else what.name


def _printed_delta(printed: PrintedCell) -> float | None:
    """Return the difference from the published base, None for a base."""
    base = _base(printed)
    if printed.table is None or printed.value is None or base is None:
        return None
    other = printed.table.rows[base].values[printed.column]
    return None if other is None else round(printed.value - other, 6)


def _base(printed: PrintedCell) -> int | None:
    """Return the published row without a gate that the cell is compared with, None for a row without a gate."""
    if printed.table is None:
        return None
    own = {"gate": "none", **printed.table.rows[printed.row].labels}
    if own["gate"] == "none":
        return None
    # DeepNorm starts otherwise with a gate than without one.
    wanted = {axis: label for axis, label in own.items() if axis not in ("gate", "init")}
    bases = [row.labels.get("gate", "none") == "none" and has_labels(row.labels, wanted) for row in printed.table.rows]
    return bases.index(True) if True in bases else None


def _column(part: PrintedPart, index: int, spec: TableSpec, what: Metric | None) -> Column:
    cells = [line.cells[index] for line in part.lines]
    table, column = cells[0].table, cells[0].column
    assert table is not None  # settings have no cells
    label = table.columns[column] if table.axis in (spec.columns, "text") else part.headings[index]
    sources = tuple(dict.fromkeys(cell.table.source for cell in cells if cell.table and cell.value is not None))
    return Column(label, part.headings[index], what or _compared_metric(cells[0]), sources)


def _ranked(rows: Sequence[Row], part: PrintedPart) -> list[Row]:
    """Return the rows with the best and second best of our numbers in each column of a band marked."""
    ranked = [list(row.cells) for row in rows]
    for band in dict.fromkeys(row.section for row in rows):
        places = [i for i, row in enumerate(rows) if row.section == band]
        for column in range(len(part.headings)):
            cells = [ranked[i][column] for i in places]
            numbers = [cell.summary.mean if cell.summary and cell.complete else None for cell in cells]
            for i, mark in zip(
                places, marks(numbers, _compared_metric(part.lines[places[0]].cells[column])), strict=True
            ):
                ranked[i][column] = replace(ranked[i][column], mark=mark)
    return [replace(row, cells=tuple(cells)) for row, cells in zip(rows, ranked, strict=True)]


def by_variant(entries: Sequence[Entry], over: str) -> list[list[Entry]]:
    """Return the entries that differ only in the axis `over` together, in declared order."""
    found: dict[Hashable, list[Entry]] = {}
    for entry in entries:
        own = frozenset((axis, identity(label)) for axis, label in entry.axes.items() if axis != over)
        found.setdefault(own, []).append(entry)
    return list(found.values())


def _nearest_to_recipe(entries: Sequence[Entry], table: PublishedTable, over: str) -> tuple[list[Entry], str]:
    """Return the entries for a number of `table` that all of them match; if there are none, with the reason."""
    fits = [(*fit(variant[0], table), variant) for variant in by_variant(entries, over)]
    nearest = [(tuned, variant) for strays, tuned, variant in fits if strays == min(one[0] for one in fits)]
    variants = [variant for _, variant in nearest]
    if len({tuned for tuned, _ in nearest}) == len(variants):
        return [entry for variant in variants for entry in variant], ""
    first = variants[0][0].axes
    axes = {axis for one in variants for axis in {**first, **one[0].axes} if first.get(axis) != one[0].axes.get(axis)}
    reason = (
        f"{len(variants)} cells of {entries[0].grid} match it and differ in {listed(sorted(axes - {over}), _NAMED)}"
    )
    return [], f"{reason}; select one with --where"


def _best_variant(
    statuses: Sequence[EntryStatus], over: str, what: Metric
) -> tuple[tuple[EntryStatus, ...], tuple[EntryStatus, ...]]:
    """Return the statuses of the variant with the best mean, the first one if none has a number, and the others."""
    sign = -1 if what.better == "higher" else 1
    by_id = {status.entry.id: status for status in statuses}
    variants = [[by_id[entry.id] for entry in one] for one in by_variant([status.entry for status in statuses], over)]
    variants.sort(key=lambda own: fmean([sign * one.value for one in own if one.value is not None] or [inf]))
    return tuple(chain(*variants[:1])), tuple(chain(*variants[1:]))


_TIMES = "\N{MULTIPLICATION SIGN}"
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def _power(value: float) -> str:
    """Return a number as papers print learning rates: 1 \N{MULTIPLICATION SIGN} 10⁻³."""
    factor, exponent = f"{value:.2e}".split("e")
    return f"{float(factor):g} {_TIMES} 10{str(int(exponent)).translate(_RAISED)}"


def _count(value: float) -> str:
    """Return a number as papers print numbers of updates and tokens: 10K, 1B; small ones as they are."""
    return abbreviated(value).replace("k", "K") if value >= 1000 else f"{value:g}"


# What a paper calls its columns -> the setting of a cell, and how it is printed.
_QUANTITIES: Mapping[str, tuple[Callable[[Entry], float], Callable[[float], str]]] = {
    "lr": (lambda entry: entry.cell.optim.lr, _power),
    "warmup": (lambda entry: entry.cell.optim.warmup, _count),
    "steps": (lambda entry: entry.cell.optim.steps, _count),
    "batch": (lambda entry: entry.cell.optim.batch, _count),
    "train_tokens": (lambda entry: entry.cell.optim.rows * entry.cell.data.length, _count),
    "eval_tokens": (lambda entry: entry.cell.data.eval_tokens, _count),
}


def with_ours(part: PrintedPart, entries: Sequence[Entry]) -> PrintedPart:
    """Return a table of settings by size with the settings of `entries` behind the paper's where they differ."""
    return replace(part, lines=tuple(_settings(part, line, entries) for line in part.lines))


def _settings(part: PrintedPart, line: PrintedLine, entries: Sequence[Entry]) -> PrintedLine:
    own = [entry for entry in entries if str(facts(entry)["size"]).lower() == line.title.lower()]
    cells = []
    for cell, quantity in zip(line.cells, part.quantities, strict=True):
        value, text = _QUANTITIES[quantity]
        ours = list(dict.fromkeys(text(value(entry)) for entry in own))
        differs = bool(ours) and ours != [cell.text]
        cells.append(replace(cell, text=f"{cell.text} (here {', '.join(ours)})") if differs else cell)
    return replace(line, cells=tuple(cells))
