"""Notes below a table: what a reader must know to use the numbers, one sentence each."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median
from typing import Any, TypeVar

from gpas_cli.grid.document import spelled
from gpas_cli.report.labels import in_words
from gpas_cli.report.papers import load
from gpas_cli.report.papers.printed import label_of
from gpas_cli.report.papers.recipes import OBJECTIVE, Deviation, recipes
from gpas_cli.report.recorded import Result
from gpas_cli.report.tables.entry_status import NO_UNIT, EntryStatus
from gpas_cli.report.tables.sheet import Note
from gpas_cli.report.tables.table import Row, Table, TableCell
from gpas_cli.spec.downstream import BY_TASK, BY_TEXT, KNOWN_TASKS, SKIPPED, base_name, skipped_note
from gpas_cli.spec.extensions import column_title, measured_columns
from gpas_cli.spec.model import remark
from gpas_cli.spec.stage import CONVERGENCE, PRETRAIN
from gpas_cli.structure import Frozen, Number
from gpas_cli.words import abbreviated, count, fixed, grouped, left_out, listed, verb

_T = TypeVar("_T")

_SIGNIFICANT = 0.05
_MIN_PAIRS = 3  # for a star: two differences agree by chance too easily for a test that relies on their spread
_NAMED = 3  # cells in one note
_LOSSES = {"causal": "next-token", "mlm": "masked-token", "span": "corrupted-span"}  # by objective
_TOKENIZERS = "tokenizers, whose losses compare in bits per byte alone"
_DIGEST = 12  # hex digits of a version or a text
_NOTHING = TableCell()
_SAME_BUDGET = 1.5  # no note if our and the published number of training tokens differ by less than this factor


class Gain(Frozen):
    """Our and a published difference between a method and its base, in units of the metric."""

    row: str
    column: str
    source: str
    ours: Number
    published: Number


def notes(table: Table) -> tuple[Note, ...]:
    """Return all notes of a table, in the order in which they are printed."""
    if table.alone:
        return table.remarks
    return (*table.remarks, *(note for make in _MAKERS for note in make(table)))


def gains(table: Table) -> list[Gain]:
    """Return a gain for every cell where both we and a source have a number for the method and for its base."""
    return [
        Gain(row.full_title, table.columns[i].title, source, cell.delta.mean, printed.delta)
        for row, i, cell in _shown_cells(table)
        for source, printed in cell.printed.items()
        if cell.delta is not None and printed.delta is not None
    ]


def significant(cell: TableCell) -> bool:
    """Return whether the difference from the base is marked with a star."""
    delta = cell.delta
    return delta is not None and delta.p is not None and delta.n >= _MIN_PAIRS and delta.p < _SIGNIFICANT


def _reading(table: Table) -> Iterator[Note]:
    """Note what means, deviations, differences and marks are."""
    over = table.spec.over
    cells = [cell for _, _, cell in _shown_cells(table)]
    sizes = sorted({len(cell.statuses) for cell in cells})
    if sizes and sizes[-1] > 1:
        number = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
        yield Note("seeds", f"mean ± sample standard deviation over {number} {over}s")
    elif sizes and not all(status.entry.cell.network for status in table.statuses):
        yield Note("seeds", f"one {over} per cell: differences may be noise")
    if any(cell.stderr is not None for cell in cells):
        yield Note("seeds", f"of a single {over}: score ± standard error over the questions")
    compared = [one for cell in cells for one in (cell, *cell.contributed.values()) if one.delta is not None]
    if compared:
        against = ", ".join(f"{axis} {spelled(label)}" for axis, label in table.spec.against.items())
        several = any(len(cell.statuses) > 1 for cell in compared)
        paired = f", the mean over the {over}s that both have" if several else ""
        known = any(one.delta and one.delta.interval for one in compared)
        interval = " ± half its 95 % interval, by Student's t" if known else ""
        yield Note("delta", f"in parentheses: difference from the same row with {against}{paired}{interval}")
    if arrivals := [column.metric.name for column in table.columns if column.metric.name in CONVERGENCE]:
        medians = f"medians over {over}s, with intervals by bootstrap; a run that never gets there has a speed-up of 0"
        loss = "until the base's final training loss, a mean over 5 % of the updates"
        yield Note("delta", f"{', '.join(dict.fromkeys(arrivals))}: {loss}; {medians}")
    if any(map(significant, compared)):
        yield Note("delta", f"* paired t test over {over}s, two-sided p < {_SIGNIFICANT:g}, per cell, uncorrected")
    if any(cell.mark for cell in cells):
        rest = "" if all(cell.complete for cell in cells) else " (unfinished cells are not ranked)"
        yield Note("marks", f"bold: best of its column; underlined: second best{rest}")


def _tuned(table: Table) -> Iterator[Note]:
    """Note which value of the axis `best` each cell shows, and which of them end the range that was tried."""
    axis = table.spec.best
    chosen: dict[str, list[str]] = {}
    tried = set()
    for row, i, cell in _shown_cells(table) if axis else ():
        if cell.summary is not None and cell.others:
            tried.add(len({run.entry.axes[axis] for run in cell.runs}))
            edge = _edge_of(cell, axis)
            at = f", the {edge} of those tried" if edge else ""
            chosen.setdefault(f"{spelled(cell.statuses[0].entry.axes[axis])}{at}", []).append(place(table, row, i))
    if chosen:
        each = "; ".join(f"{value}: {', '.join(places)}" for value, places in chosen.items())
        unequal = (
            f" of {min(tried)} to {max(tried)} values: the best of more is better by chance" if len(tried) > 1 else ""
        )
        yield Note("best", f"each cell is the best {axis}, by its mean{unequal}: {each}")


def _edge_of(cell: TableCell, axis: str) -> str | None:
    """Return "lowest" or "highest" if the value that a cell shows ends the range of an axis of numbers, else None."""
    values = [run.entry.axes[axis] for run in cell.runs]
    if not all(isinstance(value, int | float) for value in values):
        return None
    own = values[0]
    return "lowest" if own == min(values) else "highest" if own == max(values) else None


def _diverged(table: Table) -> Iterator[Note]:
    part = [
        place(table, row, i)
        for row, i, cell in _shown_cells(table)
        if cell.summary is not None and any(s.state == "diverged" for s in cell.statuses)
    ]
    if part:
        yield Note("diverged", f"diverged runs are not in the mean: {', '.join(part)}")


def _unfinished(table: Table) -> Iterator[Note]:
    every = [status for *_, cell in _shown_cells(table) for status in cell.runs]
    runs = {status.entry.id for status in every}  # each of which may have many numbers
    unrecorded = {status.entry.id for status in every if status.state == "unrecorded"}
    found = (s for s in every if s.value is None and s.state not in ("diverged", "unrecorded", NO_UNIT))
    missing = {status.entry.id: status for status in found}.values()
    if missing:
        counts = Counter(s.state for s in missing)
        states = ", ".join(f"{n} {state}" for state, n in sorted(counts.items()))
        have = verb(len(missing), "has", "have")
        yield Note("unfinished", f"{len(missing)} of {len(runs)} runs {have} no result: {states}")
    if unrecorded:
        yield Note("unfinished", f"{len(unrecorded)} of {len(runs)} runs did not record every number shown")
    for s in missing:
        if s.state == "not finite" and s.result:
            yield Note("unfinished", f"{s.entry.id} is no result: not finite in its first tenth: {s.result.cause}")
    if any(s.state == "unsynced" for s in missing):
        yield Note("unfinished", "unsynced: finished, but not yet in the database; run `gpas db sync`")


def _withheld(table: Table) -> Iterator[Note]:
    withheld = [s for s in table.statuses if s.withheld is not None]
    gone = [s for s in withheld if s.state == "missing" or (s.withheld and s.withheld.gone)]
    changed = [s for s in withheld if s not in gone]
    again = "restore the directories, or run the cells again with `gpas run grid`"
    evidence = "`gpas status` shows the evidence, `gpas db sync` updates the database"
    for found, why, remedy in ((gone, "are gone", again), (changed, "no longer contain them", evidence)):
        if found:
            names = listed(list(dict.fromkeys(s.entry.name for s in found)), _NAMED)
            yield Note("withheld", f"not shown, because the run directories {why}: the numbers of {names}; {remedy}")


def _differences(table: Table) -> Iterator[Note]:
    """Note differences over fewer seeds than the mean, and those missing because the base has no number."""
    few, lone = [], []
    for row, i, cell in _shown_cells(table):
        if cell.summary is None:
            continue
        if cell.delta is None and row.base is not None:
            lone.append(place(table, row, i))
        elif cell.delta is not None and cell.delta.n < cell.summary.n:
            few.append(f"{place(table, row, i)} ({cell.delta.n} of {cell.summary.n})")
    if few:
        yield Note("pairs", f"differences over fewer {table.spec.over}s than the mean: {', '.join(few)}")
    if lone:
        yield Note("base", f"no difference, because the base has no number: {', '.join(lone)}")


def _mixtures(table: Table) -> Iterator[Note]:
    """Note numbers that were obtained with different text, precision, code or devices.

    Texts are compared within a column, because sizes may differ in vocabulary and so in the tokens of the same text.
    """
    for index, column in enumerate(table.columns):
        cells = [row.cells[index] for row in table.rows]
        results = _shown_results([s for cell in cells for s in cell.statuses])
        where = f"{column.title}: "
        yield from _mixture(results, "training texts", lambda r: (r.fingerprint or "")[:_DIGEST], where)
        yield from _mixture(results, "validation texts", lambda r: (r.validation_fingerprint or "")[:_DIGEST], where)
        if column.metric.stage == PRETRAIN and column.metric.family in ("loss", "perplexity"):
            shown = [s.entry.cell for cell in cells for s in cell.statuses if s.value is not None]
            yield from _mixture(shown, _TOKENIZERS, lambda c: f"{c.data.tokenizer} of {c.text_vocab:,} ids", where)
    everything = table.statuses
    results = _shown_results(everything)
    # Networks that were not trained here are measured in the precision in which they are stored.
    trained = _shown_results([s for s in everything if s.entry.cell.network is None])
    yield from _mixture(trained, "precisions", lambda r: r.precision)
    yield from _mixture(results, "versions of the code", lambda r: (r.code or "")[:_DIGEST])
    yield from _mixture(results, "devices", lambda r: r.hardware)
    # One with several versions was resumed after the code had changed.
    changed = [
        s for s in everything if s.value is not None and s.result and s.result.metrics.get("code_versions", 1) > 1
    ]
    if changed:
        names = listed([s.entry.id for s in changed], _NAMED)
        yield Note("mixture", f"{count(len(changed), 'run')} resumed after the code had changed: {names} (`gpas why`)")


def _shown_results(statuses: Iterable[EntryStatus]) -> list[Result]:
    """Return the results of the statuses that have a number."""
    return [s.result for s in statuses if s.result is not None and s.value is not None]


def _mixture(numbers: Sequence[_T], what: str, of: Callable[[_T], str | None], where: str = "") -> Iterator[Note]:
    counts = Counter([of(number) or "not recorded" for number in numbers])
    if len(counts) > 1:
        parts = ", ".join(f"{name} ({n})" for name, n in sorted(counts.items(), key=lambda item: (-item[1], item[0])))
        yield Note("mixture", f"{where}the numbers mix {what}: {parts}")


def _scores(table: Table) -> Iterator[Note]:
    """Note what scored the tasks, with how many examples and questions, and what guessing scores."""
    tasks = [str(column.label) for column in table.columns] if table.spec.columns in measured_columns() else []
    results = _shown_results(table.statuses)
    found = [score for result in results for score in result.scores if score.task in tasks]
    for by in dict.fromkeys((score.harness, score.shots) for score in found):
        mine = [score for score in found if (score.harness, score.shots) == by]
        sizes = {score.task: score.examples for score in mine}
        documents = {task: f" ({count(sizes[task], 'document')})" for task in sizes if table.metric.name in BY_TEXT}
        titles = ", ".join(column_title(task) + documents.get(task, "") for task in tasks if task in sizes)
        shots = f", {by[1]}-shot" if table.metric.name in BY_TASK else ""
        yield Note("scores", f"{titles}: scored by {by[0]}{shots}")
    sections = [s.entry.cell.parameters(table.metric.stage) for s in table.statuses if found]
    limits = sorted({section.limit for section in sections if getattr(section, "limit", 0)})
    if limits:
        what = "documents of each text" if table.metric.name in BY_TEXT else "questions of each task"
        yield Note("scores", f"limit: only the first {' or '.join(map(str, limits))} {what} were scored")
    for task in tasks:
        for what in ("task_version", "examples"):
            counts = Counter(getattr(score, what) for score in found if score.task == task)
            if len(counts) > 1:
                each = ", ".join(f"{value} ({n})" for value, n in counts.most_common())
                yield Note("mixture", f"{column_title(task)}: the scores mix {what.replace('_', ' ')}s: {each}")
    if table.metric.name in BY_TASK:
        shown = [score for result in results for score in result.scores]
        left_out = [skipped_note(one.task, one.value, one.examples) for one in shown if one.metric == SKIPPED]
        yield from (Note("scores", text) for text in dict.fromkeys(left_out))
    known = {task: KNOWN_TASKS.get(base_name(task).removesuffix("_closed_book")) for task in tasks}
    chances = [f"{column_title(task)} {one.chance:.3g}" for task, one in known.items() if one and one.chance]
    if table.metric.name == "accuracy" and chances:
        yield Note("scores", f"guessing scores {', '.join(chances)} %")


def _overrides(table: Table) -> Iterator[Note]:
    """Note settings that the grid overrides, and embeddings that start other than their settings' names suggest."""
    models = {id(s.entry.cell.model): s.entry.cell.model for s in table.statuses}  # cells share them
    remarks = {key: remark(model) for key, model in models.items()}
    said = [(reason, s.entry.name) for s in table.statuses for reason in getattr(s.entry, "notes", ())]
    said += [(f"tag {tag}", s.entry.name) for s in table.statuses for tag in getattr(s.entry, "tags", ())]
    said += [(remarks[id(s.entry.cell.model)], s.entry.name) for s in table.statuses]
    for text in filter(None, dict.fromkeys(text for text, _ in said)):
        yield Note("override", f"{listed([name for of, name in said if of == text], _NAMED)}: {text}")


