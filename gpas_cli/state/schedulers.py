"""Schedulers by name: `local`, `slurm`, and those of installed packages.

A package adds one as an entry point of the group `gpas_cli.schedulers`; docs/how-to/scheduler.md shows how.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from gpas_cli.errors import GpasError, nearest
from gpas_cli.state.claims import LOCAL, SLURM

GROUP = "gpas_cli.schedulers"
# References rather than entry points: a job runs a copy of the code that is not an installed distribution.
BUILT_IN = {
    name: EntryPoint(name, value, GROUP)
    for name, value in {
        LOCAL: "gpas_cli.schedule.local.scheduler:LocalScheduler",
        SLURM: "gpas_cli.schedule.slurm.scheduler:SlurmScheduler",
    }.items()
}


def scheduler_names() -> list[str]:
    """Return the names of all schedulers, the package's own first."""
    return list(_known())


def scheduler_class(name: str) -> Any:
    """Return the class of the scheduler `name`, a `gpas_cli.schedule.scheduler.Scheduler`.

    Raises GpasError if there is no such scheduler or if it cannot be imported.
    """
    # The installed distributions are searched only for other names: a view of claims is made many times a minute.
    known = BUILT_IN if name in BUILT_IN else _known()
    if name not in known:
        raise GpasError(f"unknown scheduler '{name}'; {nearest(name, known)}")
    try:
        return known[name].load()
    except Exception as error:
        raise GpasError(f"the scheduler '{name}' cannot be loaded: {type(error).__name__}: {error}") from error


def _known() -> dict[str, EntryPoint]:
    added = {point.name: point for point in entry_points(group=GROUP)}
    return {**BUILT_IN, **{name: point for name, point in added.items() if name not in BUILT_IN}}
