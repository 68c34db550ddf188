"""`gpas plan`: what a run would do and cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpas_cli.cli.console import AsJson, Executor, Names, Where, console, entries, print_json, project

if TYPE_CHECKING:
    from rich.console import RenderableType

    from gpas_cli.launch.estimate import Estimate
    from gpas_cli.launch.plan import Plan

COLOURS = {
    "done": "green", "running": "cyan", "queued": "blue", "interrupted": "yellow", "diverged": "magenta",
    "failed": "red", "cancelled": "yellow", "unknown": "red", "invalid": "red", "new": "bold",
}  # fmt: skip


def plan(names: Names = None, where: Where = None, executor: Executor = "auto", as_json: AsJson = False) -> None:
    """Show which cells are new, done, running or cannot run here, and what they would cost. Changes nothing.

    Example: [bold]gpas plan table2 --where size=71m[/bold]
    """
    from gpas_cli.cli import slurm
    from gpas_cli.launch.executor import choose
    from gpas_cli.launch.plan import plan as make_plan

    chosen, on_slurm = entries(names, where), choose(executor).name == "slurm"
    planned = slurm.make_plan(chosen) if on_slurm else make_plan(project().runs, chosen)
    if as_json:
        print_json(**_as_mapping(planned))
    else:
        console().print(render(planned))


def _as_mapping(planned: Plan) -> dict[str, Any]:
    rows = [
        {"key": row.entry.key, "name": row.entry.name, "grid": row.entry.grid, "axes": dict(row.entry.axes),
         "action": row.action, "detail": row.detail, "will_run": row.will_run}
        for row in planned.rows
    ]  # fmt: skip
    return {
        "cells": rows,
        "jobs": len(planned.jobs),
        "texts": [job.name for job in planned.texts],
        "stages": dict(planned.stages),
        "estimate": vars(planned.estimate),
    }


def render(planned: Plan) -> RenderableType:
    """A row per cell, then the totals and the estimate with what it rests on."""
    from rich.console import Group
    from rich.text import Text

    from gpas_cli.cli.columns import Columns

    rows = []
    for row in planned.rows:
        notes = "; ".join(part for part in (row.detail, *row.entry.notes) if part)
        rows.append((row.entry.id, row.entry.key[:8], (row.action, COLOURS[row.action]), notes))
    table = Columns(("cell", "key", "action", "detail"), rows)
    basis = Text("\n".join(f"  {line}" for line in (*planned.estimate.basis, *_texts(planned))), style="dim")
    return Group(table, Text(headline(planned), style="bold"), basis)


def _texts(planned: Plan) -> list[str]:
    jobs = [(job.name, job.resources.cpus) for job in planned.texts]
    return [f"tokenising {name} comes first, in a job of {cpus} cores; it is not estimated" for name, cpus in jobs]


def headline(planned: Plan) -> str:
    """The plan in a sentence."""
    counts = ", ".join(f"{planned.actions[name]} {name}" for name in COLOURS if planned.actions[name])
    if not planned.jobs:
        return f"{len(planned.rows)} cells: {counts}; no job to start"
    guess = planned.estimate
    if guess.wall_hours is None:
        clock = f"the longest takes {duration(guess.longest_hours)} from its start, and the starts are SLURM's"
    else:
        clock = f"{duration(guess.wall_hours)} on {guess.slots} slots here"
    shared = planned.uses - sum(planned.stages.values())
    saved = f" ({shared} trainings shared)" if shared else ""
    return (
        f"{len(planned.rows)} cells: {counts}; {len(planned.jobs)} jobs to start{saved}, about {cost(guess)}; {clock}"
    )


def cost(guess: Estimate) -> str:
    """What jobs occupy: "12 GPU-minutes", "340 GPU-hours and 2.5 core-hours"."""
    parts = [(guess.gpu_hours, "GPU"), (guess.core_hours, "core")]
    return " and ".join(_occupied(hours, unit) for hours, unit in parts if hours) or "nothing"


def _occupied(hours: float, unit: str) -> str:
    if hours < 1:
        minutes = max(1, round(hours * 60))
        return f"{minutes} {unit}-minute{'s' if minutes > 1 else ''}"
    return f"{hours:.1f} {unit}-hours" if hours < 100 else f"{hours:,.0f} {unit}-hours"


def duration(hours: float) -> str:
    """Hours in the unit a person would use."""
    if hours < 1:
        return f"{max(1, round(hours * 60))} min"
    return f"{hours:.1f} h" if hours < 100 else f"{hours / 24:,.0f} days"