def _left_out(table: Table) -> Iterator[Note]:
    """Note how many malformed records the texts of the runs are without."""
    said = dict[str, None]()
    for status in table.statuses:
        metrics = status.result.metrics if status.result else {}
        found = {name.partition("/")[2]: value for name, value in metrics.items() if name.startswith("left_out/")}
        said |= {f"{status.entry.cell.data.label}: {left_out(found)}": None} if found else {}
    yield from (Note("text", words) for words in said)


def _gains(table: Table) -> Iterator[Note]:
    everything, said = gains(table), []
    for source in dict.fromkeys(gain.source for gain in everything):
        found = [gain for gain in everything if gain.source == source]
        same = sum(gain.ours * gain.published > 0 for gain in found)
        # The median: a published base that diverged differs from its method by a thousand.
        ours, theirs = median(gain.ours for gain in found), median(gain.published for gain in found)
        medians = f"median {fixed(ours, table.metric.digits, '+')} here, {theirs:+.{table.metric.digits}f} there"
        said.append(f"{same} of {len(found)} as in {table.published[source].short} ({medians})")
    if said:
        yield Note("gains", f"differences with the same sign: {', '.join(said)}")


def _shown_cells(table: Table) -> Iterator[tuple[Row, int, TableCell]]:
    """Yield row, index of the column and cell for every cell that the grid has."""
    return ((row, i, cell) for row in table.rows for i, cell in enumerate(row.cells) if cell.statuses)


