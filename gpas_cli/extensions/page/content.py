"""What the report page shows of some cells, as data.

Claims are the documents of `gpas claims --json`, and texts made from them.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Engine

from gpas_cli import __version__
from gpas_cli.errors import GpasError
from gpas_cli.extensions.claims.declared import select_claims
from gpas_cli.extensions.claims.evaluate import evaluate
from gpas_cli.extensions.claims.verdict import WORDS, ClaimJson, ClaimPartJson, claim_json
from gpas_cli.extensions.page.charts import Limits, grid_charts, paper_charts
from gpas_cli.grid.declared import Entry, Experiments, TableSpec
from gpas_cli.grid.packs import known_packs
from gpas_cli.report import query
from gpas_cli.report.papers import numbers, title_of
from gpas_cli.report.papers.printed import printed
from gpas_cli.report.recorded import Recorded
from gpas_cli.report.tables.cell_text import sheet
from gpas_cli.report.tables.grid_table import build
from gpas_cli.report.tables.paper_table import is_published_beside, paper_table, serving
from gpas_cli.report.tables.render import to_html
from gpas_cli.report.tables.table import Table
from gpas_cli.spec.extensions import main_result
from gpas_cli.spec.parse import flat
from gpas_cli.state.status import RESULTS, CellStatus
from gpas_cli.structure import Frozen
from gpas_cli.words import count, listed, significant

# The states in the order in which the page shows them.
_STATES = ("done", "diverged", "running", "queued", "interrupted", "failed", "cancelled", "unknown", "missing")
# The states whose details are kept first where not all fit.
_URGENT = ("failed", "unknown", "running", "interrupted", "diverged", "queued", "cancelled", "done", "missing")

_LogTail = Callable[["Entry", int], Sequence[str]]  # the last lines of a cell's log

# Columns of an attempt that the page shows for every attempt, and only for the latest.
_FACTS = (
    *("number", "outcome", "cause", "host", "device", "gpu", "precision", "last_step", "started", "ended"),
    *("code", "git_commit", "git_dirty"),
)
_LATEST = ("directory", "executor", "threads", "parameters", "resumed_from", "fingerprint", "validation_fingerprint")
_DRAWING_WIDTH = 180.0  # of an interval, in its own units
_DRAWING_MARGIN = 0.08  # a fraction of the range of values, on both sides


class _GridSection(Frozen):
    """One grid: its table, or why there is none (`problem`), and its figures.

    captioned: the caption of the table says more than the title.
    """

    name: str
    title: str
    states: Mapping[str, int]
    charts: Sequence[Mapping[str, Any]] = ()
    table: _TableView | None = None
    problem: str = ""
    captioned: bool = True

    @property
    def anchor(self) -> str:
        """The id of the section. Names of grids have only letters, digits and . _ + -"""
        return f"grid-{self.name}"

    @property
    def cells(self) -> int:
        return sum(self.states.values())


class Content(Frozen):
    """Everything on the page."""

    title: str
    made: float  # unix time
    states: Mapping[str, int]
    grids: tuple[_GridSection, ...] = ()
    claims: Sequence[ClaimJson] = ()
    paper_tables: Sequence[_TableView] = ()  # the papers'
    figures: Sequence[Mapping[str, Any]] = ()  # the papers'
    cells: Sequence[Mapping[str, Any]] = ()
    details: Mapping[str, Any] | None = None  # by cell id
    activity: str = ""  # hours used and the expected end, in a sentence
    problem: str = ""
    left_out: tuple[str, ...] = ()  # what does not fit
    version: str = __version__


def collect(
    experiments: Experiments, known: Recorded, states: Sequence[CellStatus], log_tail: _LogTail, limits: Limits
) -> Content:
    """Return the content of the page about cells with these states, which `known` covers."""
    names = list(dict.fromkeys(state.entry.grid for state in states))
    shown, left_out = _details(states, known, log_tail, limits)
    sections = tuple(_section(name, experiments, known, states, limits) for name in names)
    not_drawn = [
        f"the curves of all but the first {limits.drawn_cells:,} cells of {section.name}"
        for section in sections
        if section.cells > limits.drawn_cells
    ]
    return Content(
        title=sections[0].title if len(sections) == 1 else f"Results of {experiments.path.parent.name}",
        made=time.time(),
        states=_counts({state.entry.key: state for state in states}.values()),  # a cell of several grids counts once
        grids=sections,
        claims=tuple(claims_of(experiments, known, names)),
        paper_tables=tuple(paper_tables(experiments, known, names)),
        figures=tuple(paper_charts(experiments, known, names, limits)),
        cells=[row(state) for state in states],
        details=shown,
        problem=known.problem,
        left_out=(*left_out, *not_drawn),
    )


def _counts(states: Iterable[CellStatus]) -> dict[str, int]:
    """Return how many cells are in each state."""
    found = Counter(state.state for state in states)
    return {name: found[name] for name in _STATES if found[name]}


def _section(
    name: str, experiments: Experiments, known: Recorded, states: Sequence[CellStatus], limits: Limits
) -> _GridSection:
    own = [state for state in states if state.entry.grid == name]
    entries = [state.entry for state in own]
    grid = experiments.grids.get(name)
    title = grid.title if grid and grid.title else name
    spec = grid.table_spec if grid else TableSpec(title=title)
    section = _GridSection(
        name, title, _counts(own), tuple(grid_charts(known, entries, spec, limits)), captioned=spec.title != title
    )
    try:
        made = build(entries, known.states, known.results, spec)
        return replace(section, table=_view(made, spec.title, f"gpas table {name}{' --paper' * bool(spec.published)}"))
    except GpasError as error:
        return replace(section, problem=str(error))


def _details(
    states: Sequence[CellStatus], known: Recorded, log_tail: _LogTail, limits: Limits
) -> tuple[dict[str, Any], list[str]]:
    """Return the details of the cells by id, those that need attention first, and what does not fit."""
    found: dict[str, Any] = {}
    started = sorted((s for s in states if s.state != "missing"), key=lambda state: _URGENT.index(state.state))
    for state in started[: limits.details]:
        log = [text[: limits.log_characters] for text in log_tail(state.entry, limits.log_lines)]
        found[state.entry.id] = details(state, known.engine, log)
    left_out = len(started) - len(found) if limits.details else 0
    return found, [f"details of {count(left_out, 'cell')}"] * bool(left_out)


def row(state: CellStatus) -> dict[str, Any]:
    """Return one line of the list of cells. `since`: the unix time of the newest evidence."""
    entry, progress = state.entry, state.progress
    result: dict[str, Any] = {"result": None}
    if found := main_result(state.metrics):
        metric, value = found
        result = {"result": value, "digits": metric.digits, "metric": metric.words}
    evidence = state.evidence  # without its age
    if state.source == "outcome":
        evidence = "finished" if state.state in RESULTS else "ended"
    return {
        "id": entry.id,
        "grid": entry.grid,
        "key": entry.key,
        "axes": dict(entry.axes),
        "state": state.state,
        "stage": state.stage,
        "evidence": evidence,
        "cause": state.cause,
        "since": None if state.age is None else round(time.time() - state.age),
        "attempt": state.attempt,
        "fraction": state.fraction,
        "step": progress.step if progress else None,
        "steps": progress.steps if progress else None,
        "eta": progress.eta if progress and state.state == "running" else None,
        **result,
    }


def details(state: CellStatus, engine: Engine | None, log: Sequence[str]) -> dict[str, Any]:
    """Return what is shown when a cell is opened."""
    entry = state.entry
    stages = [(stage.kind, stage.key) for stage in entry.cell.stages]
    rows = [(kind, row) for kind, key in stages for row in (query.attempts(engine, key) if engine else [])]
    attempts = []
    for kind, row in rows:
        gone = {"gone": True} if row["gone"] is not None else {}
        attempts.append({"stage": kind, **_present(row, _FACTS), **gone, "environment": row["environment"] or {}})
    return {
        "stages": stages,
        "settings": flat(entry.cell.settings),
        "notes": [*entry.notes, *(f"tag: {tag}" for tag in entry.tags)],
        "metrics": dict(state.metrics),
        "attempts": attempts,
        "latest": _present(rows[-1][1], _LATEST) if rows else {},
        "log": list(log),
    }


def _present(row: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the columns that have a value."""
    return {name: row[name] for name in names if row[name] not in (None, "", False)}


