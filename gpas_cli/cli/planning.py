"""What a command would run: the plan that `gpas plan` shows, for every command that starts jobs."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING

from gpas_cli.cli.selection import project

if TYPE_CHECKING:
    from gpas_cli.grid.entry import Entry
    from gpas_cli.plan.plan import Plan
    from gpas_cli.schedule.scheduler import Scheduler


def plan_for(scheduler: Scheduler, chosen: list[Entry], retry: Collection[str] = ()) -> Plan:
    """Return the plan of running these cells with a scheduler, with the jobs that it runs before them."""
    from gpas_cli.plan.plan import plan as make_plan

    here = project()
    prepare = partial(scheduler.prepare, here)
    return make_plan(here.runs, chosen, retry=retry, machine=scheduler.machine(), project=here, prepare=prepare)