def place(table: Table, row: Row, column: int) -> str:
    """Return the titles of a cell's row and column: "Pre-LN + GPAS 71m"."""
    return f"{row.whole_title} {table.columns[column].title}"


_Place = tuple[int, int]  # row and column of a cell


def _contributed(table: Table) -> Iterator[Note]:
    """Note on what each person has trained, and where the validation text was another than ours."""
    for name in dict.fromkeys(name for column in table.columns for name in column.contributors):
        theirs = [
            (place(table, row, i), own, own.contributed.get(name, _NOTHING)) for row, i, own in _shown_cells(table)
        ]
        results = {run.key: run.result for *_, cell in theirs for run in cell.statuses if run.result}.values()
        found = [
            {one.hardware or "unknown" for one in results},
            {f"code {(one.code or 'unknown')[:_DIGEST]}" for one in results},
            {f"commit {(one.git_commit or 'unknown')[:_DIGEST]}" for one in results},
        ]
        on = ", ".join(listed(sorted(each), _NAMED) for each in found)
        runs = count(len(results), "run")
        yield Note("contributed", f"{runs} contributed by {name}, on {on}; checked, but not trained here")
        other = [at for at, own, cell in theirs if _texts(own) and _texts(cell) and _texts(own) != _texts(cell)]
        if other:
            yield Note("contributed", f"{name} measured on other validation text than here: {listed(other, _NAMED)}")


