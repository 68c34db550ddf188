"""The experiments that the package ships, read and expanded once for all tests."""

import re
from functools import cache

from gpas_cli.grid.declared import Entry
from gpas_cli.grid.expand import expand
from gpas_cli.grid.load import load
from gpas_cli.project import packaged

TEXT = packaged("experiments.yaml").read_text("utf-8")
EXPERIMENTS = load(packaged("experiments.yaml"))


@cache
def cells_of(name: str) -> tuple[Entry, ...]:
    """Return the cells of a grid."""
    return tuple(expand(EXPERIMENTS, [name]))


@cache
def everything() -> tuple[Entry, ...]:
    """Return the cells of all grids, those that several grids have once."""
    return tuple(expand(EXPERIMENTS, list(EXPERIMENTS.grids)))


def excerpt(*grids: str) -> str:
    """Return the shipped file with these grids alone, which commands read and expand much faster."""
    head, _, declared = TEXT.partition("\ngrids:\n")
    blocks = re.split(r"^(?=  [\w-]+:\n)", declared, flags=re.MULTILINE)
    return f"{head}\ngrids:\n" + "".join(block for block in blocks if block.strip().partition(":")[0] in grids)
