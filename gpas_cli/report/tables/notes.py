"""Notes below a table: what a reader must know besides the numbers, one sentence each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from gpas_cli.report.papers import load
from gpas_cli.report.result import Result
from gpas_cli.report.tables.entry_status import EntryStatus
from gpas_cli.report.tables.note import Note
from gpas_cli.report.tables.published_notes import published_notes
from gpas_cli.report.tables.shown import full_title, place, shown_cells
from gpas_cli.report.tables.table import Table, TableCell
from gpas_cli.spec.downstream import BY_TASK, BY_TEXT, KNOWN_TASKS, SKIPPED, base_name, skipped_note, task_title
from gpas_cli.spec.model import remark
from gpas_cli.spec.stage import MEASURED_COLUMNS
from gpas_cli.words import count, listed

SIGNIFICANT = 0.05
MIN_PAIRS = 3  # for a star: two differences agree by chance too easily for a test that relies on their spread
NAMED = 3  # cells in one note


@dataclass(frozen=True)
class Gain:
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
        published_notes,
        _gains,
    )
    return (*table.remarks, *(note for make in makers for note in make(table)))


def gains(table: Table) -> list[Gain]:
    """Return a gain for every cell where both we and a source have a number for the method and for its base."""
    return [
        Gain(full_title(row), table.columns[i].title, source, cell.delta.mean, printed.delta)
        for row, i, cell in shown_cells(table)
        for source, printed in (cell.printed or {}).items()
        if cell.delta is not None and printed.delta is not None
    ]


def significant(cell: TableCell) -> bool:
    """Return whether the difference from the base is marked with a star."""
    delta = cell.delta
    return delta is not None and delta.p is not None and delta.n >= MIN_PAIRS and delta.p < SIGNIFICANT


def _seeds(table: Table) -> Iterator[Note]:
    over = table.spec.over
    sizes = sorted({len(cell.statuses) for _, _, cell in shown_cells(table)})
    if sizes and sizes[-1] > 1:
        number = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
        yield Note("seeds", f"mean ± sample standard deviation over {number} {over}s")
    elif sizes:
        yield Note("seeds", f"one {over} per cell: differences may be noise")
    if any(cell.stderr is not None for _, _, cell in shown_cells(table)):
        yield Note("seeds", f"of a single {over}: score ± standard error over the questions")


def _delta(table: Table) -> Iterator[Note]:
    deltas = [cell for _, _, cell in shown_cells(table) if cell.delta is not None]
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
            f"* paired t test over {table.spec.over}s, two-sided p < {SIGNIFICANT:g}, per cell, uncorrected",
        )


def _marks(table: Table) -> Iterator[Note]:
    cells = [cell for _, _, cell in shown_cells(table)]
    if any(cell.mark for cell in cells):
        rest = "" if all(cell.complete for cell in cells) else " (unfinished cells are not ranked)"
        yield Note("marks", f"bold: best of its column; underlined: second best{rest}")


def _diverged(table: Table) -> Iterator[Note]:
    part = [
        place(table, row, i)
        for row, i, cell in shown_cells(table)
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
    for _, i, cell in shown_cells(table):
        for status in cell.runs:
            place = (status.entry.id, table.columns[i].label)
            if place not in found or status.value is None:
                found[place] = status
    return list(found.values())


def _withheld(table: Table) -> Iterator[Note]:
    """Note numbers that are in the database but not in the run directories."""
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
    return listed(names, NAMED)


def _pairs(table: Table) -> Iterator[Note]:
    few = [
        f"{place(table, row, i)} ({cell.delta.n} of {cell.summary.n})"
        for row, i, cell in shown_cells(table)
        if cell.delta is not None and cell.summary is not None and cell.delta.n < cell.summary.n
    ]
    if few:
        yield Note("pairs", f"differences over fewer {table.spec.over}s than the mean: {', '.join(few)}")


def _bases(table: Table) -> Iterator[Note]:
    lone = [
        place(table, row, i)
        for row, i, cell in shown_cells(table)
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
        names = listed([s.entry.id for s in changed], NAMED)
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
        yield Note("override", f"{listed(names, NAMED)}: {text}")


def _overrides(table: Table) -> Iterator[Note]:
    why: dict[str, list[str]] = {}
    for status in table.statuses:
        for reason in getattr(status.entry, "notes", ()):
            why.setdefault(reason, []).append(status.entry.name)
    for reason, names in why.items():
        yield Note("override", f"{listed(names, NAMED)}: {reason}")


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