def _texts(cell: TableCell) -> set[str | None]:
    return {result.validation_fingerprint for result in _shown_results(cell.statuses)}


def _sources(table: Table) -> Iterator[Note]:
    used = _used(table)
    measured: dict[str, list[tuple[str, str]]] = {}
    for source, printed in table.published.items():
        short, where = printed.short, ", ".join(filter(None, (load(printed.pack)["title"], label_of(printed))))
        if source not in used:
            yield Note("published", f"{short}: {where} has none of these cells")
        else:
            as_if = f"; these are its {printed.as_if}: compare the differences, not the values" if printed.as_if else ""
            measured.setdefault(f"{printed.what}{as_if}", []).append((short, where))
    if not table.printed:  # the caption of a paper's own layout says it
        for what, papers in measured.items():
            whole = "; ".join(f"{short}: {where}" for short, where in papers)
            names = ", ".join(short for short, _ in papers)
            yield Note("published", f"{whole}: {what}", brief=f"{names}: {what}")


def _used(table: Table) -> list[str]:
    return list(dict.fromkeys(source for column in table.columns for source in column.sources))


def _unserved(table: Table) -> Iterator[Note]:
    found = grouped((printed.unserved, (row, column)) for row, column, _, printed in _printed(table))
    for why in filter(None, found):
        yield Note("remark", f"no cell here{_where(table, found[why], tuple(table.published))}: {why}")


