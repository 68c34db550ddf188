"""`gpas status`: the state of every cell, with the evidence it was concluded from."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpas_cli.cli.console import AsJson, Names, Where, console, entries, experiments, json_number, print_json, project
from gpas_cli.cli.live import spike_mark

if TYPE_CHECKING:
    from rich.console import RenderableType

    from gpas_cli.cli.columns import Cell
    from gpas_cli.launch.room import Meter
    from gpas_cli.launch.slurm.jobs import Job
    from gpas_cli.launch.text import Awaited
    from gpas_cli.launch.watch import CellState

REFRESH_SECONDS = 2.0
WATCHED = ("running", "queued", "failed", "unknown", "interrupted", "cancelled", "diverged", "missing", "done")
COLOURS = {
    "done": "green", "running": "cyan", "queued": "blue", "interrupted": "yellow", "diverged": "magenta",
    "failed": "red", "cancelled": "yellow", "unknown": "red", "missing": "dim",
}  # fmt: skip


def status(
    names: Names = None,
    where: Where = None,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until Ctrl-C.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Every grid, also those never started.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show cells as missing, queued, running, interrupted, done, diverged, failed, cancelled or unknown.

    Without names: the default grid and every grid that has been started. Only reads; nothing is changed.

    Example: [bold]gpas status quickstart --where gate=gpas --watch[/bold]
    """
    if watch and not as_json:
        _watch(names, where, every)
        return
    states = observed(names, where, every, jobs=as_json)
    if as_json:
        texts = [_text_as_mapping(text) for text in _texts(states)]
        print_json(cells=[as_mapping(state) for state in states], texts=texts)
    else:
        console().print(render(states))
        for line in _text_lines(states):
            console().print(line, markup=False)


def observed(
    names: Sequence[str] | None, where: Sequence[str] | None, every: bool = False, *, jobs: bool = False
) -> list[CellState]:
    """The states of the cells that are meant: of the grids named, else of the default and every grid started.

    `where` does not change which grids count as started; where none of their cells matches, those of all grids count.
    """
    from gpas_cli.grid.select import select
    from gpas_cli.launch.watch import look

    if names or every:
        return look(project().runs, entries(names or list(experiments().grids), where), jobs=jobs)
    everything = look(project().runs, entries(list(experiments().grids)), jobs=jobs)
    started = {state.entry.grid for state in everything if state.state != "missing"} | {experiments().default}
    matching = {id(entry) for entry in select([state.entry for state in everything], where or [])}
    chosen = [state for state in everything if id(state.entry) in matching]
    return [state for state in chosen if state.entry.grid in started] or chosen


def _watch(names: Sequence[str] | None, where: Sequence[str] | None, every: bool) -> None:
    from rich.live import Live

    from gpas_cli.launch.room import Meter

    meter = Meter(project().runs)
    with Live(console=console(), screen=False, auto_refresh=False) as live:
        try:
            while True:
                live.update(_view(observed(names, where, every, jobs=True), meter), refresh=True)
                time.sleep(REFRESH_SECONDS)
        except KeyboardInterrupt:
            return


def _view(states: Sequence[CellState], meter: Meter) -> RenderableType:
    """Totals first, then what is going on: a short terminal cuts the quiet cells off."""
    from rich.console import Group
    from rich.text import Text

    lively = sorted(states, key=lambda state: WATCHED.index(state.state))
    parts = (Text.from_markup(totals(states)), *map(Text, _text_lines(states)), *_grid_tables(lively, meter))
    return Group(*parts)


def _texts(states: Sequence[CellState]) -> list[Awaited]:
    """The corpora that cells wait for."""
    from gpas_cli.launch.text import awaited

    return list(awaited(project().runs, states))


def _text_lines(states: Sequence[CellState]) -> list[str]:
    from gpas_cli.launch.text import how_far

    seen = [(text.name, text.sighting) for text in _texts(states)]
    return [f"tokenising {name}: {how_far(sighting)}; {sighting.job or sighting.evidence}" for name, sighting in seen]


def _text_as_mapping(text: Awaited) -> dict[str, Any]:
    seen = text.sighting
    return {
        "name": text.name, "key": text.key, "state": seen.state, "fraction": seen.fraction, "evidence": seen.evidence,
        "cause": seen.cause or None, "job": seen.job.id if seen.job else None,
        "directory": str(seen.directory) if seen.directory else None,
    }  # fmt: skip


