"""The experiments that the package ships, read and expanded once for all tests."""

from functools import cache
from typing import Any

import yaml

from gpas_cli.grid.declared import Entry
from gpas_cli.grid.document import read_document
from gpas_cli.grid.expand import expand
from gpas_cli.grid.include import read_files, with_likes
from gpas_cli.grid.load import load
from gpas_cli.grid.packs import known_packs
from gpas_cli.project import packaged

EXPERIMENTS = load(packaged("experiments.yaml"))
PACKS = EXPERIMENTS.packs


@cache
def cells_of(name: str) -> tuple[Entry, ...]:
    """Return the cells of a grid."""
    return tuple(expand(EXPERIMENTS, [name]))


@cache
def everything() -> tuple[Entry, ...]:
    """Return the cells of all grids, those that several grids have once."""
    return tuple(expand(EXPERIMENTS, list(EXPERIMENTS.grids)))


@cache
def excerpt(*grids: str) -> str:
    """Return a file with these shipped grids alone, which commands read and expand much faster."""
    path = packaged("experiments.yaml")
    found: dict[str, dict[str, Any]] = {"grids": {}}
    for file in read_files(read_document(path), path, [], dict(known_packs())).with_included:
        parts = with_likes(file.own("grids"), file.visible("grids"))
        own = {name: parts[name].node.plain() for name in grids if name in parts}
        found["grids"] |= own
        for section in ("sizes", "corpora", "networks", "recipes", "resources") if own else ():
            found.setdefault(section, {}).update({n: node.plain() for n, node in file.sections[section].nodes.items()})
    declared = {name: found["grids"][name] for name in grids}
    return yaml.safe_dump({"version": 1, "default": grids[0], **found, "grids": declared}, sort_keys=False, width=120)
