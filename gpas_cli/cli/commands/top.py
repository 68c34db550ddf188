"""`gpas top`: resource usage, live."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, NotRequired

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from gpas_cli.cli.commands.status import observed
from gpas_cli.cli.console import console, print_json
from gpas_cli.cli.options import AsJson, NamesAndSettings, Where
from gpas_cli.cli.selection import project
from gpas_cli.cli.views.columns import Cell, Columns
from gpas_cli.cli.views.progress import sparkline, spike_mark
from gpas_cli.cli.views.states import COLOURS, SlurmJobJson, ends, job_json, starts
from gpas_cli.cli.working import watch
from gpas_cli.documents import CellNameJson, DocumentJson, NumberJson, Time
from gpas_cli.plan.usage import Activity, GridUsage, Running, UsageMeter
from gpas_cli.schedule.scheduler import ProfileUse, used_by_profile
from gpas_cli.state.status import CellStatus
from gpas_cli.state.usage import HoursJson
from gpas_cli.words import byte_size, stopwatch

Usage = Annotated[bool, typer.Option("--usage", help="What SLURM jobs asked for, and what they used.")]
BAR_WIDTH = 12  # characters
# Columns left out on a narrow terminal, in this order.
DROPPABLE = ("training loss", "memory", "progress", "MFU", "tokens/s", "device")
DROPPABLE_IN_LINE = ("why",)
OTHER_LINES = 10  # lines of the screen taken by headings, totals and blank lines


class _RoomCellJson(CellNameJson):
    """A running or queued cell."""

    stage: str


class _RunningCellJson(_RoomCellJson, SlurmJobJson, HoursJson):
    """A running cell."""

    attempt: int | None
    devices: list[str]
    phase: str | None
    step: NumberJson | None
    steps: NumberJson | None
    loss: NumberJson | None
    tokens_per_second: NumberJson | None
    mfu: NumberJson | None
    memory: Annotated[NumberJson | None, "bytes"]
    eta: Annotated[NumberJson | None, "seconds"]
    spikes: NumberJson | None


class _QueuedCellJson(_RoomCellJson, SlurmJobJson):
    """A queued cell."""


class _UseJson(HoursJson):
    """The hours that cells have used, and those that running and queued cells still need."""

    states: dict[str, int]
    left: Annotated[int, "cells without a result"]
    to_go: HoursJson | None
    ends: Annotated[float | None, "unix time"]


class _GridUseJson(_UseJson):
    """The resource usage of a grid."""

    grid: str


class TopJson(DocumentJson):
    """`gpas top --json`; with --usage only `profiles`."""

    time: NotRequired[Time]
    running: NotRequired[list[_RunningCellJson]]
    queued: NotRequired[list[_QueuedCellJson]]
    grids: NotRequired[list[_GridUseJson]]
    total: NotRequired[_UseJson]
    profiles: NotRequired[list[ProfileUse]]


def top(names: NamesAndSettings = None, where: Where = None, usage: Usage = False, as_json: AsJson = False) -> None:
    """Show what runs where and how fast, what waits and at which position, hours used so far, and the ETA.

    Covers jobs on this machine and on SLURM. Without names, shows every grid that has been started. On a terminal, the
    view is refreshed until Ctrl-C; when piped or with --json, it is printed once.

    With --usage, shows what ended SLURM jobs asked for and what they used, according to SLURM's accounting.

    Example: [bold]gpas top table2[/bold]
    """
    if usage:
        profiles = _profiles(names, where)
        print_json(TopJson(schema=1, profiles=profiles)) if as_json else console().print(_profile_table(profiles))
        return
    meter = UsageMeter(project().runs)

    def activity() -> Activity:
        return meter.room(observed(names, where, jobs=True))

    if as_json:
        print_json(_document(activity()))
    elif console().is_terminal:
        watch(lambda: render(activity(), console().height), screen=True)
    else:
        console().print(render(activity(), 10**6))


def _profiles(names: Sequence[str] | None, where: Sequence[str] | None) -> list[ProfileUse]:

    cells = (state.entry.cell for state in observed(names, where))
    return used_by_profile(project().runs, {stage.key for cell in cells for stage in cell.stages})


def _profile_table(profiles: Sequence[ProfileUse]) -> RenderableType:
    if not profiles:
        return "no SLURM job of these cells has ended"
    rows: list[dict[str, Cell]] = [
        {
            "jobs": f"{one.jobs}", "memory asked": byte_size(one.memory), "used": byte_size(one.used_memory),
            "cores asked": f"{one.cpus}", "busy": f"{one.used_cores:.2f}",
            "time asked": stopwatch(one.limit) if one.limit else "no limit", "longest": stopwatch(one.longest),
        }
        for one in profiles
    ]  # fmt: skip
    return _table(rows, (), set(rows[0]))


def render(room: Activity, height: int) -> RenderableType:
    """Return the view in about `height` lines."""
    space = max(4, height - OTHER_LINES - len(room.grids))
    shown = min(len(room.running), max(space - min(len(room.queued), space // 3), 2))
    parts: list[RenderableType] = [Text.from_markup(_headline(room)), Text(""), _grids(room)]
    if room.running:
        parts += [Text(""), _running(room, room.running[:shown]), *_more(len(room.running) - shown, "running")]
    if room.queued:
        parts += [Text(""), *_queued(room, max(2, space - shown))]
    return Group(*parts)


def _running(room: Activity, runs: Sequence[Running]) -> RenderableType:
    rows: list[dict[str, Cell]] = []
    unit = room.total.spent.unit
    for i, run in enumerate(runs):
        again = i > 0 and runs[i - 1].node == run.node
        first: dict[str, Cell] = {"node": ("" if again else run.node, "bold"), "device": _devices(run.devices)}
        losses = run.state.progress.losses if run.state.progress else ()
        last: dict[str, Cell] = {
            unit: run.spent.hours(unit),
            "training loss": (sparkline(losses, 2 * BAR_WIDTH), "cyan"),
        }
        rows.append({**first, "cell": _name(room, run.state), **_of_progress(run.state), **last})
    return _table(rows, DROPPABLE, {"step", "tokens/s", "MFU", "memory", "loss", "left", unit})


def _of_progress(state: CellStatus) -> dict[str, Cell]:
    seen = state.progress
    if seen is None or seen.step is None or not seen.steps:
        phase = seen.phase if seen and seen.phase else "starting"
        return {"progress": "", "step": phase, "loss": "", "tokens/s": "", "MFU": "", "memory": "", "left": ""}
    full = round(BAR_WIDTH * (state.fraction or 0.0))
    return {
        "progress": ("━" * full + "─" * (BAR_WIDTH - full), "cyan"),
        "step": seen.counted,
        "loss": f"{seen.loss:.3f}{spike_mark(seen.spikes)}" if seen.loss is not None else "",
        "tokens/s": f"{seen.tokens_per_second:,.0f}" if seen.tokens_per_second else "",
        "MFU": f"{seen.mfu:.0%}" if seen.mfu else "",
        "memory": byte_size(seen.memory) if seen.memory else "",
        "left": stopwatch(seen.eta) if seen.eta is not None else "",
    }


def _queued(room: Activity, limit: int) -> list[RenderableType]:
    """Return a table of what waits, with at most `limit` rows; jobs of which the same is known share a row."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for state in room.queued:
        job = state.job
        why = (job.held or (job.reason if job.reason != "None" else "")) if job else state.evidence
        known = (job.in_line, starts(job), why) if job else ("", "", why)
        alike.setdefault(known, []).append(_name(room, state))
    rows: list[dict[str, Cell]] = []
    for (place, begins, why), (first, *others) in list(alike.items())[:limit]:
        name = f"{first} and {len(others)} more" if others else first
        rows.append({"cell": name, "place": place, "starts about": begins, "why": why})
    hidden = sum(map(len, list(alike.values())[limit:]))
    return [_table(rows, DROPPABLE_IN_LINE, set()), *_more(hidden, "waiting")]