def _doing(state: CellState, meter: Meter) -> str:
    """Loss, time left, GPU-hours so far and node of what runs; when and why not yet, of what SLURM has queued."""
    parts, seen, job = [], state.progress, state.job
    if state.state == "running" and seen:
        parts += [f"loss {seen.loss:.3f}"] if seen.loss is not None else [seen.phase] if seen.phase else []
        parts += [f"{span(seen.eta)} left"] if seen.eta is not None else []
        parts += [f"{spent.gpu_hours:.2f} GPU-hours"] if (spent := meter.spent(state)).gpu_hours else []
    if state.state == "running" and job:
        parts += [f"on {job.nodes}"] if job.nodes else []
    if state.state == "queued" and job:
        parts += [job.in_line] if job.in_line else []
        parts += [f"starts about {begins}"] if (begins := starts(job)) else []
        parts += [job.held or job.reason] if job.reason not in ("", "None") else []
    return ", ".join(parts)


def starts(job: Job) -> str:
    """When SLURM expects to start a job, "" when it does not say."""
    return time.strftime("%d %b %H:%M", time.localtime(job.start)) if job.start else ""


def as_mapping(state: CellState) -> dict[str, Any]:
    """A cell's state for `--json`; numbers that JSON cannot hold are written as words."""
    entry, progress = state.entry, state.progress
    return {
        "key": entry.cell.key, "name": entry.name, "grid": entry.grid, "axes": dict(entry.axes),
        "state": state.state, "outcome": state.outcome or None, "stage": state.stage, "evidence": state.evidence,
        "age": state.age, "cause": state.cause or None, "attempt": state.attempt,
        "directory": str(state.directory) if state.directory else None,
        **job_mapping(state.job),
        "step": progress.step if progress else None, "steps": progress.steps if progress else None,
        "spikes": progress.spikes if progress else None,
        "metrics": {name: json_number(value) for name, value in state.metrics.items()},
    }  # fmt: skip


def job_mapping(job: Job | None) -> dict[str, Any]:
    """What SLURM says of a cell's job, nulls where it says nothing. `position` is that among `waiting` jobs."""
    if job is None:
        return dict.fromkeys(("job", "node", "partition", "reason", "position", "waiting", "expected_start"))
    from gpas_cli.launch.slurm.states import WAITING

    waits = job.state in WAITING
    return {
        "job": job.id, "node": job.nodes or None, "partition": job.partition or None,
        "reason": job.reason if waits else None, "position": job.place or None, "waiting": job.waiting or None,
        "expected_start": job.start or None if waits else None,
    }  # fmt: skip


def render(states: Sequence[CellState]) -> RenderableType:
    """One table per grid and a line of totals."""
    from rich.console import Group
    from rich.text import Text

    return Group(*_grid_tables(states), Text.from_markup(totals(states)))


def totals(states: Sequence[CellState]) -> str:
    """Counts by state, as markup. A cell that two grids share counts once."""
    counts = Counter({state.entry.cell.key: state.state for state in states}.values())
    parts = [f"[{colour}]{counts[name]} {name}[/{colour}]" for name, colour in COLOURS.items() if counts[name]]
    return ", ".join(parts) if parts else "no cells"


def _grid_tables(states: Sequence[CellState], meter: Meter | None = None) -> list[RenderableType]:
    """A table of each grid; with a meter, of what each cell is doing as well."""
    from gpas_cli.cli.columns import Columns

    headers = ("cell", "key", "state", "perplexity", *(["doing"] if meter else []), "evidence")
    spared = ("evidence", "key", "perplexity") if meter else ()
    by_grid: dict[str, list[tuple[Cell, ...]]] = {}
    for state in states:
        by_grid.setdefault(state.entry.grid, []).append(_row(state, meter))
    return [Columns(headers, rows, grid, frozenset({"perplexity"}), spared) for grid, rows in by_grid.items()]


def _row(state: CellState, meter: Meter | None) -> tuple[Cell, ...]:
    perplexity = state.metrics.get("perplexity")
    shown = f"{float(perplexity):.2f}" if perplexity is not None else ""
    why = f"{state.evidence}: {state.cause}" if state.cause else state.evidence
    doing = [_doing(state, meter)] if meter else []
    return (state.entry.name, state.entry.cell.key[:8], (_how_far(state), COLOURS[state.state]), shown, *doing,
            f"{why}{_ago(state.age)}")  # fmt: skip


def _how_far(state: CellState) -> str:
    progress = state.progress
    if state.state == "running" and progress and progress.step and progress.steps:
        return f"running {progress.step}/{progress.steps}{spike_mark(progress.spikes)}"
    return state.state if state.stage == "pretrain" or state.state == "done" else f"{state.state} ({state.stage})"


def _ago(seconds: float | None) -> str:
    return "" if seconds is None else f", {span(seconds)} ago"


def span(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
