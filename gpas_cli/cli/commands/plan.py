"""`gpas plan`: what a run would do and cost."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated

import typer

from gpas_cli.cli.console import STATE, print_json, say, warn
from gpas_cli.cli.options import AsJson, Executor, NamesAndSettings, Where, offer_list
from gpas_cli.cli.selection import experiments, project, varied_entries, without_runs
from gpas_cli.cli.views.plan import ShrunkJson, document, grids_of, render, render_shrunk
from gpas_cli.data import stdlib
from gpas_cli.errors import GpasError
from gpas_cli.grid.declared import Entry
from gpas_cli.grid.resources import from_site, site_path
from gpas_cli.grid.select import names_in
from gpas_cli.grid.variant import TinyText, changes, one_seed, shrink
from gpas_cli.plan.machine import MEMORY_GB, named_gpus
from gpas_cli.plan.plan import Plan
from gpas_cli.plan.plan import plan as make_plan
from gpas_cli.project import Project
from gpas_cli.report.tables.table_place import RETRIED
from gpas_cli.schedule.scheduler import Scheduler, choose
from gpas_cli.state.claims import LOCAL
from gpas_cli.store.snapshot import current_code

DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Only print what would run.")]
Shrink = Annotated[
    bool,
    typer.Option("--shrink", help="Smoke test: train each cell in tiny form for two updates; results are kept apart."),
]


def plan(
    names: NamesAndSettings = None,
    where: Where = None,
    executor: Executor = "auto",
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu",
            help="Estimate for GPUs of this kind, present or not: H100, or H100:8 for eight of them.",
            autocompletion=offer_list(MEMORY_GB),
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
    """Show which cells are new, done, running or cannot run here, and their cost. Changes nothing.

    With --gpu, estimates the hours on GPUs that this machine may not have, from their peak FLOP/s and an assumed MFU;
    with --price, also the cost. With --shrink, shows the smoke test that `gpas run grid --shrink` would run.

    Exit code 0 even if the run would be refused; `gpas run grid --dry-run` then exits with 2.

    Example: [bold]gpas plan table2 --gpu H100:8 --price 2.5[/bold]
    """
    chosen = varied_entries(names, where)
    if shrunk:
        if gpu is not None:
            raise GpasError("--shrink has no use for a kind of GPU; leave out --gpu")
        plan_shrunk(chosen, where, executor, asked(names, where), cells or None)
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


def _planned(chosen: list[Entry], executor: str, gpu: str | None, mfu: float | None) -> Plan:
    if gpu is not None:
        gpus = named_gpus(gpu, mfu)
        return make_plan(project().runs, chosen, machine=gpus, project=project())
    if mfu is not None:
        raise GpasError("--mfu needs --gpu, for example --gpu H100")
    return plan_for(choose(executor, project().runs)[0], chosen)


def plan_for(scheduler: Scheduler, chosen: list[Entry], retry: Collection[str] = ()) -> Plan:
    """Return the plan of running these cells with a scheduler, with the jobs that it runs before them."""
    here = project()
    prepare = partial(scheduler.prepare, here)
    return make_plan(here.runs, chosen, retry=retry, machine=scheduler.machine(), project=here, prepare=prepare)


def print_site(chosen: list[Entry]) -> None:
    """Print which resources of the cells' jobs come from the site's profile, if there is one."""
    site = experiments().site
    names = {
        name: None
        for entry in (chosen if site else ())
        for stage in entry.cell.stages
        for name, _ in from_site(site, entry.axes.get("size"), stage.kind, entry.resources_of(stage))
    }
    if names:
        say(f"from the site's profile, {site_path()}: {', '.join(names)}", style="dim", soft_wrap=True)


def plan_shrunk(
    chosen: Sequence[Entry], where: Sequence[str] | None, executor: str, asked: Sequence[str], cells: bool | None = None
) -> Plan:
    """Show and return the plan of running cells in tiny form, as if their text were written.

    `where` and `executor` are as for `shrunk_cells`, `cells` and `asked` as for `render`.
    """
    here, scheduler, tiny, shrunk = shrunk_cells(chosen, where, executor)
    planned = make_plan(here.runs, tiny, retry=RETRIED, machine=scheduler.machine())
    if STATE.as_json:
        print_json(document(planned, shrunk=shrunk))
    else:
        say(render_shrunk(shrunk))
        say(render(planned, cells=cells, asked=[*(asked or grids_of(planned)), "--shrink"]))
    return planned


def shrunk_cells(
    chosen: Sequence[Entry], where: Sequence[str] | None, executor: str
) -> tuple[Project, Scheduler, list[Entry], ShrunkJson]:
    """Return the project of a smoke test of cells, its scheduler, their tiny forms, and what was shrunk.

    Of cells that differ only in the seed, one is taken, unless a condition in `where` names seeds. The project is
    in a folder of the code's version, so that a change of the code runs all cells again. `executor`: auto is this
    machine.
    """
    whole = list(chosen) if "seed" in names_in(where or ()) else one_seed(chosen)
    here = project()
    root = here.config.parent
    folder = root / ".gpas" / "shrunk" / current_code()
    names = (stdlib.TRAINING_TEXT, stdlib.VALIDATION_TEXT, stdlib.FINETUNING_RECORDS)
    text = TinyText(*(str((folder / name).relative_to(root)) for name in names))
    nodes = executor not in ("auto", LOCAL)
    tiny = shrink(whole, text, experiments().catalogue, nodes=nodes)
    shrunk = ShrunkJson(folder=folder, left_out=len(chosen) - len(whole), settings=changes(whole, tiny))
    # The project of shrunk cells shares only the experiments file with this one.
    apart = replace(here, runs=folder / "runs", cache=folder / "cache", database=str(folder / "gpas.db"))
    return apart, choose(executor if nodes else LOCAL, apart.runs)[0], tiny, shrunk
