"""What runs where and how fast, what waits, and the hours used: `gpas status --watch` and `gpas status --usage`."""

import time
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from gpas_cli.cli.views.columns import Cell, Columns
from gpas_cli.cli.views.events import sparkline
from gpas_cli.cli.views.states import COLOURS, ends, event_marks, starts
from gpas_cli.plan.usage import Activity, Running
from gpas_cli.schedule.scheduler import ProfileUse
from gpas_cli.state.status import CellStatus
from gpas_cli.structure import DocumentJson
from gpas_cli.words import byte_size, count, fixed, stopwatch

_BAR_WIDTH = 12  # characters
# Columns left out on a narrow terminal, in this order.
_DROPPABLE = ("training loss", "memory", "progress", "MFU", "tokens/s", "device")
_BITS = {"M": 20, "G": 30, "T": 40}
_OTHER_LINES = 10  # lines of the screen taken by headings, totals and blank lines


class UsageJson(DocumentJson):
    """`gpas status --usage --json`."""

    profiles: Sequence[ProfileUse]


def profile_table(profiles: Sequence[ProfileUse]) -> RenderableType:
    """Return what ended jobs asked for and what they used."""
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


def activity_view(room: Activity, height: int) -> RenderableType:
    """Return the view in about `height` lines."""
    space = max(4, height - _OTHER_LINES - len(room.grids))
    shown = min(len(room.running), max(space - min(len(room.queued), space // 3), 2))
    counts = {**room.total.states, "running": len(room.running), "queued": len(room.queued)}
    states = [f"[{colour}]{counts[s]} {s}[/]" for s, colour in COLOURS.items() if counts.get(s)]
    headline = f"{time.strftime('%H:%M:%S')}  {', '.join(states) or 'no cells'}"
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


def _more(number: int, what: str) -> list[RenderableType]:
    return [Text(f"and {number} more {what}", style="dim")] if number > 0 else []
