"""A paper's table as a `Table`: in its order of rows and columns, its bands and its notation.

`serving` finds the grid whose cells belong beside the numbers of one part of a printed table; `paper_table` has our
numbers first and the published ones beside them, `published_table` the published ones alone.

Several cells of a grid may match one number. A variant is the cells that differ only in the seed, and the variants
nearest to the paper's recipe are taken. If they differ in a setting of which the paper reports the best (`best_of` in
its recipe), the best is shown.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import product

from gpas_cli.errors import GpasError, nearest
from gpas_cli.grid.declared import Entry, Grid, TableSpec
from gpas_cli.report.labels import facts, stage_kinds
from gpas_cli.report.papers import CellLabels, Place, PublishedCell, PublishedTable
from gpas_cli.report.papers.printed import beside
from gpas_cli.report.papers.recipes import fit
from gpas_cli.report.quantities import metric
from gpas_cli.report.tables.entry_status import NO_UNIT, Results, States, by_variant
from gpas_cli.report.tables.sheet import Note
from gpas_cli.report.tables.table import Column, Frame, Row, Spot, Table, fill, with_declared
from gpas_cli.spec.downstream import KNOWN_TEXTS, base_name
from gpas_cli.spec.extensions import metrics
from gpas_cli.spec.stage import Metric
from gpas_cli.structure import Frozen
from gpas_cli.words import abbreviated, listed

_NAMED = 3  # cells or rows in one note
_TOKENS = "train_tokens"  # of a run, beside the settings of its cell
_OF_RATIOS = 2  # digits
_TIMES = "\N{MULTIPLICATION SIGN}"
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


class Serving(Frozen):
    """The cells of a grid that belong beside the numbers of a part of a printed table, or why a number has none."""

    part: Table
    grid: Grid
    places: Mapping[Place, Sequence[Entry]] = field(default_factory=dict)
    unclear: Mapping[Place, str] = field(default_factory=dict)

    @property
    def entries(self) -> list[Entry]:
        """The cells, each once."""
        return list({entry.id: entry for entries in self.places.values() for entry in entries}.values())


def serving(part: Table, grids: Mapping[str, tuple[Grid, Sequence[Entry]]]) -> Serving | None:
    """Return the cells of the grid that has most of the part's cells, None if no grid has any.

    grids: the grids, by name, with the entries to choose from. If some of them name one of the part's published tables,
    no other is considered.
    """
    if not part.tables:
        return None
    named = [item for item in grids.values() if is_published_beside(item[0], part)]
    found = [_served(part, grid, entries) for grid, entries in named or grids.values()]
    return max((one for one in found if one.places or one.unclear), key=lambda one: len(one.places), default=None)


def _served(part: Table, grid: Grid, entries: Sequence[Entry]) -> Serving:
    """Return the cells of one grid; of several for one number, those nearest to its recipe."""
    tables = {table.name: table for table in part.tables}
    over = grid.table_spec.over
    chosen = {
        place: _nearest_to_recipe(found, tables[place[0]], over) for place, found in _places(part, entries).items()
    }
    places = {place: entries for place, (entries, _) in chosen.items() if entries}
    return Serving(part, grid, places, {place: why for place, (_, why) in chosen.items() if why})


def is_published_beside(grid: Grid, part: Table) -> bool:
    """Return whether the grid declares that one of the part's tables is published beside it."""
    declared = grid.table.published if grid.table else {}
    return any(declared.get(table.pack) == table.name for table in part.tables)


def _places(part: Table, entries: Sequence[Entry]) -> dict[Place, list[Entry]]:
    """Return the entries that belong beside each number of the part."""
    shown = {cell.place: cell for row in part.rows for cell in row.published}
    found: dict[Place, list[Entry]] = {}
    for entry in {entry.cell.key: entry for entry in entries}.values():
        kinds = {stage.kind for stage in entry.cell.stages}
        for table, (task, labels) in product(part.tables, _numbers(entry)):
            place = table.cell(labels)
            cell = shown.get(place.place) if place else None
            if cell and _task(cell) == task and _compared_metric(cell).stage in kinds:
                found.setdefault(cell.place, []).append(entry)
    return found


def _numbers(entry: Entry) -> Iterator[tuple[str | None, CellLabels]]:
    """Yield the labels of an entry's numbers: of its training (None), and of each of its tasks and texts."""
    own = facts(entry)
    yield None, own
    for task in map(base_name, _tasks(entry)):
        yield task, {**own, "task": task, "text": task}


def _tasks(entry: Entry) -> tuple[str, ...]:
    """Return the tasks and texts that the entry is scored at, and its averages."""
    measured = [(stage, metric.name) for stage in entry.cell.later for metric in stage.kind.metrics if metric.by_task]
    return tuple(dict.fromkeys(label for stage, what in measured for label in stage.parameters.columns(what)))


