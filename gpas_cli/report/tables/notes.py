"""Notes below a table: what a reader must know besides the numbers, one sentence each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from gpas_cli.grid.document import spelled
from gpas_cli.report.papers import load
from gpas_cli.report.papers.layouts import label_of
from gpas_cli.report.papers.recipes import Deviation, recipes
from gpas_cli.report.result import Result
from gpas_cli.report.tables.entry_status import EntryStatus
from gpas_cli.report.tables.sheet import Note
from gpas_cli.report.tables.table import Row, Table, TableCell
from gpas_cli.spec.downstream import BY_TASK, BY_TEXT, KNOWN_TASKS, SKIPPED, base_name, skipped_note, task_title
from gpas_cli.spec.model import remark
from gpas_cli.spec.stage import MEASURED_COLUMNS
from gpas_cli.words import abbreviated, count, listed

_SIGNIFICANT = 0.05
_MIN_PAIRS = 3  # for a star: two differences agree by chance too easily for a test that relies on their spread
_NAMED = 3  # cells in one note


@dataclass(frozen=True)
class _Gain:
    """Our and a published difference between a method and its base, in units of the metric."""

    row: str
    column: str
    source: str
    ours: float
    published: float


def notes(table: Table) -> tuple[Note, ...]:
    """Return all notes of a table, in the order in which they are printed."""
    if table.alone:
        return table.remarks
    makers = (
        _seeds,
        _delta,
        _marks,
        _diverged,
        _unfinished,
        _withheld,
        _pairs,
        _bases,
        _mixtures,
        _scores,
        _externals,
        _overrides,
        _shortcuts,
        _published_notes,
        _gains,
    )
    return (*table.remarks, *(note for make in makers for note in make(table)))


def gains(table: Table) -> list[_Gain]:
    """Return a gain for every cell where both we and a source have a number for the method and for its base."""
    return [
        _Gain(full_title(row), table.columns[i].title, source, cell.delta.mean, printed.delta)
        for row, i, cell in _shown_cells(table)
        for source, printed in (cell.printed or {}).items()
        if cell.delta is not None and printed.delta is not None
    ]


def significant(cell: TableCell) -> bool:
    """Return whether the difference from the base is marked with a star."""
    delta = cell.delta
    return delta is not None and delta.p is not None and delta.n >= _MIN_PAIRS and delta.p < _SIGNIFICANT


def _seeds(table: Table) -> Iterator[Note]:
    over = table.spec.over
    sizes = sorted({len(cell.statuses) for _, _, cell in _shown_cells(table)})
    if sizes and sizes[-1] > 1:
        number = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
        yield Note("seeds", f"mean ± sample standard deviation over {number} {over}s")
    elif sizes:
        yield Note("seeds", f"one {over} per cell: differences may be noise")
    if any(cell.stderr is not None for _, _, cell in _shown_cells(table)):
        yield Note("seeds", f"of a single {over}: score ± standard error over the questions")


def _delta(table: Table) -> Iterator[Note]:
    deltas = [cell for _, _, cell in _shown_cells(table) if cell.delta is not None]
    if not deltas:
        return
    against = ", ".join(f"{axis} {label}" for axis, label in table.spec.against.items())
    paired = (
        f", the mean over the {table.spec.over}s that both have"
        if any(len(cell.statuses) > 1 for cell in deltas)
        else ""
    )
    interval = " ± half its 95 % interval, by Student's t" if any(cell.interval for cell in deltas) else ""
    yield Note("delta", f"in parentheses: difference from the same row with {against}{paired}{interval}")
    if any(map(significant, deltas)):
        yield Note(
            "delta",
            f"* paired t test over {table.spec.over}s, two-sided p < {_SIGNIFICANT:g}, per cell, uncorrected",
        )


def _marks(table: Table) -> Iterator[Note]:
    cells = [cell for _, _, cell in _shown_cells(table)]
    if any(cell.mark for cell in cells):
        rest = "" if all(cell.complete for cell in cells) else " (unfinished cells are not ranked)"
        yield Note("marks", f"bold: best of its column; underlined: second best{rest}")


def _diverged(table: Table) -> Iterator[Note]:
    part = [
        place(table, row, i)
        for row, i, cell in _shown_cells(table)
        if cell.summary is not None and any(s.state == "diverged" for s in cell.statuses)
    ]
    if part:
        yield Note("diverged", f"diverged runs are not in the mean: {', '.join(part)}")


def _unfinished(table: Table) -> Iterator[Note]:
    statuses = _runs(table)
    unrecorded = sum(s.state == "unrecorded" for s in statuses)
    missing = [s for s in statuses if s.value is None and s.state not in ("diverged", "unrecorded")]
    if missing:
        counts = Counter(s.state for s in missing)
        states = ", ".join(f"{n} {state}" for state, n in sorted(counts.items()))
        yield Note("unfinished", f"{len(missing)} of {len(statuses)} runs have no result: {states}")
    if unrecorded:
        yield Note("unfinished", f"{unrecorded} of {len(statuses)} runs did not record every number shown")
    for s in missing:
        if s.state == "not finite" and s.result:
            yield Note("unfinished", f"{s.entry.id} is no result: not finite in its first tenth: {s.result.cause}")
    if any(s.state == "unsynced" for s in missing):
        yield Note("unfinished", "unsynced: finished, but not yet in the database; run `gpas sync`")


def _runs(table: Table) -> list[EntryStatus]:
    """Return the status of each entry in each column, once if the column shows several metrics of it."""
    found: dict[tuple[str, object], EntryStatus] = {}
    for _, i, cell in _shown_cells(table):
        for status in cell.runs:
            place = (status.entry.id, table.columns[i].label)
            if place not in found or status.value is None:
                found[place] = status
    return list(found.values())


def _withheld(table: Table) -> Iterator[Note]:
    withheld = [s for s in table.statuses if s.withheld is not None]
    gone = [s for s in withheld if s.state == "missing" or (s.withheld and s.withheld.gone)]
    changed = [s for s in withheld if s not in gone]
    if gone:
        yield Note(
            "withheld",
            f"not shown, because the run directories are gone: the numbers of {_few(gone)}; "
            f"restore the directories, or run the cells again with `gpas run grid`",
        )
    if changed:
        yield Note(
            "withheld",
            f"not shown, because the run directories no longer contain them: the numbers of {_few(changed)}; "
            f"`gpas status` shows the evidence, `gpas sync` updates the database",
        )


def _few(statuses: Sequence[EntryStatus]) -> str:
    names = list(dict.fromkeys(s.entry.name for s in statuses))
    return listed(names, _NAMED)


def _pairs(table: Table) -> Iterator[Note]:
    few = [
        f"{place(table, row, i)} ({cell.delta.n} of {cell.summary.n})"
        for row, i, cell in _shown_cells(table)
        if cell.delta is not None and cell.summary is not None and cell.delta.n < cell.summary.n
    ]
    if few:
        yield Note("pairs", f"differences over fewer {table.spec.over}s than the mean: {', '.join(few)}")


def _bases(table: Table) -> Iterator[Note]:
    lone = [
        place(table, row, i)
        for row, i, cell in _shown_cells(table)
        if row.base is not None and cell.summary is not None and cell.delta is None
    ]
    if lone:
        yield Note("base", f"no difference, because the base has no number: {', '.join(lone)}")


def _mixtures(table: Table) -> Iterator[Note]:
    """Note numbers that were obtained with different text, precision, code or devices.

    Texts are compared within a column, because sizes may differ in vocabulary and so in the tokens of the same text.
    """
    for index, column in enumerate(table.columns):
        cells = [row.cells[index] for row in table.rows]
        results = _shown_results([s for cell in cells for s in cell.statuses])
        yield from _mixture(results, "training texts", lambda r: _short(r.fingerprint), f"{column.title}: ")
        yield from _mixture(
            results, "validation texts", lambda r: _short(r.validation_fingerprint), f"{column.title}: "
        )
    everything = table.statuses
    results = _shown_results(everything)
    yield from _mixture(results, "precisions", lambda r: r.precision)
    yield from _mixture(results, "versions of the code", lambda r: _short(r.code))
    yield from _mixture(results, "devices", lambda r: r.gpu or r.device)
    changed = [s for s in everything if s.value is not None and _changed(s.result)]
    if changed:
        names = listed([s.entry.id for s in changed], _NAMED)
        yield Note("mixture", f"{count(len(changed), 'run')} resumed after the code had changed: {names} (`gpas why`)")


def _shown_results(statuses: Iterable[EntryStatus]) -> list[Result]:
    """Return the results of the statuses that have a number."""
    return [s.result for s in statuses if s.result is not None and s.value is not None]


def _mixture(
    results: Sequence[Result], what: str, of: Callable[[Result], str | None], where: str = ""
) -> Iterator[Note]:
    counts = Counter([of(result) or "not recorded" for result in results])
    if len(counts) > 1:
        parts = ", ".join(f"{name} ({n})" for name, n in sorted(counts.items(), key=lambda item: (-item[1], item[0])))
        yield Note("mixture", f"{where}the numbers mix {what}: {parts}")


def _changed(result: Result | None) -> bool:
    """Return whether several versions of the code produced the result, one after the other."""
    return result is not None and result.metrics.get("code_versions", 1) > 1


def _scores(table: Table) -> Iterator[Note]:
    """Note what scored the tasks, with how many examples and questions, and what guessing scores."""
    tasks = [str(column.label) for column in table.columns] if table.spec.columns in MEASURED_COLUMNS else []
    results = _shown_results(table.statuses)
    found = [score for result in results for score in result.scores if score.task in tasks]
    others = [score for row in table.externals.rows for score in row.scores]
    for by in dict.fromkeys((score.harness, score.shots) for score in found):
        mine = [score for score in found if (score.harness, score.shots) == by]
        titles = ", ".join(task_title(task) for task in tasks if any(score.task == task for score in mine))
        shots = "" if table.metric.name in BY_TEXT else f", {by[1]}-shot"
        yield Note("scores", f"{titles}: scored by {by[0]}{shots}")
    for task in tasks:
        for what in ("task_version", "examples"):
            counts = Counter(getattr(score, what) for score in [*found, *others] if score.task == task)
            if len(counts) > 1:
                yield Note(
                    "mixture", f"{task_title(task)}: the scores mix {what.replace('_', ' ')}s: {_counted(counts)}"
                )
    if table.metric.name in BY_TASK:
        shown = [score for result in results for score in result.scores] + others
        left_out = [skipped_note(one.task, one.value, one.examples) for one in shown if one.metric == SKIPPED]
        yield from (Note("scores", text) for text in dict.fromkeys(left_out))
    known = {task: KNOWN_TASKS[base_name(task)] for task in tasks if base_name(task) in KNOWN_TASKS}
    chances = [f"{task_title(task)} {one.chance:.3g}" for task, one in known.items() if one.chance]
    if table.metric.name == "accuracy" and chances:
        yield Note("scores", f"guessing scores {', '.join(chances)} %")


def _externals(table: Table) -> Iterator[Note]:
    """Note which rows are networks that were not trained here, where they come from, and why others are missing."""
    rows = table.externals.rows
    if rows:
        number = len(rows)
        subject = "last row: a network that was" if number == 1 else f"last {number} rows: networks that were"
        errors = any(cell.stderr is not None for row in rows for cell in row.cells)
        spread = "; score ± standard error over the questions" if errors else ""
        yield Note("external", f"{subject} not trained here, neither ranked nor compared{spread}")
    yield from (Note("origin", text) for text in table.externals.notes)


def _counted(counts: Counter[Any]) -> str:
    return ", ".join(f"{value} ({n})" for value, n in sorted(counts.items(), key=lambda item: -item[1]))


def _short(text: str | None) -> str | None:
    return text[:12] if text else text


def _shortcuts(table: Table) -> Iterator[Note]:
    """Note embeddings that start other than the names of their settings suggest."""
    named: dict[str, list[str]] = {}
    remarks: dict[int, str] = {}  # by identity: cells that differ in the seed alone share the model
    for status in table.statuses:
        model = status.entry.cell.model
        if id(model) not in remarks:
            remarks[id(model)] = remark(model)
        if text := remarks[id(model)]:
            named.setdefault(text, []).append(status.entry.name)
    for text, names in named.items():
        yield Note("override", f"{listed(names, _NAMED)}: {text}")


def _overrides(table: Table) -> Iterator[Note]:
    why: dict[str, list[str]] = {}
    for status in table.statuses:
        for reason in getattr(status.entry, "notes", ()):
            why.setdefault(reason, []).append(status.entry.name)
    for reason, names in why.items():
        yield Note("override", f"{listed(names, _NAMED)}: {reason}")


def _gains(table: Table) -> Iterator[Note]:
    everything = gains(table)
    for source in dict.fromkeys(gain.source for gain in everything):
        found = [gain for gain in everything if gain.source == source]
        same = sum(gain.ours * gain.published > 0 for gain in found)
        # The median: a published base that diverged differs from its method by a thousand.
        ours, theirs = median(gain.ours for gain in found), median(gain.published for gain in found)
        signs = f"{same} of {len(found)} have the same sign as in {load(source)['short']}"
        digits = table.metric.digits
        yield Note("gains", f"differences: {signs}; median {ours:+.{digits}f} here, {theirs:+.{digits}f} there")


def _shown_cells(table: Table) -> Iterator[tuple[Row, int, TableCell]]:
    """Yield row, index of the column and cell for every cell that the grid has."""
    return ((row, i, cell) for row in table.rows for i, cell in enumerate(row.cells) if cell.statuses)


def full_title(row: Row) -> str:
    """Return the row's title with what it has in common with its base: "Pre-LN + GPAS"."""
    return row.full or row.title


