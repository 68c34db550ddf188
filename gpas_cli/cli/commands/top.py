"""`gpas top`: resource usage, live."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from gpas_cli.cli.console import console, print_json, say
from gpas_cli.cli.options import AsJson, NamesAndSettings, Where
from gpas_cli.cli.selection import observed, project
from gpas_cli.cli.views.columns import Cell, Columns
from gpas_cli.cli.views.events import sparkline
from gpas_cli.cli.views.states import COLOURS, CellNameJson, SlurmJobJson, ends, event_marks, job_json, starts
from gpas_cli.cli.watch import watch
from gpas_cli.documents import DocumentJson, Time
from gpas_cli.plan.usage import Activity, GridUsage, Running, UsageMeter
from gpas_cli.schedule.scheduler import ProfileUse, used_by_profile
from gpas_cli.state.status import CellStatus, Progress
from gpas_cli.state.usage import Usage
from gpas_cli.structure import FLAT, Document, Number
from gpas_cli.words import byte_size, count, fixed, stopwatch

_BAR_WIDTH = 12  # characters
# Columns left out on a narrow terminal, in this order.
_DROPPABLE = ("training loss", "memory", "progress", "MFU", "tokens/s", "device")
_BITS = {"M": 20, "G": 30, "T": 40}
_OTHER_LINES = 10  # lines of the screen taken by headings, totals and blank lines


class _RunningCellJson(Document):
    """A running cell."""

    cell: CellNameJson = field(metadata=FLAT)
    job: SlurmJobJson = field(metadata=FLAT)
    spent: Usage = field(metadata=FLAT)
    stage: str
    attempt: int | None
    devices: Sequence[str]
    phase: str | None
    step: Number | None
    steps: Number | None
    loss: Number | None
    tokens_per_second: Number | None
    mfu: Number | None
    memory: Annotated[Number | None, "bytes"]
    eta: Annotated[Number | None, "seconds"]
    spikes: Number | None
    skipped: Number | None


class _QueuedCellJson(Document):
    """A queued cell."""

    cell: CellNameJson = field(metadata=FLAT)
    job: SlurmJobJson = field(metadata=FLAT)
    stage: str


class _UseJson(Document):
    """The hours that cells have used, and those that running and queued cells still need."""

    spent: Usage = field(metadata=FLAT)
    states: Mapping[str, int]
    left: Annotated[int, "cells without a result"]
    to_go: Usage | None
    ends: Annotated[float | None, "unix time"]


class _GridUseJson(Document):
    """The resource usage of a grid."""

    use: _UseJson = field(metadata=FLAT)
    grid: str


class TopJson(DocumentJson):
    """`gpas top --json`."""

    time: Time
    running: Sequence[_RunningCellJson]
    queued: Sequence[_QueuedCellJson]
    grids: Sequence[_GridUseJson]
    total: _UseJson


class UsageJson(DocumentJson):
    """`gpas top --usage --json`."""

    profiles: Sequence[ProfileUse]


def top(
    names: NamesAndSettings = None,
    where: Where = None,
    usage: Annotated[bool, typer.Option("--usage", help="What SLURM jobs asked for, and what they used.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what runs where and how fast, what waits and at which position, hours used so far, and the ETA.

    Covers jobs on this machine and on SLURM. Without names, shows every grid that has been started. On a terminal, the
    view is refreshed until Ctrl-C; when piped or with --json, it is printed once.

    With --usage, shows what ended SLURM jobs asked for and what they used, according to SLURM's accounting.

    Example: [bold]gpas top table2[/bold]
    """
    if usage:
        cells = (state.entry.cell for state in observed(names, where))
        profiles = used_by_profile(project().runs, {stage.key for cell in cells for stage in cell.stages})
        print_json(UsageJson(profiles=profiles)) if as_json else say(_profile_table(profiles))
        return
    meter = UsageMeter(project().runs)

    def activity() -> Activity:
        return meter.activity(observed(names, where, jobs=True))

    if as_json:
        print_json(_document(activity()))
    elif console().is_terminal:
        watch(lambda: _render(activity(), console().height), screen=True)
    else:
        say(_render(activity(), 10**6))


