"""`gpas status`: a summary of each grid, then the states of cells and the evidence for them."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from gpas_cli.cli.console import console, print_json, say, warn
from gpas_cli.cli.options import AsJson, NamesAndSettings, Where, offer_list
from gpas_cli.cli.selection import (
    experiments,
    observed,
    only_started,
    project,
    trunks_among,
    undeclared_cells,
    without_runs,
)
from gpas_cli.cli.views.states import (
    CellStatusJson,
    GridSummaryJson,
    cell_json,
    cell_table,
    ends,
    grid_table,
    grids_json,
    once,
    totals,
)
from gpas_cli.errors import GpasError, nearest
from gpas_cli.grid.declared import counted
from gpas_cli.state.status import ALIVE, CellStatus, by_run
from gpas_cli.structure import Document, DocumentJson, Frozen, StateJson
from gpas_cli.words import count, verb

if TYPE_CHECKING:  # the estimates and the tokenising, which take longer to import than most projects to list
    from gpas_cli.plan.texts import Awaited
    from gpas_cli.plan.usage import GridUsage, UsageMeter

_LISTED_WHOLE = 200  # cells of a single grid up to which `gpas status` without names lists all
_LISTED = 20  # cells that `gpas status` without names lists, unless --limit is given
_LIVELY = ("running", "queued", "failed", "unknown", "interrupted", "cancelled")  # states of the cells that it lists
_OTHER_LINES = 10  # of `gpas status` on a screen: headings, blank lines, totals, the prompt
_REFRESH_SECONDS = 2.0  # of --watch
_LEAST = 3  # cells that are listed even on a small screen

# The states in the order in which cells are listed: what needs attention comes first.
ORDER = ("running", "failed", "unknown", "interrupted", "cancelled", "queued", "diverged", "missing", "done")


def _by_name(cell: CellStatus) -> list[Any]:
    """Return a sort key that compares numbers in names by value: s2 comes before s10."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", cell.entry.id)]


def _by_perplexity(cell: CellStatus) -> float:
    value = float(cell.metrics.get("perplexity", math.inf))
    return math.inf if math.isnan(value) else value


_SORTS: dict[str, Callable[[CellStatus], Any]] = {
    "state": lambda cell: ORDER.index(cell.state),
    "name": _by_name,
    "age": lambda cell: math.inf if cell.age is None else cell.age,
    "perplexity": _by_perplexity,
}


class _TotalJson(Document):
    """All grids together."""

    cells: Annotated[int, "different cells"]
    rows: Annotated[int, "cells of each grid, added up: a cell that two grids have counts twice"]
    states: Mapping[str, int]


class _TextJson(Document):
    """A corpus that a job tokenises, and that cells wait for."""

    name: str
    key: str
    state: StateJson
    fraction: float | None
    evidence: str
    cause: str | None
    job: str | None
    directory: Path | None


class StatusJson(DocumentJson):
    """`gpas status --json`. Without names, `cells` has the cells of started grids, else of the default grid."""

    grids: Sequence[GridSummaryJson]
    total: _TotalJson
    cells: Sequence[CellStatusJson]
    texts: Sequence[_TextJson]