def place(table: Table, row: Row, column: int) -> str:
    """Return the titles of a cell's row and column: "Pre-LN + GPAS 71m"."""
    return f"{full_title(row)} {table.columns[column].title}"


_SAME_BUDGET = 1.5  # no note if our and the published number of training tokens differ by less than this factor

_Place = tuple[int, int]  # row and column of a cell


def _published_notes(table: Table) -> Iterator[Note]:
    """Yield the notes about the sources of a table, and about each of their numbers."""
    yield from _sources(table)
    yield from _unserved(table)
    yield from _compared(table)
    yield from _remarks(table)
    yield from _deviations(table)
    yield from _unstated(table)
    yield from _budgets(table)


def _sources(table: Table) -> Iterator[Note]:
    used = _used(table)
    for source, printed in table.published.items():
        data = load(source)
        where = ", ".join(filter(None, (data["title"], label_of(printed))))
        if source in used:
            # The caption of a paper's own layout names the paper and its table.
            text = f"{data['short']}: {printed.what if table.printed else f'{where}: {printed.what}'}"
            yield Note("published", text, brief=f"{data['short']}: {printed.what}")
            if printed.as_if:
                yield Note(
                    "published",
                    f"{data['short']}: these are its {printed.as_if}; compare the differences, not the values",
                )
        else:
            yield Note("published", f"{data['short']}: {where} has none of these cells")


