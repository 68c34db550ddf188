"""States of cells as tables and as plain data, for `gpas status` and `gpas plan`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from gpas_cli.cli.views.columns import Cell, Columns
from gpas_cli.grid.declared import Entry
from gpas_cli.spec.extensions import main_result
from gpas_cli.spec.stage import PRETRAIN, Metric, called
from gpas_cli.state.status import ALIVE, RESULTS, CellStatus, Progress, SchedulerJob
from gpas_cli.structure import FLAT, CellStateJson, Document, Number
from gpas_cli.words import clock_time, count, duration

if TYPE_CHECKING:  # the estimates, which take long to import
    from gpas_cli.plan.usage import GridUsage

COLOURS = {
    "done": "green", "running": "cyan", "queued": "blue", "interrupted": "yellow", "diverged": "magenta",
    "failed": "red", "cancelled": "yellow", "unknown": "red", "missing": "dim",
}  # fmt: skip


class CellNameJson(Document):
    """A cell of a grid; a cell that several grids have is in the list of each."""

    key: Annotated[str, "content key: 16 hex digits"]
    grid: str
    name: Annotated[str, "the name within the grid; grid/name is unique"]

    @classmethod
    def of(cls, entry: Entry) -> CellNameJson:
        """Return the name of a cell."""
        return cls(key=entry.key, grid=entry.grid, name=entry.name)


class LabelledCellJson(CellNameJson):
    """A cell with its label on every axis."""

    axes: Mapping[str, Any]
    tags: Sequence[str]

    @classmethod
    def of(cls, entry: Entry) -> LabelledCellJson:
        """Return the name, the labels and the tags of a cell."""
        return cls(key=entry.key, grid=entry.grid, name=entry.name, axes=entry.axes, tags=entry.tags)


class SlurmJobJson(Document):
    """What SLURM reports about a cell's job; all null if it reports nothing."""

    job: str | None = None
    node: str | None = None
    partition: str | None = None
    reason: Annotated[str | None, "why it waits"] = None
    position: Annotated[int | None, "its place among the jobs that wait"] = None
    waiting: Annotated[int | None, "how many jobs wait"] = None
    expected_start: Annotated[float | None, "unix time"] = None


class GridSummaryJson(Document):
    """One grid in numbers."""

    grid: str
    cells: int
    states: Mapping[str, int]
    ends: Annotated[
        float | None, "unix time of the expected end; null unless cells run and all others without a result are queued"
    ]


class CellStatusJson(Document):
    """The state of one cell and its evidence."""

    cell: LabelledCellJson = field(metadata=FLAT)
    job: SlurmJobJson = field(metadata=FLAT)
    state: CellStateJson
    outcome: Annotated[str | None, "the outcome in the journal of the decisive attempt"]
    stage: Annotated[str, "the first stage without a result, or the last one"]
    evidence: str
    age: Annotated[float | None, "seconds since the newest evidence"]
    cause: str | None
    attempt: int | None
    directory: Path | None
    progress: Progress = field(metadata=FLAT)
    warnings: Annotated[int, "in the journal of the attempt; `gpas logs CELL` lists them"]
    metrics: Mapping[str, Number]


def once(states: Iterable[CellStatus]) -> list[CellStatus]:
    """Return the states with cells that several grids share only once."""
    found: dict[str, CellStatus] = {}
    for state in states:
        found.setdefault(state.entry.key, state)
    return list(found.values())


def totals(states: Iterable[CellStatus]) -> str:
    """Return the number of cells in each state, as markup. A cell that several grids share counts once."""
    counts = Counter(state.state for state in once(states))
    parts = [f"[{colour}]{counts[name]:,} {name}[/{colour}]" for name, colour in COLOURS.items() if counts[name]]
    return ", ".join(parts) if parts else "no cells"


def _counts(states: Iterable[CellStatus]) -> dict[str, Counter[str]]:
    """Return the number of cells in each state by grid."""
    found: dict[str, Counter[str]] = {}
    for state in states:
        found.setdefault(state.entry.grid, Counter())[state.state] += 1
    return found


def grid_table(states: Sequence[CellStatus], ends: Mapping[str, str]) -> Columns:
    """Return a table with a row per grid: how many cells are in each state, and the ETA (`ends`)."""
    by_grid = _counts(states)
    occurring = [name for name in COLOURS if any(counts[name] for counts in by_grid.values())]
    rows: list[tuple[Cell, ...]] = []
    for grid, counts in by_grid.items():
        numbers = [(f"{counts[name]:,}" if counts[name] else "", COLOURS[name]) for name in occurring]
        rows.append((grid, f"{counts.total():,}", *numbers, ends.get(grid, "")))
    headers = ("grid", "cells", *occurring, "ends about" if any(ends.values()) else "")
    return Columns(headers, rows, right=frozenset(("cells", *occurring)))