def _compared(table: Table) -> Iterator[Note]:
    """Note which average of our losses is compared, and the runs that have not recorded it."""
    pairs = {
        (source, printed.cell.table.compared_as, table.columns[i].metric.name): None
        for _, i, source, printed in _printed(table)
    }
    for name in dict.fromkeys(name for _, wanted, name in pairs if wanted == name and name.endswith("_reference")):
        counts = grouped((printed.cell.batches, (row, i)) for row, i, _, printed in _printed(table))
        own = [f"{n}{_where(table, counts[n], tuple(table.published))}" for n in counts if n]
        batches = f"; its numbers of batches, {', '.join(own)}, are put in place of ours" if own else ""
        yield Note(
            "compared",
            f"published numbers are compared with {name}: the sum of the batches' mean losses is divided by their "
            f"number plus one, as in the published code{batches}",
        )
        shown_cells = [cell for _, i, cell in _shown_cells(table) if table.columns[i].metric.name == name]
        missing = [s.entry.id for cell in shown_cells for s in cell.statuses if s.state == "unrecorded"]
        if missing:
            runs = f"{count(len(missing), 'run')} did not record {name}: {listed(missing, _NAMED)}"
            yield Note("compared", f"{runs}; without --paper, the table shows their perplexity over all tokens")
    for source, wanted, name in pairs:
        if not name.endswith(wanted):  # relative_NAME is the ratio of two
            short = table.published[source].short
            yield Note("compared", f"{short}: its numbers are averaged as in {wanted}, but the table shows {name}")


def _objectives(table: Table) -> Iterator[Note]:
    """Note published losses of another objective than the cells beside them have."""
    found: dict[tuple[str, Any, Any], None] = {}
    for *_, source, printed in _printed(table):
        for one in printed.deviations:
            found |= {(source, one.published, one.ours): None} if one.setting == OBJECTIVE else {}
    for source, *kinds in found:
        theirs, ours = (f"{_LOSSES.get(kind, kind)} loss ({kind})" for kind in kinds)
        short = table.published[source].short
        said = f"{short} prints the {theirs}, ours is the {ours}: only signs of differences compare"
        yield Note("compared", said)


