"""Files beside experiments.yaml that commands write: seeds that were added, and the best setting of each method.

`gpas run claims` adds seeds until claims are decided, and writes them to `experiments.seeds.yaml`. Their cells are
cells of the grid, with the keys that they would have if the grid declared the seeds.

    version: 1
    seeds:
      quickstart:             # a grid
        pre: [3, 4]           # a cell's name without its seed: pre-s3 and pre-s4
        pre-gpas: [3, 4]

`gpas run tuned quickstart` finds the best learning rate of each method and writes it to `experiments.tuned.yaml`:

    version: 1
    tuned:
      quickstart:                     # the grid quickstart-tuned has these cells of quickstart
        pre: {optim.lr: 0.003}        # a cell's name without its seed
        pre-gpas: {optim.lr: 0.0015}
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from gpas_cli.errors import Problem, nearest
from gpas_cli.grid.declared import AddedSeeds, Grid
from gpas_cli.grid.document import Node, read_document, spelled
from gpas_cli.grid.settings import Part, nested, root_of

VERSION = 1


def seeds_path(config: Path) -> Path:
    """Return the path of the file of added seeds that belongs to an experiments file."""
    return config.with_suffix(".seeds.yaml")


def tuned_path(config: Path) -> Path:
    """Return the path of the file of tuned settings that belongs to an experiments file."""
    return config.with_suffix(".tuned.yaml")


def companions(config: Path) -> dict[str, Path]:
    """Return the files that belong to an experiments file and exist, by the ending that they have in place of .yaml."""
    paths = {".seeds.yaml": seeds_path(config), ".tuned.yaml": tuned_path(config)}
    return {ending: path for ending, path in paths.items() if path.exists()}


def tuned_name(grid: str) -> str:
    """Return the name of the grid with the tuned cells of a grid."""
    return f"{grid}-tuned"


def read_section(path: Path, section: str, grids: Collection[str] | None, problems: list[Problem]) -> dict[str, Part]:
    """Return the parts of a file by grid, nothing without the file. Raises GpasError if it cannot be read.

    grids: the declared ones; None leaves the names unchecked.
    """
    if not path.is_file():
        return {}
    parts = root_of(read_document(path), problems).entries(("version", section))
    if parts["version"].value != VERSION:
        parts["version"].report(f"write version: {VERSION}")
    found = parts[section].entries()
    for name in found.keys() - (found if grids is None else grids):
        part = found.pop(name)
        part.report(f"no grid '{name}'; {nearest(name, grids or ())}", part.key)
    return found


def read_seeds(path: Path, grids: Collection[str] | None, problems: list[Problem]) -> dict[str, AddedSeeds]:
    """Return the added seeds by grid. Raises GpasError if the file cannot be read. `grids` is as for `read_section`."""
    parts = read_section(path, "seeds", grids, problems)
    return {grid: {name: _seeds(child) for name, child in part.entries().items()} for grid, part in parts.items()}


def _seeds(part: Part) -> tuple[Node, ...]:
    seeds: dict[int, Node] = {}
    for item in part.items():
        if isinstance(item.value, int) and not isinstance(item.value, bool) and item.value >= 0:
            seeds.setdefault(item.value, Node(item.value, item.mark))
        else:
            item.report(f"'{spelled(item.value)}' is not a seed: a whole number from 0")
    return tuple(seeds.values())


def read_tuned(path: Path, grids: Mapping[str, Grid], problems: list[Problem]) -> dict[str, Grid]:
    """Return the tuned grids by name. Raises GpasError if the file cannot be read."""
    found: dict[str, Grid] = {}
    for name, part in read_section(path, "tuned", grids, problems).items():
        if tuned_name(name) in grids:
            part.report(f"{tuned_name(name)} is also a grid of the experiments file; rename that one", part.key)
            continue
        tuned = {
            cell: nested(child.node, problems, ("tuned", name, cell))
            for cell, child in part.entries().items()
            if child.entries() and child.node is not None
        }
        title = f"{grids[name].title or name}, each method tuned"
        table = replace(grids[name].table_spec, title=title)
        found[tuned_name(name)] = replace(grids[name], name=tuned_name(name), title=title, table=table, tuned=tuned)
    return found
