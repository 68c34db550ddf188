"""The experiments that the package ships, read and expanded once for all tests."""

from functools import cache

from gpas_cli.grid.declared import Entry
from gpas_cli.grid.expand import expand
from gpas_cli.grid.load import load
from gpas_cli.project import packaged

EXPERIMENTS = load(packaged("experiments.yaml"))


@cache
def cells_of(name: str) -> tuple[Entry, ...]:
    """Return the cells of a grid."""
    return tuple(expand(EXPERIMENTS, [name]))


@cache
def everything() -> tuple[Entry, ...]:
    """Return the cells of all grids, those that several grids have once."""
    return tuple(expand(EXPERIMENTS, list(EXPERIMENTS.grids)))