def _task(cell: PublishedCell) -> str | None:
    """Return the task or text that the number of a printed cell is measured on, None for a result of the training."""
    return str(cell.labels["task"]) if "task" in cell.labels else _text(cell)


def _text(cell: PublishedCell) -> str | None:
    """Return the text of KNOWN_TEXTS that the number of a printed cell is measured on, None if it is on none."""
    text = cell.labels.get("text")
    return str(text) if text in KNOWN_TEXTS else None


def _compared_metric(cell: PublishedCell) -> Metric:
    """Return the metric of ours that a printed number is compared with."""
    table = cell.table
    name = table.compared_as or table.metric
    if table.metric == "perplexity" and _text(cell):
        name = "text_perplexity"
    known = metrics().get(name) or Metric(table.metric, table.what, better=table.better, unit=table.unit)
    if printed_on := cell.batches:
        return replace(known, title=f"{known.title} over {printed_on} batches")
    if table.relative_to:
        row = " ".join(map(str, table.relative_to.values()))
        return replace(known, title=f"{known.title} relative to {row}", digits=_OF_RATIOS)
    return known


def paper_table(served: Serving, states: States, results: Results, *, declared: bool = False) -> Table:
    """Return the part as printed, with our numbers first and the published ones beside them.

    declared: also show the metric that the grid declares (`table.with_declared`).
    """
    frame = _frame(served)
    own = metric(served.grid.table_spec.value, stage_kinds(served.entries)) if declared else None
    table = with_declared(frame, own, states, results) if own else fill(frame, states, results)
    return replace(table, remarks=(_about_cells(served, table), *table.remarks))


def _about_cells(served: Serving, table: Table) -> Note:
    """Return the grid that has the cells, and those whose number is the best of several settings."""
    shown = [cell for row in table.rows for cell in row.cells if cell.others and cell.summary]
    tuned = listed(list(dict.fromkeys(cell.statuses[0].entry.name for cell in shown)), _NAMED)
    best = f"; as in the paper, the best of several settings is shown: {tuned}" if shown else ""
    return Note("cells", f"our numbers are from the grid {served.grid.name}{best}")


def _frame(served: Serving) -> Frame:
    """Return the part as printed, without our numbers."""
    part, spec = served.part, _spec(served.part, served.grid)
    places = {cell.place: (i, j) for i, row in enumerate(part.rows) for j, cell in enumerate(row.published)}
    units = {cell.place[0]: places[cell.place] for row in part.rows for cell in row.published if cell.is_unit}

    def spot(cell: PublishedCell) -> Spot:
        base = places[cell.base.place] if cell.base else None
        return replace(_spot(cell, served), base=base, unit=units.get(cell.place[0]))

    bases = [row.published[0].base for row in part.rows]
    keys = [part.rows[places[base.place][0]].key if base else None for base in bases]
    lines = [(replace(row, base=key), list(map(spot, row.published))) for row, key in zip(part.rows, keys, strict=True)]
    columns = tuple(_column(part, i, spec) for i in range(len(part.columns)))
    return Frame(
        replace(
            part,
            spec=spec,
            metric=columns[0].metric,
            columns=columns,
            rows=(),
            published={table.source: table for table in reversed(part.tables)},
            remarks=tuple(_units(part)),
            alone=False,
        ),
        lines,
    )


def _units(part: Table) -> Iterator[Note]:
    """Note the columns whose numbers are relative to a row."""
    for row in part.rows:
        for column, cell in zip(part.columns, row.published, strict=True):
            if cell.is_unit:
                text = f"{column.title}, here and there: relative to the number of {row.whole_title}"
                yield Note("compared", f"{text}; while it has none, {NO_UNIT}")


def published_table(part: Table, *, unserved: bool = False) -> Table:
    """Return the part with the remarks about its numbers, and the rows that they concern.

    unserved: also why no grid has a cell of it.
    """
    rows: dict[str, list[str]] = {}
    valued = {row.whole_title: [c for c in row.published if c.value is not None or c.text] for row in part.rows}
    for title, cells in valued.items():
        for text in dict.fromkeys(remark.text for cell in cells for remark in cell.remarks):
            rows.setdefault(text, []).append(title)
    reasons = dict.fromkeys(table.no_cells for table in part.tables) if unserved else ()
    absent = [Note("remark", f"no cell here: {why}") for why in reasons]
    everywhere = [title for title, cells in valued.items() if cells]
    where = {text: "" if own == everywhere else f"{listed(own, _NAMED)}: " for text, own in rows.items()}
    return replace(part, remarks=(*absent, *(Note("remark", where[text] + text) for text in rows)))


