"""What the report page shows of some cells, as data."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpas_cli.errors import GpasError
from gpas_cli.grid.declared import TableSpec
from gpas_cli.report.page.cells import DetailLimits, LogTail, details, row
from gpas_cli.report.render import render
from gpas_cli.report.table import build
from gpas_cli.words import count

if TYPE_CHECKING:
    from gpas_cli.grid.declared import Grid
    from gpas_cli.report.recorded import Recorded
    from gpas_cli.state.status import CellStatus

# The states in the order in which the page shows them.
STATES = ("done", "diverged", "running", "queued", "interrupted", "failed", "cancelled", "unknown", "missing")
# Whose logs are kept first where not all of them fit.
_URGENT = ("failed", "unknown", "running", "interrupted", "diverged", "queued", "cancelled", "done", "missing")


@dataclass(frozen=True)
class GridSection:
    """One grid: its table as HTML, or why there is none (`problem`), and its figures."""

    name: str
    title: str
    states: Mapping[str, int]
    charts: Sequence[Mapping[str, Any]] = ()
    table: str = ""
    problem: str = ""

    @property
    def anchor(self) -> str:
        """The id of the section. Names of grids have only letters, digits, dots, dashes and underscores."""
        return f"grid-{self.name}"

    @property
    def cells(self) -> int:
        return sum(self.states.values())


@dataclass(frozen=True)
class Content:
    """Everything on the page. `details` are by cell id; `left_out` says what did not fit."""

    title: str
    made: float
    version: str
    states: Mapping[str, int]
    grids: tuple[GridSection, ...]
    cells: Sequence[Mapping[str, Any]]
    details: Mapping[str, Any]
    problem: str = ""
    left_out: tuple[str, ...] = ()


def collect(
    title: str,
    version: str,
    known: Recorded,
    states: Sequence[CellStatus],
    grids: Mapping[str, Grid],
    log_tail: LogTail,
    limits: DetailLimits = DetailLimits(),  # noqa: B008
) -> Content:
    """Return the content of the page about cells with these states, which `known` covers."""
    names = dict.fromkeys(state.entry.grid for state in states)
    shown, left_out = _details(states, known, log_tail, limits)
    return Content(
        title=title,
        made=time.time(),
        version=version,
        states=_of_cells(states),
        grids=tuple(_section(name, grids.get(name), known, states) for name in names),
        cells=[row(state) for state in states],
        details=shown,
        problem=known.problem,
        left_out=left_out,
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


def _section(name: str, grid: Grid | None, known: Recorded, states: Sequence[CellStatus]) -> GridSection:
    own = [state for state in states if state.entry.grid == name]
    spec = (grid.table if grid else None) or TableSpec(title=(grid.title if grid else "") or name)
    title = (grid.title if grid else "") or spec.title or name
    try:
        made = build([state.entry for state in own], known.states, known.results, spec)
    except GpasError as error:
        return GridSection(name, title, _counts(own), problem=str(error))
    return GridSection(name, title, _counts(own), table=render(made, "html"))


def _details(
    states: Sequence[CellStatus], known: Recorded, log_tail: LogTail, limits: DetailLimits
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the details of the cells by id, those that need attention first, and what does not fit."""
    found: dict[str, Any] = {}
    space = limits.log_bytes
    started = [state for state in states if state.state != "missing"]
    for state in sorted(started, key=lambda state: _URGENT.index(state.state))[: limits.cells]:
        log = [text[: limits.log_characters] for text in log_tail(state.entry, limits.log_lines)] if space > 0 else []
        space -= sum(map(len, log))
        found[state.entry.id] = details(state, known.engine, log)
    left_out = []
    if len(started) > len(found):
        left_out.append(f"details of {count(len(started) - len(found), 'cell')}")
    return found, tuple(left_out)
