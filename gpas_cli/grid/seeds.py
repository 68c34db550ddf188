"""Seeds of cells beyond those that experiments.yaml declares, in a file of their own beside it.

`gpas run claims` adds seeds until claims are decided, and writes them to `experiments.seeds.yaml`:

    version: 1
    seeds:
      quickstart:             # a grid
        pre: [3, 4]           # a cell's name without its seed: pre-s3 and pre-s4
        pre-gpas: [3, 4]

Their cells are cells of the grid, with the keys that they would have if the grid declared the seeds.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from gpas_cli.errors import InvalidExperiments, Problem, nearest
from gpas_cli.files import replace_file
from gpas_cli.grid.declared import AddedSeeds, Experiments
from gpas_cli.grid.document import Mark, Node, read_document, spelled
from gpas_cli.grid.readers import Part, root_of

_VERSION = 1
_HEAD = """\
# Seeds beyond those in {name}, added by `gpas run claims`. Keep this file beside it, under version control.
version: 1
seeds:
"""

_NewSeeds = Mapping[str, Mapping[str, Iterable[int]]]  # grid -> name of a cell without its seed -> seeds


def seeds_path(config: Path) -> Path:
    """Return the path of the file of added seeds that belongs to an experiments file."""
    return config.with_suffix(".seeds.yaml")


def read_seeds(path: Path, grids: Collection[str] | None, problems: list[Problem]) -> dict[str, AddedSeeds]:
    """Return the added seeds by grid, nothing if there is no such file. Raises GpasError if it cannot be read.

    grids: the declared grids; None leaves the names unchecked.
    """
    if not path.is_file():
        return {}
    parts = root_of(read_document(path), problems).entries(("version", "seeds"))
    if parts["version"].value != _VERSION:
        parts["version"].report(f"write version: {_VERSION}")
    found: dict[str, AddedSeeds] = {}
    for grid, part in parts["seeds"].entries().items():
        if grids is not None and grid not in grids:
            part.report(f"no grid '{grid}'; {nearest(grid, grids)}", part.key)
        else:
            found[grid] = {name: _seeds(child) for name, child in part.entries().items()}
    return found


def _seeds(part: Part) -> tuple[Node, ...]:
    seeds: dict[int, Node] = {}
    for item in part.items():
        if isinstance(item.value, int) and not isinstance(item.value, bool) and item.value >= 0:
            seeds.setdefault(item.value, Node(item.value, item.mark))
        else:
            item.report(f"'{spelled(item.value)}' is not a seed: a whole number from 0")
    return tuple(seeds.values())


def with_seeds(experiments: Experiments, seeds: _NewSeeds) -> Experiments:
    """Return the experiments with further added seeds, as if the file had them."""
    return replace(experiments, seeds=_merged(experiments.seeds, seeds, seeds_path(experiments.path).name))


def _merged(known: Mapping[str, AddedSeeds], new: _NewSeeds, file: str) -> dict[str, AddedSeeds]:
    merged = {grid: dict(cells) for grid, cells in known.items()}
    for grid, cells in new.items():
        for name, added in cells.items():
            before = merged.setdefault(grid, {}).get(name, ())
            values = {node.value for node in before}
            more = (Node(seed, Mark(file, 0, 0)) for seed in sorted(added) if seed not in values)
            merged[grid][name] = (*before, *more)
    return dict(merged)


def add_seeds(config: Path, seeds: _NewSeeds) -> bool:
    """Add seeds by grid and cell to the file that belongs to `config`. Return whether any was new.

    The caller holds a lock against other writers. Raises InvalidExperiments if the file is not valid, and OSError if it
    cannot be written.
    """
    path = seeds_path(config)
    problems: list[Problem] = []
    before = read_seeds(path, None, problems)
    if problems:
        raise InvalidExperiments(problems)
    after = _merged(before, seeds, path.name)
    if after == before:
        return False
    replace_file(path, _HEAD.format(name=config.name) + _written(after))
    return True


def _written(seeds: Mapping[str, AddedSeeds]) -> str:
    """Return the lines of the file. Names of grids and cells have no quotes, but may read as numbers."""
    lines = []
    for grid, cells in seeds.items():
        lines.append(f'  "{grid}":\n')
        for name, nodes in cells.items():
            lines.append(f'    "{name}": {sorted(node.plain() for node in nodes)}\n')
    return "".join(lines)
