"""What the report page shows of some cells, as data."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpas_cli import __version__
from gpas_cli.errors import GpasError
from gpas_cli.grid.declared import TableSpec
from gpas_cli.page.cells import LogTail, details, row
from gpas_cli.page.charts import grid_charts, paper_charts
from gpas_cli.page.claims import claims_of
from gpas_cli.page.limits import Limits
from gpas_cli.page.paper_tables import PaperTableView, paper_tables
from gpas_cli.report.claims.verdict import ClaimJson
from gpas_cli.report.tables.render import render
from gpas_cli.report.tables.table import build
from gpas_cli.words import count

if TYPE_CHECKING:
    from gpas_cli.grid.declared import Experiments
    from gpas_cli.report.recorded import Recorded
    from gpas_cli.state.status import CellStatus

# The states in the order in which the page shows them.
STATES = ("done", "diverged", "running", "queued", "interrupted", "failed", "cancelled", "unknown", "missing")
# Whose details are kept first where not all of them fit.
_URGENT = ("failed", "unknown", "running", "interrupted", "diverged", "queued", "cancelled", "done", "missing")


@dataclass(frozen=True)
class GridSection:
    """One grid: its table as HTML, or why there is none (`problem`), and its figures.

    captioned: the caption of the table says more than the title.
    """

    name: str
    title: str
    states: Mapping[str, int]
    charts: Sequence[Mapping[str, Any]] = ()
    table: str = ""
    problem: str = ""
    captioned: bool = True

    @property
    def anchor(self) -> str:
        """The id of the section. Names of grids have only letters, digits and . _ + -"""
        return f"grid-{self.name}"

    @property
    def cells(self) -> int:
        return sum(self.states.values())


@dataclass(frozen=True)
class Content:
    """Everything on the page. `made` is a unix time.

    activity: hours used and the expected end, in a sentence. paper_tables, figures: those of the papers. details: by
    cell id. left_out: what does not fit.
    """

    title: str
    made: float
    states: Mapping[str, int]
    grids: tuple[GridSection, ...] = ()
    claims: Sequence[ClaimJson] = ()
    paper_tables: Sequence[PaperTableView] = ()
    figures: Sequence[Mapping[str, Any]] = ()
    cells: Sequence[Mapping[str, Any]] = ()
    details: Mapping[str, Any] | None = None
    activity: str = ""
    problem: str = ""
    left_out: tuple[str, ...] = ()
    version: str = __version__


def collect(
    experiments: Experiments, known: Recorded, states: Sequence[CellStatus], log_tail: LogTail, limits: Limits
) -> Content:
    """Return the content of the page about cells with these states, which `known` covers."""
    names = list(dict.fromkeys(state.entry.grid for state in states))
    shown, left_out = _details(states, known, log_tail, limits)
    sections = tuple(_section(name, experiments, known, states, limits) for name in names)
    return Content(
        title=sections[0].title if len(sections) == 1 else f"Results of {experiments.path.parent.name}",
        made=time.time(),
        states=_of_cells(states),
        grids=sections,
        claims=tuple(claims_of(experiments, known, names)),
        paper_tables=tuple(paper_tables(experiments, known, names)),
        figures=tuple(paper_charts(experiments, known, names, limits)),
        cells=[row(state) for state in states],
        details=shown,
        problem=known.problem,
        left_out=(*left_out, *_not_drawn(sections, limits)),
    )


def with_states(content: Content, states: Sequence[CellStatus], problem: str) -> Content:
    """Return the content with other states of its cells and a problem; tables and figures stay."""
    grids = [replace(grid, states=_counts(s for s in states if s.entry.grid == grid.name)) for grid in content.grids]
    return replace(
        content,
        made=time.time(),
        states=_of_cells(states),
        grids=tuple(grid for grid in grids if grid.cells),
        cells=[row(state) for state in states],
        problem=problem,
    )


def _of_cells(states: Sequence[CellStatus]) -> dict[str, int]:
    """Return how many cells are in each state; a cell that several grids share counts once."""
    return _counts({state.entry.key: state for state in states}.values())


def _counts(states: Iterable[CellStatus]) -> dict[str, int]:
    found = Counter(state.state for state in states)
    return {name: found[name] for name in STATES if found[name]}


def _section(
    name: str, experiments: Experiments, known: Recorded, states: Sequence[CellStatus], limits: Limits
) -> GridSection:
    own = [state for state in states if state.entry.grid == name]
    entries = [state.entry for state in own]
    grid = experiments.grids.get(name)
    title = grid.title if grid and grid.title else name
    spec = grid.table_spec if grid else TableSpec(title=title)
    section = GridSection(
        name, title, _counts(own), tuple(grid_charts(known, entries, spec, limits)), captioned=spec.title != title
    )
    try:
        return replace(section, table=render(build(entries, known.states, known.results, spec), "html"))
    except GpasError as error:
        return replace(section, problem=str(error))


def _not_drawn(sections: Sequence[GridSection], limits: Limits) -> list[str]:
    large = [section for section in sections if section.cells > limits.drawn_cells]
    return [f"the curves of all but the first {limits.drawn_cells:,} cells of {section.name}" for section in large]


def _details(
    states: Sequence[CellStatus], known: Recorded, log_tail: LogTail, limits: Limits
) -> tuple[dict[str, Any], list[str]]:
    """Return the details of the cells by id, those that need attention first, and what does not fit."""
    found: dict[str, Any] = {}
    space = limits.log_bytes
    without_log = 0
    started = sorted((s for s in states if s.state != "missing"), key=lambda state: _URGENT.index(state.state))
    for state in started[: limits.details]:
        log = [text[: limits.log_characters] for text in log_tail(state.entry, limits.log_lines)] if space > 0 else []
        without_log += space <= 0
        space -= sum(map(len, log))
        found[state.entry.id] = details(state, known.engine, log)
    left_out = {"details of": len(started) - len(found) if limits.details else 0, "the logs of": without_log}
    return found, [f"{what} {count(number, 'cell')}" for what, number in left_out.items() if number]