def status(
    names: NamesAndSettings = None,
    where: Where = None,
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            metavar="STATE,...",
            help="Only cells in these states, e.g. running,failed.",
            autocompletion=offer_list(ORDER),
        ),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(
            "--sort", metavar="KEY", help=f"List cells by {', '.join(_SORTS)}.", autocompletion=offer_list(_SORTS)
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=0, help="List at most this many cells.")] = None,
    watching: Annotated[
        bool, typer.Option("--watch", help="Show speeds, the queue, hours and the ETA, refreshed until Ctrl-C.")
    ] = False,
    usage: Annotated[bool, typer.Option("--usage", help="What SLURM jobs asked for, and what they used.")] = False,
    every: Annotated[bool, typer.Option("--all", help="List every cell of every grid.")] = False,
    recorded: Annotated[
        bool, typer.Option("--undeclared", help="List the cells in runs/ that no grid declares any more.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the state of every cell; --watch follows them.

    A cell is missing, queued, running, interrupted, done, diverged, failed, cancelled or unknown.

    Without names, prints a summary of every grid that has been started and the cells that are running, queued or
    failed. With names or --all, lists every cell. Changes nothing.

    With --watch, shows what runs where and how fast, what waits and at which position, the hours used so far and the
    ETA, on this machine and on SLURM: until Ctrl-C on a terminal, else once. With --usage, shows what ended SLURM jobs
    asked for and used, according to SLURM's accounting.

    Example: gpas status quickstart --where gate=gpas --sort perplexity

    Example: gpas status table2 --watch
    """
    states = [part.strip() for part in state.split(",")] if state else []
    if unknown := next((one for one in states if one not in ORDER), None):
        raise GpasError(f"--state: no state '{unknown}'; {nearest(unknown, ORDER)}")
    if sort is not None and sort not in _SORTS:
        raise GpasError(f"--sort: cells cannot be sorted by '{sort}'; {nearest(sort, _SORTS)}")
    if watching and (states or sort or limit):
        raise GpasError("--watch shows what runs and what waits, without --state, --sort and --limit")
    brief = not (names or every) and len(experiments().grids) > 1
    view = View(brief, states, sort, limit, narrowed=bool(state or where))
    if recorded:
        _show_undeclared(replace(view, brief=False), as_json)
    elif usage:
        _show_usage(observed(names, where), as_json)
    elif as_json:
        print_json(view.document(observed(names, where, jobs=True, started=False)))
    elif watching:
        _watch_activity(lambda: observed(names, where, jobs=True))
    else:
        cells = observed(names, where, jobs=True, started=False)
        warn(without_runs([cell.entry for cell in cells]))
        view = replace(view, brief=brief or (len(cells) > _LISTED_WHOLE and not (names or every)))
        for part in view.parts(cells):
            say(part)
        _remark_undeclared(cells, everywhere=not names)


def _show_usage(states: Sequence[CellStatus], as_json: bool) -> None:
    from gpas_cli.cli.views.activity import UsageJson, profile_table
    from gpas_cli.schedule.scheduler import used_by_profile

    keys = {stage.key for state in states for stage in state.entry.cell.stages}
    profiles = used_by_profile(project().runs, keys)
    print_json(UsageJson(profiles=profiles)) if as_json else say(profile_table(profiles))


def _watch_activity(observe: Callable[[], Sequence[CellStatus]]) -> None:
    from gpas_cli.cli.views.activity import activity_view

    def drawn(height: int) -> RenderableType:
        return activity_view(_meter(project().runs).activity(observe()), height)

    if not console().is_terminal:
        say(drawn(10**6))
        return
    with Live(console=console(), screen=True, auto_refresh=False) as live, suppress(KeyboardInterrupt):
        while True:
            live.update(drawn(console().height), refresh=True)
            time.sleep(_REFRESH_SECONDS)


def _rest(hidden: Sequence[CellStatus]) -> str:
    """Return the line about cells that are not listed: "and 12 more: 10 queued, 2 failed"."""
    counts = Counter(cell.state for cell in hidden)
    parts = ", ".join(f"{counts[state]:,} {state}" for state in ORDER if counts[state])
    return f"and {len(hidden):,} more: {parts}"


def _remark_undeclared(cells: Sequence[CellStatus], *, everywhere: bool) -> None:
    """Print how many cells no grid declares, because no other command shows them.

    They are those that are running or queued, of the grids of `cells` or `everywhere`, and those that have run for a
    grid of which `cells` has missing ones, because its settings may have changed.
    """
    grids = {cell.entry.grid for cell in cells}
    changed = {cell.entry.grid for cell in cells if cell.state == "missing"}
    found = undeclared_cells([cell.entry for cell in cells], claimed=not changed)
    trunks = trunks_among(found)
    if working := [one for one in trunks if one.state in ALIVE]:
        say(Text.from_markup(f"trunks from which cells start: {totals(working)}; `gpas plan` draws them"))
    found = [one for one in found if one not in trunks]
    lively = [one for one in found if one.state in ALIVE and (everywhere or one.entry.grid in grids)]
    ended = [one for one in found if one.state not in (*ALIVE, "missing") and one.entry.grid in changed]
    if shown := [*lively, *ended]:
        remark = f"{count(len(shown), 'cell')} that no grid declares: {totals(shown)}"
        cancel = ", `gpas cancel KEY` cancels one" if lively else ""
        say(Text.from_markup(f"{remark}; `gpas status --undeclared` lists them{cancel}"))


def _show_undeclared(view: View, as_json: bool) -> None:
    states = undeclared_cells()
    if as_json:
        print_json(view.document(states))
        return
    fitting = view.fitting(states)
    shown = fitting[: view.limit]
    if shown:
        say(cell_table(shown))
    if len(fitting) > len(shown):
        say(_rest(fitting[len(shown) :]), style="dim")
    total = f"[bold]{count(len(states), 'cell')}[/bold] in runs/ that no grid declares: {totals(states)}"
    say(Text.from_markup(total))
    if states:
        say("`gpas why KEY`, `gpas logs KEY`, `gpas export KEY` and `gpas cancel KEY` accept their keys")


class View(Frozen):
    """What to show of the observed cells: those in `states`, sorted by `sort`, at most `limit`; by default all, in
    declared order."""

    brief: bool  # no grid was named, so only the cells that need attention are listed
    states: Sequence[str] = ()
    sort: str | None = None
    limit: int | None = None
    narrowed: bool = False  # --where or --state was given

    def fitting(self, cells: Sequence[CellStatus]) -> list[CellStatus]:
        """Return all cells in the selected states, in order, without the limit."""
        fitting = [cell for cell in cells if not self.states or cell.state in self.states]
        return sorted(fitting, key=_SORTS[self.sort]) if self.sort else fitting

    def parts(self, states: Sequence[CellStatus]) -> Iterator[RenderableType]:
        """Yield a summary of each grid, the cells, the number of cells not listed, and the totals.

        Without a choice of grids or cells, these are the started grids, in as many lines as a terminal has.
        """
        every, states = states, self._observed(states)
        grids = len({state.entry.grid for state in states})
        several = grids > 1
        on_terminal = console().is_terminal
        if several:
            yield grid_table(states, _ends(states))
            yield Text("")
        listed = self._picked(states)
        usual = max(_LEAST, console().height - grids - _OTHER_LINES) if on_terminal else _LISTED
        shown = listed[: usual if self.limit is None and self.brief else self.limit]
        if self.brief or self.sort:
            none = f"no cell is {' or '.join(self.states)}" if self.states else "nothing is running or needs attention"
            wrapped = not (self.brief and on_terminal)
            yield cell_table(shown, wrapped=wrapped) if shown else Text(none, style="dim")
            yield Text("")
        else:
            for name in dict.fromkeys(state.entry.grid for state in shown):
                yield cell_table([state for state in shown if state.entry.grid == name], title=name)
        if len(listed) > len(shown):
            yield Text(_rest(listed[len(shown) :]), style="dim")
        yield from map(Text, _text_lines(states))
        end = "" if several else _ends(states).get(states[0].entry.grid, "")
        cells = counted(state.entry for state in states)
        yield Text.from_markup(f"[bold]{cells}[/bold]: {totals(states)}{end and f'; ends about {end}'}")
        if self.brief:
            how = "`gpas status GRID` lists the cells of a grid" if several else "`gpas status --all` lists every cell"
            yield Text(how, style="dim")
        if hidden := len({state.entry.grid for state in every}) - grids:
            remark = f"{count(hidden, 'more grid')} {verb(hidden, 'has no run of its', 'have no runs of their')} own"
            yield Text(f"{remark}: `gpas status --all`", style="dim")

    def document(self, states: Sequence[CellStatus]) -> StatusJson:
        """Return the document `Status`: all grids and, unless cells were selected, the cells of started grids."""
        cells = self.fitting(self._observed(states))[: self.limit]
        every = once(states)
        total = _TotalJson(cells=len(every), rows=len(states), states=Counter(state.state for state in every))
        return StatusJson(
            grids=grids_json(states, _uses(states)),
            total=total,
            cells=list(map(cell_json, cells)),
            texts=list(map(_text_json, _texts(states))),
        )

    def _observed(self, states: Sequence[CellStatus]) -> Sequence[CellStatus]:
        """Return the states to show: without a choice of grids or cells, the states of started grids."""
        return only_started(states) if self.brief and not self.narrowed else states

    def _picked(self, states: Sequence[CellStatus]) -> list[CellStatus]:
        """Return the cells to list; each run once if they are not grouped by grid."""
        usual = (_LIVELY, "state") if self.brief else ((), None)
        wanted = replace(self, states=self.states or usual[0], sort=self.sort or usual[1])
        if not wanted.sort:
            return wanted.fitting(states)
        return wanted.fitting(once(by_run(states) if self.brief else states))


@cache
def _meter(runs: Path) -> UsageMeter:
    """Return the meter of a project, which remembers what has ended."""
    from gpas_cli.plan.usage import UsageMeter

    return UsageMeter(runs)


def _uses(states: Sequence[CellStatus]) -> dict[str, GridUsage]:
    """Return the resource usage, with the ETA, of each grid that has running cells."""
    lively = {state.entry.grid for state in states if state.state == "running"}
    if not lively:
        return {}
    activity = _meter(project().runs).activity([state for state in states if state.entry.grid in lively])
    return {use.grid: use for use in activity.grids}


def _ends(states: Sequence[CellStatus]) -> dict[str, str]:
    return {name: ends(use) for name, use in _uses(states).items()}


def _text_json(text: Awaited) -> _TextJson:
    status = text.status
    return _TextJson(
        name=text.name, key=text.key, state=status.state, fraction=status.fraction, evidence=status.evidence,
        cause=status.cause or None, job=status.job.id if status.job else None, directory=status.directory,
    )  # fmt: skip


def _texts(states: Sequence[CellStatus]) -> list[Awaited]:
    """Return the corpora that cells wait for."""
    if not any(state.claim for state in states):
        return []
    from gpas_cli.plan.texts import awaited

    return list(awaited(project().runs, states))


def _text_lines(states: Sequence[CellStatus]) -> list[str]:
    if not (seen := [(text.name, text.status) for text in _texts(states)]):
        return []
    from gpas_cli.plan.texts import how_far

    return [f"tokenising {name}: {how_far(status)}; {status.job or status.evidence}" for name, status in seen]
