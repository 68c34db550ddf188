"""The tables of the papers that the cells on the page have numbers for, in the papers' own layout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpas_cli.report.papers import SOURCES
from gpas_cli.report.papers.layouts import numbers, printed
from gpas_cli.report.tables.cell_text import sheet
from gpas_cli.report.tables.html_table import to_html
from gpas_cli.report.tables.paper_table import Serving, is_published_beside, serving
from gpas_cli.report.tables.side_by_side import paper_beside_declared

if TYPE_CHECKING:
    from gpas_cli.grid.declared import Experiments
    from gpas_cli.grid.entry import Entry
    from gpas_cli.report.papers.layouts import PrintedPart
    from gpas_cli.report.recorded import Recorded


@dataclass(frozen=True)
class PaperTableView:
    """A table of a paper with our numbers. `html` is the table without its notes; `command` prints it."""

    title: str
    html: str
    notes: tuple[str, ...]
    command: str


def paper_tables(experiments: Experiments, known: Recorded, names: Sequence[str]) -> Iterator[PaperTableView]:
    """Yield the papers' tables in which a cell of the grids `names` has a number.

    A grid is considered for the published tables that it names, so that other grids cost nothing.
    """
    entries: dict[str, list[Entry]] = {name: [] for name in names if name in experiments.grids}
    for entry in known.entries:
        if entry.grid in entries:
            entries[entry.grid].append(entry)
    for part in _parts():
        own = {
            name: (experiments.grids[name], cells)
            for name, cells in entries.items()
            if is_published_beside(experiments.grids[name], part)
        }
        served = serving(part, own) if own else None
        if served and _has_number(served, known):
            made = paper_beside_declared(served, known.states, known.results)
            drawn = sheet(made)
            notes = tuple(note.sentence for note in drawn.notes)
            yield PaperTableView(part.title, to_html(replace(drawn, notes=())), notes, f"gpas table {part.name}")


def _parts() -> Iterator[PrintedPart]:
    for source in SOURCES:
        for number in numbers(source):
            yield from (part for part in printed(source, number) if part.tables)


def _has_number(served: Serving, known: Recorded) -> bool:
    return any(stage.key in known.results for entry in served.entries for stage in entry.cell.stages)
