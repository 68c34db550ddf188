"""What a command would run: the plan that `gpas plan` shows, for every command that starts jobs."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from gpas_cli.cli.console import console
from gpas_cli.cli.selection import experiments, project
from gpas_cli.grid.entry import Entry
from gpas_cli.grid.resources import from_site, site_path
from gpas_cli.plan.plan import Plan
from gpas_cli.plan.plan import plan as make_plan
from gpas_cli.schedule.scheduler import Scheduler


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
        console().print(f"from the site's profile, {site_path()}: {', '.join(names)}", style="dim", soft_wrap=True)
