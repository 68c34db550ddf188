"""The parts of `gpas run` that are specific to SLURM."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING

import typer

from gpas_cli.cli.console import console, project
from gpas_cli.words import count, listed

if TYPE_CHECKING:
    from gpas_cli.grid.entry import Entry
    from gpas_cli.plan.plan import Plan
    from gpas_cli.schedule.slurm.submit import Submitted
    from gpas_cli.schedule.summary import RunSummary


def make_plan(chosen: list[Entry], retry: Collection[str] = ()) -> Plan:
    """Return the plan of submitting these cells, including the jobs that tokenise their text."""
    from gpas_cli.plan.machine import Cluster
    from gpas_cli.plan.plan import plan
    from gpas_cli.plan.tokenisation import with_texts

    here = project()
    return plan(here.runs, chosen, retry=retry, machine=Cluster(), project=here, prepare=partial(with_texts, here))


def dry_run(chosen: list[Entry], planned: Plan) -> None:
    """Print the sbatch text of every array that would be submitted."""
    from gpas_cli.schedule.slurm.submit import ArraySubmitter

    for array, text in ArraySubmitter(project(), chosen).preview(planned.jobs):
        console().print(
            f"\n# {count(len(array.jobs), 'job')} in {count(len(array.indices), 'array element')}", markup=False
        )
        console().print(text, markup=False)


def test_only(chosen: list[Entry], planned: Plan, on_slurm: bool) -> None:
    """Print when and where the scheduler would start each array. Submits nothing."""
    if not on_slurm:
        raise typer.BadParameter("--test-only needs SLURM; add --executor slurm")
    from gpas_cli.schedule.slurm.submit import ArraySubmitter

    for array, answer in ArraySubmitter(project(), chosen).ask_start(planned.jobs):
        console().print(f"{listed([job.id for job in array.jobs], 1)}: {answer}", markup=False)


def submit(
    chosen: list[Entry], *, retry: Collection[str], at_once: int | None, wait: bool
) -> tuple[Submitted, RunSummary | None]:
    """Submit every cell without a result and print what was submitted; with `wait`, also return how the jobs ended."""
    from gpas_cli.cli.progress_view import make_reporter
    from gpas_cli.schedule.scheduler import stop_on_signals
    from gpas_cli.schedule.slurm.run import SlurmRun
    from gpas_cli.schedule.slurm.submit import ArraySubmitter
    from gpas_cli.store.refresh import ingest

    here = project()
    scheduler = ArraySubmitter(
        here, chosen, retry=retry, at_once=at_once, notify=lambda text: console().print(text, markup=False)
    )
    done = scheduler.submit()
    _print_submitted(done, chosen)
    if not wait:
        return done, None
    with make_reporter(console()) as reporter:
        follower = SlurmRun(scheduler, reporter, lambda: ingest(here))
        with stop_on_signals(follower):
            return done, follower.follow(done)


def _print_submitted(done: Submitted, chosen: list[Entry]) -> None:
    from rich.text import Text

    for made, job, elements in done.arrays:
        size = count(elements, "element")
        console().print(f"submitted {made.name} as SLURM job {job or '(unknown)'}: {size}", markup=False)
    for note in done.notes:
        console().print(note, markup=False)
    parts = [f"{count(done.jobs, 'job')} submitted"]
    parts += [f"{done.followed} already queued or running"] if done.followed else []
    parts += [f"{len(done.left)} not yet submitted: the queue is full"] if done.left else []
    parts += [f"{done.over} failed or cancelled earlier (gpas retry)"] if done.over else []
    parts += [f"{len(done.blocked)} blocked by failed prerequisites (gpas retry)"] if done.blocked else []
    grids = shlex.join(dict.fromkeys(entry.grid for entry in chosen))
    console().print(Text.assemble((", ".join(parts), "bold"), ". Watch: ", (f"gpas status {grids} --watch", "bold")))
