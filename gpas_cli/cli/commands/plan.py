"""`gpas plan`: what a run would do and cost."""

from collections.abc import Sequence
from typing import Annotated

import typer

from gpas_cli.cli.console import STATE, print_json, say, warn
from gpas_cli.cli.options import AsJson, Executor, NamesAndSettings, Where, offer_list
from gpas_cli.cli.running import Shrink, ShrunkCells, plan_for, print_site, require_local
from gpas_cli.cli.selection import project, varied_entries, without_runs
from gpas_cli.cli.views.plan import document, grids_of, render
from gpas_cli.errors import GpasError
from gpas_cli.grid.declared import Entry
from gpas_cli.plan.machine import MEMORY_GB, named_gpus
from gpas_cli.plan.plan import Plan
from gpas_cli.plan.plan import plan as make_plan
from gpas_cli.schedule.scheduler import choose, scheduler_named

_Gpu = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        help="Estimate for GPUs of this kind, present or not: H100, or H100:8 for eight of them.",
        autocompletion=offer_list(MEMORY_GB),
    ),
]
_Mfu = Annotated[
    float | None,
    typer.Option("--mfu", min=0.01, max=1.0, help="With --gpu: the fraction of peak FLOP/s that training reaches."),
]
_Cells = Annotated[bool, typer.Option("--cells", help="List every cell, however many there are.")]
_Price = Annotated[
    float | None, typer.Option("--price", min=0.0, help="Price of a GPU-hour; adds the total cost to the plan.")
]


def plan(
    names: NamesAndSettings = None,
    where: Where = None,
    executor: Executor = "auto",
    gpu: _Gpu = None,
    mfu: _Mfu = None,
    price: _Price = None,
    cells: _Cells = False,
    shrink: Shrink = False,
    as_json: AsJson = False,
) -> None:
    """Show which cells are new, done, running or cannot run here, and their cost. Changes nothing.

    With --gpu, estimates the hours on GPUs that this machine may not have, from their peak FLOP/s and an assumed MFU;
    with --price, also the cost. With --shrink, shows the smoke test that `gpas run grid --shrink` would run.

    A plan that is printed ends with exit code 0; `gpas run grid --dry-run` ends with 2 if the run would be refused.

    Example: [bold]gpas plan table2 --gpu H100:8 --price 2.5[/bold]
    """
    chosen = varied_entries(names, where)
    if shrink:
        if gpu is not None:
            raise GpasError("--shrink runs on this machine; leave out --gpu")
        require_local(executor)
        plan_shrunk(ShrunkCells(chosen, where), cells=cells or None, asked=asked(names, where))
        return
    warn(without_runs(chosen))
    planned = _planned(chosen, executor, gpu, mfu)
    if as_json:
        print_json(document(planned, price))
    else:
        say(render(planned, price, cells=cells or None, asked=asked(names, where)))
        print_site(chosen)


def asked(names: Sequence[str] | None, where: Sequence[str] | None) -> list[str]:
    """Return the words that select the same cells in another command."""
    return [*(names or ()), *(word for condition in where or () for word in ("--where", condition))]


def plan_shrunk(shrunk: ShrunkCells, *, cells: bool | None = None, asked: Sequence[str] = ()) -> Plan:
    """Show the plan of a smoke test and the settings that were shrunk, and return the plan.

    cells and asked are as for `render`.
    """
    planned = shrunk.plan()
    if STATE.as_json:
        print_json(document(planned, shrunk=shrunk.json()))
    else:
        shrunk.print()
        say(render(planned, cells=cells, asked=[*(asked or grids_of(planned)), "--shrink"]))
    return planned


def _planned(chosen: list[Entry], executor: str, gpu: str | None, mfu: float | None) -> Plan:
    if gpu is not None:
        gpus = named_gpus(gpu, mfu)
        return make_plan(project().runs, chosen, machine=gpus, project=project())
    if mfu is not None:
        raise GpasError("--mfu needs --gpu, for example --gpu H100")
    return plan_for(scheduler_named(choose(executor).name, project().runs), chosen)