class _TableView(Frozen):
    """A table with our numbers. `html` is the table without its notes; `command` prints it."""

    title: str
    html: str
    notes: tuple[str, ...]
    command: str


def _view(made: Table, title: str, command: str) -> _TableView:
    drawn = sheet(made)
    notes = tuple(note.sentence for note in drawn.notes)
    return _TableView(title, to_html(replace(drawn, notes=())), notes, command)


def paper_tables(experiments: Experiments, known: Recorded, names: Sequence[str]) -> Iterator[_TableView]:
    """Yield the papers' tables in which a cell of the grids `names` has a number.

    A grid is considered for the published tables that it names, so that other grids cost nothing.
    """
    grids = {name: experiments.grids[name] for name in names if name in experiments.grids}
    cells = {name: (grid, [entry for entry in known.entries if entry.grid == name]) for name, grid in grids.items()}
    packs = experiments.packs.values()
    parts = [part for pack in packs for number in numbers(pack) for part in printed(pack, number)]
    for part in (part for part in parts if part.tables):
        own = {name: one for name, one in cells.items() if is_published_beside(one[0], part)}
        served = serving(part, own) if own else None
        if served and any(stage.key in known.results for one in served.entries for stage in one.cell.stages):
            made = paper_table(served, known.states, known.results, declared=True)
            yield _view(made, part.spec.title, f"gpas table {part.printed}")


