"""What `gpas run` does and says where SLURM runs the jobs."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import typer

from gpas_cli.cli.console import console, project
from gpas_cli.errors import EXIT_DONE

if TYPE_CHECKING:
    from gpas_cli.grid.entry import Entry
    from gpas_cli.launch.plan import Plan
    from gpas_cli.launch.slots import Machine
    from gpas_cli.launch.slurm.submit import Submitted


def cluster(chosen: list[Entry]) -> Machine:
    """What a plan may count on: GPUs if any cell asks for some, as many as the largest job needs."""
    from gpas_cli.launch.slots import Cluster

    gpus = max((entry.resources.gpus for entry in chosen), default=0)
    cores = max((entry.resources.cpus for entry in chosen), default=1)
    return Cluster(gpus=tuple(map(str, range(gpus))), cores=tuple(range(cores)))


def dry_run(chosen: list[Entry], planned: Plan) -> None:
    """Print the sbatch text of every array that would be submitted."""
    from gpas_cli.launch.slurm.submit import SlurmScheduler

    for array, text in SlurmScheduler(project(), chosen).preview(planned.jobs):
        console().print(f"\n# {len(array.jobs)} jobs in {len(array.indices)} array elements", markup=False)
        console().print(text, markup=False)


def submit(chosen: list[Entry], retry: Collection[str]) -> None:
    """Submit what is lacking, say what was done, and leave."""
    from gpas_cli.launch.slurm.submit import SlurmScheduler

    scheduler = SlurmScheduler(project(), chosen, retry=retry, notify=lambda text: console().print(text, markup=False))
    _tell(scheduler.submit(), chosen)
    raise typer.Exit(EXIT_DONE)


def _tell(done: Submitted, chosen: list[Entry]) -> None:
    for made, job, elements in done.arrays:
        console().print(f"submitted {made.name} as SLURM job {job or '(unknown)'}: {elements} elements", markup=False)
    for note in done.notes:
        console().print(note, markup=False)
    parts = [f"{done.jobs} jobs submitted"]
    parts += [f"{done.followed} already queued or running"] if done.followed else []
    parts += [f"{len(done.left)} left for the next command"] if done.left else []
    grids = " ".join(dict.fromkeys(entry.grid for entry in chosen))
    console().print(f"[bold]{', '.join(parts)}[/bold]. Watch: [bold]gpas status {grids} --watch[/bold]")