def _used(table: Table) -> set[str]:
    return {source for column in table.columns for source in column.sources}


def _unserved(table: Table) -> Iterator[Note]:
    found: dict[str, list[_Place]] = {}
    for row, column, _, printed in _printed(table):
        found.setdefault(printed.unserved, []).append((row, column))
    for why in filter(None, found):
        yield Note("remark", f"no cell here{_where(table, found[why], tuple(table.published))}: {why}")


def _compared(table: Table) -> Iterator[Note]:
    """Note which average of our losses is compared, and the runs that have not recorded it."""
    shown = [(source, column.metric.name) for column in table.columns for source in column.sources]
    pairs = [(source, table.published[source].compared_as, name) for source, name in dict.fromkeys(shown)]
    for name in dict.fromkeys(name for _, wanted, name in pairs if wanted == name and name.endswith("_reference")):
        yield Note(
            "compared",
            f"published numbers are compared with {name}: the sum of the batches' mean losses is divided by their "
            "number plus one, as in the published code",
        )
        yield from _unrecorded(table, name)
    for source, wanted, name in pairs:
        if wanted not in ("", name):
            short = load(source)["short"]
            yield Note("compared", f"{short}: its numbers are averaged as in {wanted}, but the table shows {name}")


def _unrecorded(table: Table, name: str) -> Iterator[Note]:
    cells = [cell for _, i, cell in _shown_cells(table) if table.columns[i].metric.name == name]
    statuses = [s for cell in cells for s in cell.statuses if s.state == "unrecorded"]
    if statuses:
        names = listed([s.entry.id for s in statuses], _NAMED)
        yield Note(
            "compared",
            f"{count(len(statuses), 'run')} did not record {name}: {names}; without --paper, the table shows their "
            "perplexity over all tokens",
        )