def _spec(part: Table, grid: Grid) -> TableSpec:
    first = part.tables[0]
    cells = [cell for row in part.rows for cell in row.published]
    measured_on = "text" if all(map(_text, cells)) else "task" if all(map(_task, cells)) else ""
    return replace(
        part.spec,
        columns=measured_on or first.axis or "column",
        value=_compared_metric(cells[0]).name,
        over=grid.table_spec.over,
        against={"gate": "none"} if any(cell.base for cell in cells) else {},
        published={first.pack: first.name},
    )


def _spot(printed: PublishedCell, served: Serving) -> Spot:
    table = printed.table
    task = _task(printed)
    entries = served.places.get(printed.place, ())
    runs = [
        (entry, next((label for label in _tasks(entry) if base_name(label) == task), task) or "") for entry in entries
    ]
    beside = {table.source: replace(printed, mark="")}  # beside our numbers, underlining marks ours alone
    unserved = "" if entries else served.unclear.get(printed.place, table.no_cells)
    return Spot(_compared_metric(printed), runs, lambda entry: beside, unserved)


def _column(part: Table, index: int, spec: TableSpec) -> Column:
    column, first = part.columns[index], part.rows[0].published[index]
    table, metric = first.table, _compared_metric(first)
    label = table.columns[first.column] if table.axis in (spec.columns, "text") else column.label
    if table.relative_to:
        metric = replace(metric, name=f"relative_{metric.name}")  # no longer what attempts report
    return replace(column, label=label, metric=metric)


def _nearest_to_recipe(entries: Sequence[Entry], table: PublishedTable, over: str) -> tuple[list[Entry], str]:
    """Return the entries for a number of `table` that all of them match; if there are none, with the reason."""
    fits = [(*fit(variant[0], table), variant) for variant in by_variant(entries, over)]
    nearest = [(tuned, variant) for strays, tuned, variant in fits if strays == min(one[0] for one in fits)]
    variants = [variant for _, variant in nearest]
    if len({tuned for tuned, _ in nearest}) == len(variants):
        return [entry for variant in variants for entry in variant], ""
    first = variants[0][0].axes
    axes = {axis for one in variants for axis in {**first, **one[0].axes} if first.get(axis) != one[0].axes.get(axis)}
    match = f"{len(variants)} cells of {entries[0].grid} match it"
    return [], f"{match} and differ in {listed(sorted(axes - {over}), _NAMED)}; select one with --where"


def _power(value: float) -> str:
    """Return a number as papers print learning rates: 1 \N{MULTIPLICATION SIGN} 10⁻³."""
    factor, exponent = f"{value:.2e}".split("e")
    return f"{float(factor):g} {_TIMES} 10{str(int(exponent)).translate(_RAISED)}"


def _count(value: float) -> str:
    """Return a number as papers print numbers of updates and tokens: 10K, 1B; small ones as they are."""
    return abbreviated(value).replace("k", "K") if value >= 1000 else f"{value:g}"


def _setting(entry: Entry, name: str) -> str:
    """Return a setting as papers print it, by its name in experiments.yaml: `optim.lr`."""
    settings = entry.cell.to_mapping()
    section, _, key = name.partition(".")
    value = (settings.get(section) or {}).get(key)
    if not isinstance(value, int | float):
        known = [f"{part}.{one}" for part in ("optim", "data") for one in settings[part]]
        raise GpasError(f"cells have no number '{name}'; {nearest(name, known)}")
    return _power(value) if value < 1 else _count(value)


def with_ours(part: Table, entries: Sequence[Entry], results: Results) -> Table:
    """Return a table of settings by size with the settings of `entries` after the paper's where they differ."""
    return replace(part, rows=tuple(_settings(part, row, entries, results) for row in part.rows))


def _settings(part: Table, row: Row, entries: Sequence[Entry], results: Results) -> Row:
    own = [entry for entry in entries if str(facts(entry)["size"]).lower() == row.title.lower()]
    cells = []
    for cell, column in zip(row.published, part.columns, strict=True):
        name = str(column.label)
        found = _trained_tokens(own, results) if name == _TOKENS else (_setting(entry, name) for entry in own)
        ours = list(dict.fromkeys(found))
        differs = bool(ours) and ours != [cell.text]
        cells.append(replace(cell, text=f"{cell.text} (here {', '.join(ours)})") if differs else cell)
    return replace(row, cells=beside(part.source, cells))


def _trained_tokens(entries: Sequence[Entry], results: Results) -> Iterator[str]:
    """Yield the tokens that entries have trained on, and those with the padding of their rows, as papers do not."""
    for entry in entries:
        if (known := results.get(entry.cell.stages[0].key)) and _TOKENS in known.metrics:
            yield _count(known.metrics[_TOKENS])
    for entry in entries:
        read = _count(entry.cell.optim.rows * entry.cell.data.length)
        yield f"{read} with padding" if entry.cell.data.layout == "pad" else read