def _grids(room: Activity) -> RenderableType:
    unit = room.total.spent.unit
    uses = [*room.grids, room.total] if len(room.grids) > 1 else room.grids
    rows: list[dict[str, Cell]] = []
    for use in uses:
        style = "bold" if use is room.total else ""
        done = sum(use.states[state] for state in ("done", "diverged"))
        cells = {
            "grid": use.grid or "in all", "cells": f"{use.states.total()}", "done": f"{done}", "left": f"{use.left}",
            f"{unit} so far": use.spent.hours(unit), f"{unit} to go": use.to_go.hours(unit) if use.to_go else "",
            "ends about": ends(use),
        }  # fmt: skip
        rows.append({name: (text, style) if style else text for name, text in cells.items()})
    return _table(rows, ("cells",), {"cells", "done", "left", f"{unit} so far", f"{unit} to go"})


def _table(rows: list[dict[str, Cell]], droppable: Sequence[str], right: set[str]) -> RenderableType:
    """Return a table without the columns that are empty in every row."""
    names = [name for name in rows[0] if any(_shown(row[name]) for row in rows)]
    return Columns(names, [[row[name] for name in names] for row in rows], "", frozenset(right), droppable)


def _shown(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell[0]


def _devices(devices: Sequence[str]) -> str:
    """Return device names as a count: gpu-0, gpu-1 as "2 GPUs"."""
    kind = "GPU" if any(device.startswith("gpu") for device in devices) else "core"
    return f"{len(devices)} {kind}{'s' if len(devices) != 1 else ''}" if devices else ""


def _name(room: Activity, state: CellStatus) -> str:
    return state.entry.id if len(room.grids) > 1 else state.entry.name


def _document(room: Activity) -> TopJson:
    """Return the document. Times are unix times; hours are device hours."""
    return {
        "schema": 1,
        "time": time.time(),
        "running": [_run_json(run) for run in room.running],
        "queued": [{**_cell(state), **job_json(state.job)} for state in room.queued],
        "grids": [{"grid": use.grid, **_use_json(use)} for use in room.grids],
        "total": _use_json(room.total),
    }


def _cell(state: CellStatus) -> _RoomCellJson:
    return {"key": state.entry.cell.key, "grid": state.entry.grid, "name": state.entry.name, "stage": state.stage}


def _run_json(run: Running) -> _RunningCellJson:
    seen = run.state.progress
    return {
        **_cell(run.state), **job_json(run.state.job), "attempt": run.state.attempt, "node": run.node or None,
        "devices": list(run.devices), **run.spent.json(),
        "phase": seen.phase if seen else None, "step": seen.step if seen else None,
        "steps": seen.steps if seen else None, "loss": seen.loss if seen else None,
        "tokens_per_second": seen.tokens_per_second if seen else None, "mfu": seen.mfu if seen else None,
        "memory": seen.memory if seen else None, "eta": seen.eta if seen else None,
        "spikes": seen.spikes if seen else None,
    }  # fmt: skip


def _use_json(use: GridUsage) -> _UseJson:
    return {
        "states": dict(use.states), "left": use.left, **use.spent.json(),
        "to_go": use.to_go.json() if use.to_go else None,
        "ends": time.time() + use.ends if use.ends is not None else None,
    }  # fmt: skip


def _headline(room: Activity) -> str:
    counts = {**room.total.states, "running": len(room.running), "queued": len(room.queued)}
    states = [f"[{colour}]{counts[s]} {s}[/]" for s, colour in COLOURS.items() if counts.get(s)]
    return f"[bold]gpas top[/]  {time.strftime('%H:%M:%S')}  {', '.join(states) or 'no cells'}"


def _more(count: int, what: str) -> list[RenderableType]:

    return [Text(f"and {count} more {what}", style="dim")] if count > 0 else []