def _remarks(table: Table) -> Iterator[Note]:
    """Note misprints and unstated choices of the sources, with the cells whose numbers they concern."""
    found: dict[tuple[str, str], list[_Place]] = {}
    for row, column, source, printed in _printed(table):
        for one in printed.cell.remarks:
            found.setdefault((one.text, source), []).append((row, column))
    for text in dict.fromkeys(text for text, _ in found):
        sources = [source for other, source in found if other == text]
        places = [one for source in sources for one in found[text, source]]
        yield Note("remark", f"{_titles(table, sources)}{_where(table, places, sources)}: {text}")


def _deviations(table: Table) -> Iterator[Note]:
    """Note each setting in which cells differ from the recipes of the published numbers beside them."""
    found: dict[str, dict[Deviation, dict[str, list[_Place]]]] = {}
    for row, column, source, printed in _printed(table):
        for one in printed.deviations:
            if one.setting != OBJECTIVE:
                found.setdefault(one.setting, {}).setdefault(one, {}).setdefault(source, []).append((row, column))
    for setting, cases in found.items():
        parts = []
        for one, by_source in cases.items():
            sources = list(by_source)
            places = [place for source in sources for place in by_source[source]]
            code = " (in its code)" if one.origin == "code" else ""
            ours = "without a counterpart here" if one.ours is None else f"{in_words(one.ours)} here"
            said = f"{in_words(one.published)} in {_titles(table, sources)}{code}, {ours}"
            parts.append(f"{said}{_where(table, places, sources)}")
        yield Note("recipe", f"{setting}: {'; '.join(parts)}")


def _unstated(table: Table) -> Iterator[Note]:
    for source in _used(table):
        printed = table.published[source]
        names = [name for one in recipes(printed) for name in one.unstated]
        if names and not printed.as_if:
            yield Note("recipe", f"{printed.short} does not state {', '.join(dict.fromkeys(names))}")


def _budgets(table: Table) -> Iterator[Note]:
    found: dict[str, None] = {}
    for _, i, cell in _shown_cells(table):
        entry = cell.statuses[0].entry.cell
        ours = entry.optim.trained_rows * entry.data.length
        padding = " with padding" if entry.data.layout == "pad" else ""
        for source, printed in cell.printed.items():
            if (theirs := printed.cell.tokens) and not 1 / _SAME_BUDGET < ours / theirs < _SAME_BUDGET:
                there = f"{abbreviated(theirs)} tokens in {table.published[source].short}"
                budgets = f"{there}, {abbreviated(ours)}{padding} here"
                found[f"{table.columns[i].title} was trained on {budgets}"] = None
    yield from (Note("budget", text) for text in found)


def _printed(table: Table) -> Iterator[tuple[int, int, str, Any]]:
    """Yield row, column, source and number of every published number that is shown."""
    for i, row in enumerate(table.rows):
        for column, cell in enumerate(row.cells):
            for source, printed in cell.printed.items():
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
    sections = dict.fromkeys(row.section for row in table.rows if row.section)
    groups = [(name, {one for one in everything if one[1] == i}) for i, name in enumerate(columns)]
    groups += [(name, {one for one in everything if table.rows[one[0]].section == name}) for name in sections]
    groups += [(row.whole_title, {one for one in everything if one[0] == i}) for i, row in enumerate(table.rows)]
    titles = []
    for name, whole in groups:
        if len(whole) > 1 and whole <= left:
            titles.append(name)
            left -= whole
    titles += [place(table, table.rows[row], column) for row, column in sorted(left)]
    return f" ({listed(titles, _NAMED)})"


def _titles(table: Table, sources: Sequence[str]) -> str:
    return ", ".join(table.published[source].short for source in sources)


# In the order in which their notes are printed.
_MAKERS = (
    *(_reading, _tuned, _diverged, _unfinished, _withheld, _differences, _mixtures, _left_out, _scores, _overrides),
    *(_contributed, _sources, _unserved, _compared, _objectives, _remarks, _deviations, _unstated, _budgets, _gains),
)