def _remarks(table: Table) -> Iterator[Note]:
    """Note misprints and unstated choices of the sources, with the cells whose numbers they concern."""
    found: dict[tuple[str, str], list[_Place]] = {}
    for row, column, source, printed in _printed(table):
        for one in printed.remarks:
            found.setdefault((one.text, source), []).append((row, column))
    for text in dict.fromkeys(text for text, _ in found):
        sources = [source for other, source in found if other == text]
        places = [one for source in sources for one in found[text, source]]
        yield Note("remark", f"{_titles(sources)}{_where(table, places, sources)}: {text}")


def _deviations(table: Table) -> Iterator[Note]:
    """Note each setting in which cells differ from the recipes of the published numbers beside them."""
    found: dict[str, dict[Deviation, dict[str, list[_Place]]]] = {}
    for row, column, source, printed in _printed(table):
        for one in printed.deviations:
            found.setdefault(one.setting, {}).setdefault(one, {}).setdefault(source, []).append((row, column))
    for setting, cases in found.items():
        parts = []
        for one, by_source in cases.items():
            sources = list(by_source)
            places = [place for source in sources for place in by_source[source]]
            code = " (in its code)" if one.origin == "code" else ""
            ours = "without a counterpart here" if one.ours is None else f"{_word(one.ours)} here"
            said = f"{_word(one.published)} in {_titles(sources)}{code}, {ours}"
            parts.append(f"{said}{_where(table, places, sources)}")
        yield Note("recipe", f"{setting}: {'; '.join(parts)}")