def _profile_table(profiles: Sequence[ProfileUse]) -> RenderableType:
    if not profiles:
        return "no SLURM job of these cells has ended"
    rows: list[dict[str, Cell]] = [
        {
            "jobs": f"{one.jobs}", "memory asked": _binary_size(one.memory), "used": _binary_size(one.used_memory),
            "cores asked": f"{one.cpus}", "busy": f"{one.used_cores:.2f}",
            "time asked": stopwatch(one.limit) if one.limit else "no limit", "longest": stopwatch(one.longest),
        }
        for one in profiles
    ]  # fmt: skip
    return Columns.of(rows, rows[0].keys())


def _binary_size(number: int) -> str:
    """Return a number of bytes in the units of `resources.mem`, which are SLURM's: 300M is 300 times 2**20 bytes."""
    unit = next((unit for unit in ("T", "G") if number >= 1 << _BITS[unit]), "M")
    return f"{number / (1 << _BITS[unit]):.4g}{unit}"


def _render(room: Activity, height: int) -> RenderableType:
    """Return the view in about `height` lines."""
    space = max(4, height - _OTHER_LINES - len(room.grids))
    shown = min(len(room.running), max(space - min(len(room.queued), space // 3), 2))
    counts = {**room.total.states, "running": len(room.running), "queued": len(room.queued)}
    states = [f"[{colour}]{counts[s]} {s}[/]" for s, colour in COLOURS.items() if counts.get(s)]
    headline = f"[bold]gpas top[/]  {time.strftime('%H:%M:%S')}  {', '.join(states) or 'no cells'}"
    parts: list[RenderableType] = [Text.from_markup(headline), Text(""), _grids(room)]
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
            "training loss": (sparkline(losses, 2 * _BAR_WIDTH), "cyan"),
        }
        rows.append({**first, "cell": _name(room, run.state), **_of_progress(run.state), **last})
    return Columns.of(rows, {"step", "tokens/s", "MFU", "memory", "loss", "left", unit}, _DROPPABLE)


def _of_progress(state: CellStatus) -> dict[str, Cell]:
    seen = state.progress
    if seen is None or seen.step is None or not seen.steps:
        phase = seen.phase if seen and seen.phase else "starting"
        return {"progress": "", "step": phase, "loss": "", "tokens/s": "", "MFU": "", "memory": "", "left": ""}
    full = round(_BAR_WIDTH * (state.fraction or 0.0))
    return {
        "progress": ("━" * full + "─" * (_BAR_WIDTH - full), "cyan"),
        "step": seen.counted,
        "loss": f"{fixed(seen.loss, 3)}{event_marks(seen)}" if seen.loss is not None else "",
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
    return [Columns.of(rows, (), ("why",)), *_more(hidden, "waiting")]


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
    return Columns.of(rows, {"cells", "done", "left", f"{unit} so far", f"{unit} to go"}, ("cells",))


def _devices(devices: Sequence[str]) -> str:
    """Return device names as a count: gpu-0, gpu-1 as "2 GPUs"."""
    kind = "GPU" if any(device.startswith("gpu") for device in devices) else "core"
    return count(len(devices), kind) if devices else ""


def _name(room: Activity, state: CellStatus) -> str:
    return state.entry.id if len(room.grids) > 1 else state.entry.name


def _document(room: Activity) -> TopJson:
    """Return the document. Times are unix times; hours are device hours."""
    return TopJson(
        time=time.time(),
        running=list(map(_running_json, room.running)),
        queued=[
            _QueuedCellJson(cell=CellNameJson.of(state.entry), job=job_json(state.job), stage=state.stage)
            for state in room.queued
        ],
        grids=[_GridUseJson(use=_use_json(use), grid=use.grid) for use in room.grids],
        total=_use_json(room.total),
    )


def _running_json(run: Running) -> _RunningCellJson:
    state = run.state
    seen = state.progress or Progress()
    return _RunningCellJson(
        cell=CellNameJson.of(state.entry), job=replace(job_json(state.job), node=run.node or None), spent=run.spent,
        stage=state.stage, attempt=state.attempt, devices=run.devices, phase=seen.phase or None, step=seen.step,
        steps=seen.steps, loss=seen.loss, tokens_per_second=seen.tokens_per_second, mfu=seen.mfu, memory=seen.memory,
        eta=seen.eta, spikes=seen.spikes if state.progress else None,
        skipped=seen.skipped if state.progress else None,
    )  # fmt: skip


def _use_json(use: GridUsage) -> _UseJson:
    return _UseJson(spent=use.spent, states=use.states, left=use.left, to_go=use.to_go, ends=use.ends_at)


def _more(number: int, what: str) -> list[RenderableType]:
    return [Text(f"and {number} more {what}", style="dim")] if number > 0 else []
