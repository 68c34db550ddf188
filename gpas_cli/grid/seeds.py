"""Seeds of cells beyond those that experiments.yaml declares, in a file of their own beside it.

`gpas run claims` adds seeds until claims are decided, and writes them to `experiments.seeds.yaml`:

    version: 1
    seeds:
      quickstart:             # a grid
        pre: [3, 4]           # a cell's name without its seed: pre-s3 and pre-s4
        pre-gpas: [3, 4]

Their cells are cells of the grid, with the keys that they would have if the grid declared the seeds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from gpas_cli.errors import InvalidExperiments, Problem, nearest
from gpas_cli.files import replace_file
from gpas_cli.grid.declared import AddedSeeds, Experiments
from gpas_cli.grid.document import Mark, Node, read_document
from gpas_cli.grid.readers import add_problem, read_list, read_mapping

_VERSION = 1
HEAD = """\
# Seeds beyond those in {name}, added by `gpas run claims`. Keep this file beside it, under version control.
version: 1
seeds:
"""

NewSeeds = Mapping[str, Mapping[str, Iterable[int]]]  # grid -> name of a cell without its seed -> seeds


def seeds_path(config: Path) -> Path:
    """Return the path of the file of added seeds that belongs to an experiments file."""
    return config.with_suffix(".seeds.yaml")


def read_seeds(path: Path, grids: Collection[str], problems: list[Problem]) -> dict[str, AddedSeeds]:
    """Return the added seeds by grid, nothing if there is no such file. Raises GpasError if it cannot be read."""
    if not path.is_file():
        return {}
    parts = read_mapping(read_document(path), (), problems, ("version", "seeds"))
    version = parts.get("version")
    if version is None or version.value != _VERSION:
        place = version or next(iter(parts.values()), None)
        where = str(place.mark) if place else str(path.name)
        problems.append(Problem(("version",), f"write version: {_VERSION}", where))
    found: dict[str, AddedSeeds] = {}
    for grid, node in read_mapping(parts.get("seeds"), ("seeds",), problems).items():
        if grid not in grids:
            add_problem(problems, ("seeds", grid), f"no grid '{grid}'; {nearest(grid, grids)}", node.key or node.mark)
            continue
        cells = read_mapping(node, ("seeds", grid), problems)
        found[grid] = {name: _seeds(child, ("seeds", grid, name), problems) for name, child in cells.items()}
    return found


def _seeds(node: Node, path: tuple[str, ...], problems: list[Problem]) -> tuple[Node, ...]:
    seeds: dict[int, Node] = {}
    for item in read_list(node, path, problems):
        if isinstance(item.value, int) and not isinstance(item.value, bool) and item.value >= 0:
            seeds.setdefault(item.value, item)
        else:
            add_problem(problems, path, f"'{item.plain()}' is not a seed: a whole number from 0", item)
    return tuple(seeds.values())


def with_seeds(experiments: Experiments, seeds: NewSeeds) -> Experiments:
    """Return the experiments with further added seeds, as if the file had them."""
    place = Mark(seeds_path(experiments.path).name, 0, 0)
    merged = {grid: dict(cells) for grid, cells in experiments.seeds.items()}
    for grid, cells in seeds.items():
        for name, added in cells.items():
            known = merged.setdefault(grid, {}).get(name, ())
            values = {node.value for node in known}
            merged[grid][name] = (*known, *(Node(seed, place) for seed in sorted(added) if seed not in values))
    return replace(experiments, seeds=merged)


def add_seeds(config: Path, seeds: NewSeeds) -> bool:
    """Add seeds by grid and cell to the file that belongs to `config`. Return whether any was new.

    The caller holds a lock against other writers. Raises InvalidExperiments if the file is not valid, and OSError if it
    cannot be written.
    """
    path = seeds_path(config)
    problems: list[Problem] = []
    before = {
        grid: {name: [int(str(node.value)) for node in nodes] for name, nodes in cells.items()}
        for grid, cells in read_seeds(path, _grids(path), problems).items()
    }
    if problems:
        raise InvalidExperiments(problems)
    after = {grid: {name: list(known) for name, known in cells.items()} for grid, cells in before.items()}
    for grid, cells in seeds.items():
        for name, added in cells.items():
            known = after.setdefault(grid, {}).setdefault(name, [])
            known.extend(seed for seed in added if seed not in known)
            known.sort()
    if after == before:
        return False
    replace_file(path, HEAD.format(name=config.name) + _written(after))
    return True


def _grids(path: Path) -> Collection[str]:
    """Return the grids that the file names, without checking that they are declared."""
    parts = read_mapping(read_document(path), (), []) if path.is_file() else {}
    return read_mapping(parts.get("seeds"), ("seeds",), [])


def _written(seeds: Mapping[str, Mapping[str, Iterable[int]]]) -> str:
    lines = []
    for grid, cells in seeds.items():
        lines.append(f"  {_quoted(grid)}:")
        lines += [f"    {_quoted(name)}: [{', '.join(map(str, added))}]" for name, added in cells.items()]
    return "".join(f"{line}\n" for line in lines)


def _quoted(name: str) -> str:
    """Return a name as a YAML string. Names of grids and cells have no quotes, but may read as numbers."""
    return f'"{name}"'
