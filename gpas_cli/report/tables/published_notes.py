"""Notes about published numbers: their sources, what they are compared with, and how ours were obtained differently."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gpas_cli.grid.document import spelled
from gpas_cli.report.papers import load
from gpas_cli.report.papers.layouts import label_of
from gpas_cli.report.papers.recipes import Deviation, recipes
from gpas_cli.report.tables.note import Note
from gpas_cli.report.tables.shown import full_title, place, shown_cells
from gpas_cli.report.tables.table import Table
from gpas_cli.words import abbreviated, count, listed

NAMED = 3  # cells in one note
SAME_BUDGET = 1.5  # no note if our and the published number of training tokens differ by less than this factor

Place = tuple[int, int]  # row and column of a cell


def published_notes(table: Table) -> Iterator[Note]:
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
    """Note why numbers of a paper's layout have no cell of ours beside them."""
    found: dict[str, list[Place]] = {}
    for row, column, _, printed in _printed(table):
        found.setdefault(printed.unserved, []).append((row, column))
    sources = tuple(table.published)
    yield from (Note("remark", f"no cell here{_where(table, found[why], sources)}: {why}") for why in found if why)


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
    cells = [cell for _, i, cell in shown_cells(table) if table.columns[i].metric.name == name]
    statuses = [s for cell in cells for s in cell.statuses if s.state == "unrecorded"]
    if statuses:
        names = listed([s.entry.id for s in statuses], NAMED)
        yield Note(
            "compared",
            f"{count(len(statuses), 'run')} did not record {name}: {names}; without --paper, the table shows their "
            "perplexity over all tokens",
        )


def _remarks(table: Table) -> Iterator[Note]:
    """Note misprints and unstated choices of the sources, with the cells whose numbers they concern."""
    found: dict[tuple[str, str], list[Place]] = {}
    for row, column, source, printed in _printed(table):
        for remark in printed.remarks:
            found.setdefault((remark.text, source), []).append((row, column))
    for text in dict.fromkeys(text for text, _ in found):
        sources = [source for other, source in found if other == text]
        places = [one for source in sources for one in found[text, source]]
        yield Note("remark", f"{_titles(sources)}{_where(table, places, sources)}: {text}")


def _deviations(table: Table) -> Iterator[Note]:
    """Note each setting in which cells differ from the recipes of the published numbers beside them."""
    found: dict[str, dict[Deviation, dict[str, list[Place]]]] = {}
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
    """Note published numbers from a much longer or shorter training than ours."""
    found: dict[str, None] = {}
    for _, i, cell in shown_cells(table):
        entry = cell.statuses[0].entry.cell
        ours = entry.optim.trained_rows * entry.data.length
        for source, printed in (cell.printed or {}).items():
            if printed.tokens and not 1 / SAME_BUDGET < ours / printed.tokens < SAME_BUDGET:
                budgets = f"{abbreviated(printed.tokens)} tokens in {load(source)['short']}, {abbreviated(ours)} here"
                found[f"{table.columns[i].title} was trained on {budgets}"] = None
    yield from (Note("budget", text) for text in found)


def _printed(table: Table) -> Iterator[tuple[int, int, str, Any]]:
    """Yield row, column, source and number of every published number that is shown."""
    for i, row in enumerate(table.rows):
        for column, cell in enumerate(row.cells):
            for source, printed in (cell.printed or {}).items():
                yield i, column, source, printed


def _where(table: Table, places: Sequence[Place], sources: Sequence[str]) -> str:
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
    return f" ({listed(titles, NAMED)})"


def _titles(sources: Sequence[str]) -> str:
    return ", ".join(load(source)["short"] for source in sources)


def _word(value: Any) -> str:
    return str(spelled(value)) if isinstance(value, bool | int | float | str) else str(value)