def cell_table(states: Sequence[CellStatus], *, title: str = "", wrapped: bool = True) -> Columns:
    """Return a table with a row per cell. Cells are named with their grid, unless `title` is the grid's name."""
    results = [main_result(state.metrics) for state in states]
    names = {metric.words for metric, _ in filter(None, results)}
    # Cells at different stages have different results, so that each needs its name.
    header = "result" if len(names) > 1 else next(iter(names), "perplexity")
    headers = ("cell", "key", "state", header, "evidence")
    rows = [
        (state.entry.name if title else state.entry.id, state.entry.key[:8], (_how_far(state), COLOURS[state.state]),
         _result(found, named=len(names) > 1), evidence(state))
        for state, found in zip(states, results, strict=True)
    ]  # fmt: skip
    return Columns(headers, rows, title, frozenset({header}), () if wrapped else ("key", header), wrapped)


def _result(found: tuple[Metric, float] | None, *, named: bool) -> str:
    if found is None:
        return ""
    metric, value = found
    return f"{metric.words} {metric.shown(value)}" if named else metric.shown(value)


def event_marks(progress: Progress) -> str:
    """Return " ▲2 ▽1" for two recent spikes of the loss or gradient norm and one skipped update, "" for none."""
    counts = {"▲": progress.spikes, "▽": progress.skipped}
    return "".join(f" {mark}{count}" for mark, count in counts.items() if count)


def _how_far(state: CellStatus) -> str:
    progress = state.progress if state.state == "running" else None  # a third of the time of `gpas status` otherwise
    if progress and progress.step and progress.steps:
        return f"running {progress.counted}{event_marks(progress)}"
    name = called(state.state, state.metrics)
    return name if state.stage == PRETRAIN or state.state == "done" else f"{name} ({state.stage})"


def evidence(state: CellStatus) -> str:
    """Return what the state was concluded from, how old that is, and the warnings: "finished 15 min ago, 1 warning"."""
    warned = f", {count(state.warnings, 'warning')}" if state.warnings else ""
    return f"{_concluded(state)}{warned}"


def _concluded(state: CellStatus) -> str:
    cause = f": {state.cause}" if state.cause else ""
    ago = "" if state.age is None else f"{duration(state.age)} ago"
    if state.source == "outcome" and ago and state.state not in ALIVE:
        if called(state.state, state.metrics) in RESULTS:
            return f"finished {ago}{cause}"
        saved = state.progress.saved if state.progress and state.state in ("interrupted", "cancelled") else None
        return f"ended {ago}{'' if saved is None else f', saved at update {saved}'}{cause}"
    return f"{state.evidence}{cause}{', ' if ago else ''}{ago}"


def starts(job: SchedulerJob) -> str:
    """Return when SLURM expects to start a job, "" if unknown."""
    return clock_time(job.start) if job.start else ""


def grids_json(states: Sequence[CellStatus], uses: Mapping[str, GridUsage]) -> list[GridSummaryJson]:
    """Return each grid for `--json`; `ends` is a unix time, null unless something is running."""
    ends = {grid: use.ends_at for grid, use in uses.items()}
    return [
        GridSummaryJson(grid=grid, cells=counts.total(), states=counts, ends=ends.get(grid))
        for grid, counts in _counts(states).items()
    ]


def ends(use: GridUsage) -> str:
    """Return the ETA of the running and queued cells at the current rate, "" if unknown."""
    return f"{clock_time(use.ends_at)}, in {duration(use.ends)}" if use.ends_at and use.ends is not None else ""


def cell_json(state: CellStatus) -> CellStatusJson:
    """Return a cell's state for `--json`."""
    return CellStatusJson(
        cell=LabelledCellJson.of(state.entry), job=job_json(state.job), state=called(state.state, state.metrics),
        outcome=state.outcome or None, stage=state.stage, evidence=state.evidence, age=state.age,
        cause=state.cause or None, attempt=state.attempt, directory=state.directory,
        progress=state.progress or Progress(), warnings=state.warnings, metrics=state.metrics,
    )  # fmt: skip


def job_json(job: SchedulerJob | None) -> SlurmJobJson:
    """Return what SLURM reports about a cell's job; `position` is out of `waiting`."""
    if job is None:
        return SlurmJobJson()
    waits = job.pending
    return SlurmJobJson(
        job=job.id, node=job.nodes or None, partition=job.partition or None,
        reason=job.reason if waits else None, position=job.place or None, waiting=job.waiting or None,
        expected_start=job.start or None if waits else None,
    )  # fmt: skip