def claims_of(experiments: Experiments, known: Recorded, grids: Sequence[str]) -> Iterator[ClaimJson]:
    """Yield the claims about only these grids, whose cells `known` covers."""
    for claim in select_claims(experiments, grids=grids) if grids else ():
        if set(claim.grids) & set(experiments.grids) <= set(grids):
            yield claim_json(evaluate(claim, known))


def _numbered(claims: Sequence[ClaimJson], wanted: bool = True) -> list[ClaimJson]:
    """Return the claims with a number, or those without one."""
    return [claim for claim in claims if any(part.n for part in claim.parts) is wanted]


def _source(claim: ClaimJson) -> str:
    source = claim.source
    paper = title_of(source.paper, known_packs()) if source.paper else "experiments.yaml"
    return f"{paper}, {source.where}" if source.where else paper


def _remarks(claim: ClaimJson) -> list[str]:
    """Return what is said about a whole claim: the claimed range if its parts share it, their verdicts, a reason."""
    counts = Counter(part.verdict for part in claim.parts)
    verdicts = [f"{counts[word]} of {len(claim.parts)} parts {word}"
                for word in WORDS if counts[word]]  # fmt: skip
    several = len(claim.parts) > 1
    return [text for text in (_common_range(claim), ", ".join(verdicts) if several else "", claim.reason) if text]


def _part_remarks(part: ClaimPartJson, claim: ClaimJson) -> list[str]:
    further = part.needed if part.verdict == "undecided" else None
    remark = part.reason or (f"about {count(further, 'more seed')} would decide" if further else "")
    return [text for text in ("" if _common_range(claim) else _claimed(part), remark) if text]


def _common_range(claim: ClaimJson) -> str:
    ranges = {_claimed(part) for part in claim.parts}
    return ranges.pop() if len(ranges) == 1 else ""


def _missing(claim: ClaimJson) -> str:
    names = list(dict.fromkeys(one.cell for one in claim.missing))
    return f"{count(len(names), 'cell')} without this number: {listed(names)}" if names else ""


def _claimed(part: ClaimPartJson) -> str:
    """Return the claimed range in words: "perplexity, difference below 0"."""
    low, high = part.low, part.high
    if low is None:
        return f"{part.value}, {part.compare} below {high:g}"
    return f"{part.value}, {part.compare} {f'above {low:g}' if high is None else f'between {low:g} and {high:g}'}"


def _effect(part: ClaimPartJson) -> str:
    ends = part.interval
    return _short(part.effect) + (f" [{_short(ends[0])}, {_short(ends[1])}]" if ends else "")


def _short(value: float | None) -> str:
    return "" if value is None else significant(value, 3).replace("-", "\N{MINUS SIGN}")


class _Drawing(Frozen):
    """Positions from 0 to `width`: the claimed range, the effect, its interval, and the published effect."""

    claimed: tuple[float, float]
    effect: float
    interval: tuple[float, float] | None
    published: float | None
    width: float = _DRAWING_WIDTH


def _drawing(part: ClaimPartJson, claim: ClaimJson) -> _Drawing | None:
    """Return the drawing of a part, on one scale with the parts that compare the same number; None without a number."""
    if part.effect is None or not math.isfinite(part.effect):
        return None
    alike = [one for one in claim.parts if (one.compare, one.value) == (part.compare, part.value)]
    shown: list[float] = [value for one in alike for value in (one.low, one.high, one.effect, one.published,
             *(one.interval or ())) if value is not None and math.isfinite(value)]  # fmt: skip
    margin = (max(shown) - min(shown) or 1.0) * _DRAWING_MARGIN
    first, last = min(shown) - margin, max(shown) + margin

    def place(value: float) -> float:
        return round(_DRAWING_WIDTH * (min(max(value, first), last) - first) / (last - first), 1)

    low, high, ends, published = part.low, part.high, part.interval, part.published
    return _Drawing(
        claimed=(place(first if low is None else low), place(last if high is None else high)),
        effect=place(part.effect),
        interval=(place(ends[0]), place(ends[1])) if ends else None,
        published=None if published is None else place(published),
    )


_FUNCTIONS = (_numbered, _source, _remarks, _part_remarks, _missing, _effect, _short, _drawing)
FILTERS: dict[str, Callable[..., Any]] = {function.__name__[1:]: function for function in _FUNCTIONS}
