"""Tables of `gpas plan`: the cost by size, by stage and on GPUs elsewhere, and the cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpas_cli.cli.views.columns import Columns
from gpas_cli.words import abbreviated, byte_size, count, duration, listed

if TYPE_CHECKING:
    from gpas_cli.plan.costs import CostElsewhere, JobMemory, SizeCost
    from gpas_cli.plan.plan import Plan, PlanRow

COLOURS = {
    "done": "green", "running": "cyan", "queued": "blue", "interrupted": "yellow", "diverged": "magenta",
    "failed": "red", "cancelled": "yellow", "unknown": "red", "invalid": "red", "new": "bold",
}  # fmt: skip
WORDS = {"invalid": "cannot run here"}
MOST_LISTED = 24  # cells; of more, only the number in each state is shown


def by_size(planned: Plan) -> Columns:
    """Return a table with a row per size: what a cell trains on, and what its jobs cost."""
    headers = ("size", "parameters", "cells", "batch", "updates", "tokens per cell", "jobs", "longest", "total")
    rows = [
        (one.size, abbreviated(one.parameters), f"{one.cells}", f"{one.batch:,} x {one.length:,}", f"{one.updates:,}",
         abbreviated(one.tokens), f"{one.jobs}", rounded_hours(one.hours) if one.jobs else "",
         occupied(one.gpu_hours, one.core_hours) if one.jobs else "")
        for one in planned.sizes
    ]  # fmt: skip
    return Columns(headers, rows, right=frozenset(headers[1:-1]), droppable=("parameters", "updates", "longest"))


def by_stage(planned: Plan) -> Columns:
    """Return a table of the jobs to start, with a row for each kind of stage and what its jobs ask for."""
    from gpas_cli.plan.costs import described

    rows = [
        (one.stage, f"{one.jobs}", rounded_hours(one.hours) if one.hours else "",
         occupied(one.gpu_hours, one.core_hours) if one.hours else "", described(one.resources))
        for one in planned.stage_costs
    ]  # fmt: skip
    headers = ("stage", "jobs", "longest", "total", "each job asks for")
    return Columns(headers, rows, right=frozenset(headers[1:-1]), droppable=("longest", "total"))


def on_gpus(costs: Sequence[CostElsewhere]) -> Columns:
    """Return a table of the GPU-hours of each size on GPUs elsewhere, with the hours of its longest job."""
    first = costs[0]
    rows = [
        (one.size, abbreviated(one.parameters), f"{one.cells}", f"{one.batch:,} x {one.length:,}", f"{one.updates:,}",
         abbreviated(one.tokens), f"{one.devices}", f"{100 * first.machine.share(one.parameters):.0f} %",
         *(_on_gpu(cost.sizes[number]) for cost in costs))
        for number, one in enumerate(first.sizes) if one.jobs
    ]  # fmt: skip
    blank = [""] * 7
    rows.append(("GPU-hours", *blank, *(_gpu_hours(cost.estimate.gpu_hours) for cost in costs)))
    walls = (rounded_hours(cost.estimate.wall_hours or 0.0) for cost in costs)
    rows.append((f"on {count(first.machine.number, 'GPU')}", *blank, *walls))
    names = [", ".join(cost.names) for cost in costs]
    recipe = ("parameters", "cells", "batch", "updates", "tokens per cell")
    headers = ("size", *recipe, "GPUs", "MFU", *names)
    droppable = ("parameters", "updates", "cells", "tokens per cell", "batch")
    return Columns(headers, rows, right=frozenset(headers[1:]), droppable=droppable)


def _on_gpu(size: SizeCost) -> str:
    return f"{_gpu_hours(size.gpu_hours)} ({rounded_hours(size.hours)})"


def _gpu_hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 99.95 else f"{hours:.1f}"


def memory(found: Sequence[JobMemory]) -> Columns:
    """Return a table of the predicted memory of each GPU, with a row per size."""
    rows = [
        (one.size, f"{one.devices}", byte_size(one.memory.total), f"{one.memory.micro_batch}",
         byte_size(one.memory.weights + one.memory.gradients + one.memory.state),
         byte_size(one.memory.activations) + (", recomputed" if one.memory.recompute else ""),
         {"none": "one process", "ddp": "a copy each (ddp)", "fsdp": "sharded (fsdp)"}[one.memory.strategy])
        for one in found
    ]  # fmt: skip
    headers = ("size", "GPUs", "memory of each", "rows at once", "weights and states", "activations", "network")
    right = frozenset(headers[1:6])
    return Columns(headers, rows, right=right, droppable=("network", "weights and states"))


def cells(rows: Sequence[PlanRow]) -> Columns:
    """Return a table with a row per cell."""
    shown = []
    for row in rows:
        detail = "" if row.action == "invalid" else row.detail  # `refusals` has each reason once
        notes = "; ".join(part for part in (detail, *row.entry.notes) if part)
        shown.append((row.entry.id, row.entry.key[:8], (WORDS.get(row.action, row.action), COLOURS[row.action]), notes))
    return Columns(("cell", "key", "action", "detail"), shown)


def summary_of_cells(planned: Plan) -> Columns:
    """Return a table with a row for each grid, size and action: the number of cells."""
    from gpas_cli.plan.costs import size_label

    names = planned.size_names
    groups = Counter((row.entry.grid, size_label(row.entry.cell, names), row.action) for row in planned.rows)
    shown = [
        (grid, size, (WORDS.get(action, action), COLOURS[action]), f"{number:,}")
        for (grid, size, action), number in groups.items()
    ]
    return Columns(("grid", "size", "action", "cells"), shown, right=frozenset({"cells"}))


def notes_of_cells(rows: Sequence[PlanRow]) -> list[str]:
    """Return each note on cells once, with the cells that it is about."""
    about: dict[str, list[str]] = {}
    for row in rows:
        for note in row.entry.notes:
            about.setdefault(note, []).append(row.entry.id)
    return [f"{listed(ids)}: {note}" for note, ids in about.items()]


def rounded_hours(hours: float) -> str:
    """Return an estimated duration, at least a minute."""
    return duration(max(hours * 3600, 60.0))


def occupied(gpu_hours: float, core_hours: float) -> str:
    """Return the device time of jobs: "12 GPU-minutes", "340 GPU-hours and 2.5 core-hours"."""
    parts = [(gpu_hours, "GPU"), (core_hours, "core")]
    return " and ".join(_occupied(hours, unit) for hours, unit in parts if hours) or "nothing"


def _occupied(hours: float, unit: str) -> str:
    if hours < 1:
        return count(max(1, round(hours * 60)), f"{unit}-minute")
    return f"{hours:.1f} {unit}-hours" if hours < 100 else f"{hours:,.0f} {unit}-hours"