def _unstated(table: Table) -> Iterator[Note]:
    for source in _used(table):
        printed = table.published[source]
        names = [name for one in recipes(printed) for name in one.unstated]
        if names and not printed.as_if:
            yield Note("recipe", f"{load(source)['short']} does not state {', '.join(dict.fromkeys(names))}")


def _budgets(table: Table) -> Iterator[Note]:
    found: dict[str, None] = {}
    for _, i, cell in _shown_cells(table):
        entry = cell.statuses[0].entry.cell
        ours = entry.optim.trained_rows * entry.data.length
        for source, printed in (cell.printed or {}).items():
            if printed.tokens and not 1 / _SAME_BUDGET < ours / printed.tokens < _SAME_BUDGET:
                budgets = f"{abbreviated(printed.tokens)} tokens in {load(source)['short']}, {abbreviated(ours)} here"
                found[f"{table.columns[i].title} was trained on {budgets}"] = None
    yield from (Note("budget", text) for text in found)


def _printed(table: Table) -> Iterator[tuple[int, int, str, Any]]:
    """Yield row, column, source and number of every published number that is shown."""
    for i, row in enumerate(table.rows):
        for column, cell in enumerate(row.cells):
            for source, printed in (cell.printed or {}).items():
                yield i, column, source, printed


def _where(table: Table, places: Sequence[_Place], sources: Sequence[str]) -> str:
    """Return " (71m, LNS, Pre-LN 130m)": the columns, rows and cells among the published numbers of `sources`.

    Return "" for all of them.
    """
    everything = {(row, column) for row, column, source, _ in _printed(table) if source in sources}
    left = set(places)
    if left == everything:
        return ""
    columns = [column.title for column in table.columns]
    rows = [full_title(row) for row in table.rows]
    titles = []
    for axis, names in ((1, columns), (0, rows)):
        for i, name in enumerate(names):
            whole = {one for one in everything if one[axis] == i}
            if len(whole) > 1 and whole <= left:
                titles.append(name)
                left -= whole
    titles += [place(table, table.rows[row], column) for row, column in sorted(left)]
    return f" ({listed(titles, _NAMED)})"


def _titles(sources: Sequence[str]) -> str:
    return ", ".join(load(source)["short"] for source in sources)


def _word(value: Any) -> str:
    return str(spelled(value)) if isinstance(value, bool | int | float | str) else str(value)
