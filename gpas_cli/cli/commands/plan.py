"""`gpas plan`: what a run would do and cost."""

from typing import Annotated

import typer

from gpas_cli.cli.console import print_json, say, warn
from gpas_cli.cli.options import AsJson, Executor, NamesAndSettings, Shrink, Where, offer_list
from gpas_cli.cli.running import plan_for, plan_shrunk, words_of
from gpas_cli.cli.selection import entries, experiments, project, split_settings, varied_entries, without_runs
from gpas_cli.cli.views.plan import document, render
from gpas_cli.errors import GpasError
from gpas_cli.grid.declared import Entry
from gpas_cli.plan.machine import named_gpus
from gpas_cli.plan.plan import Plan
from gpas_cli.plan.plan import plan as make_plan
from gpas_cli.processor import GPUS
from gpas_cli.report.tables.grid_table import build
from gpas_cli.schedule.scheduler import choose


def plan(
    names: NamesAndSettings = None,
    where: Where = None,
    executor: Executor = "auto",
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu",
            help="Estimate for GPUs of this kind, present or not: H100, or H100:8 for eight of them.",
            autocompletion=offer_list(GPUS),
        ),
    ] = None,
    mfu: Annotated[
        float | None,
        typer.Option("--mfu", min=0.01, max=1.0, help="With --gpu: the fraction of peak FLOP/s that training reaches."),
    ] = None,
    price: Annotated[
        float | None, typer.Option("--price", min=0.0, help="Price of a GPU-hour; adds the total cost to the plan.")
    ] = None,
    cells: Annotated[bool, typer.Option("--cells", help="List every cell, however many there are.")] = False,
    shrunk: Shrink = False,
    as_json: AsJson = False,
) -> None:
    """Show what a grid would run, and its cost. Nothing changes.

    With --gpu, estimates the hours on GPUs that this machine may not have, from their peak FLOP/s and an assumed MFU;
    with --price, also the cost. With --shrink, shows the smoke test that `gpas run grid --shrink` would run.

    Exit code 0 even if the run would be refused; `gpas run grid --dry-run` then exits with 2.

    Example: gpas plan table2 --gpu H100:8 --price 2.5
    """
    chosen = varied_entries(names, where)
    if not where:
        # Raises GpasError for a declared table that could not be printed once the cells have been trained.
        for name in split_settings(names or [])[0] or [experiments().default]:
            if spec := experiments().grids[name].table:
                build(entries([name]), {}, {}, spec)
    if shrunk:
        if gpu is not None:
            raise GpasError("--shrink has no use for a kind of GPU; leave out --gpu")
        plan_shrunk(chosen, where, executor, words_of(names, where), cells or None)
        return
    warn(without_runs(chosen))
    planned = _planned(chosen, executor, gpu, mfu)
    if as_json:
        print_json(document(planned, price))
    else:
        say(render(planned, price, cells=cells or None, asked=words_of(names, where)))


def _planned(chosen: list[Entry], executor: str, gpu: str | None, mfu: float | None) -> Plan:
    if gpu is not None:
        gpus = named_gpus(gpu, mfu)
        return make_plan(project().runs, chosen, machine=gpus, project=project())
    if mfu is not None:
        raise GpasError("--mfu needs --gpu, for example --gpu H100")
    return plan_for(choose(executor, project().runs)[0], chosen)
