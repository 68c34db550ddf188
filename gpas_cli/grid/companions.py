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

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from gpas_cli.errors import InvalidExperiments, Problem, nearest
from gpas_cli.files import replace_file
from gpas_cli.grid.declared import AddedSeeds, Experiments, Grid
from gpas_cli.grid.document import Mark, Node, read_document, spelled
from gpas_cli.grid.settings import Part, nested, root_of

_VERSION = 1
_WRITTEN_BY = {
    "seeds": "Seeds beyond those in {name}, added by `gpas run claims`. Keep this file beside it",
    "tuned": "The best setting of each method, found by `gpas run tuned`. Keep this file beside {name}",
}

_NewSeeds = Mapping[str, Mapping[str, Iterable[int]]]  # grid -> name of a cell without its seed -> seeds


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


def _read(path: Path, section: str, grids: Collection[str] | None, problems: list[Problem]) -> dict[str, Part]:
    """Return the parts of a file by grid, nothing without the file. Raises GpasError if it cannot be read.

    grids: the declared ones; None leaves the names unchecked.
    """
    if not path.is_file():
        return {}
    parts = root_of(read_document(path), problems).entries(("version", section))
    if parts["version"].value != _VERSION:
        parts["version"].report(f"write version: {_VERSION}")
    found = parts[section].entries()
    for name in found.keys() - (found if grids is None else grids):
        part = found.pop(name)
        part.report(f"no grid '{name}'; {nearest(name, grids or ())}", part.key)
    return found


def _write(path: Path, section: str, config: Path, grids: Mapping[str, Mapping[str, str]]) -> None:
    """Write the text of each cell by grid. Names of grids and cells have no quotes, but may read as numbers."""
    head = _WRITTEN_BY[section].format(name=config.name)
    lines = [f"# {head}, under version control.", f"version: {_VERSION}", f"{section}:"]
    for grid, cells in grids.items():
        lines += [f'  "{grid}":', *(f'    "{cell}": {text}' for cell, text in cells.items())]
    replace_file(path, "\n".join(lines) + "\n")


def read_seeds(path: Path, grids: Collection[str] | None, problems: list[Problem]) -> dict[str, AddedSeeds]:
    """Return the added seeds by grid. Raises GpasError if the file cannot be read. `grids` is as for `_read`."""
    parts = _read(path, "seeds", grids, problems)
    return {grid: {name: _seeds(child) for name, child in part.entries().items()} for grid, part in parts.items()}


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


def add_seeds(config: Path, seeds: _NewSeeds) -> None:
    """Add seeds by grid and cell to the file that belongs to `config`.

    The caller holds a lock against other writers. Raises InvalidExperiments if the file is not valid, and OSError if it
    cannot be written.
    """
    path = seeds_path(config)
    problems: list[Problem] = []
    before = read_seeds(path, None, problems)
    if problems:
        raise InvalidExperiments(problems)
    after = _merged(before, seeds, path.name)
    if after != before:
        _write(path, "seeds", config, {grid: _listed(cells) for grid, cells in after.items()})


def _listed(cells: AddedSeeds) -> dict[str, str]:
    return {name: str(sorted(node.plain() for node in nodes)) for name, nodes in cells.items()}


def read_tuned(path: Path, grids: Mapping[str, Grid], problems: list[Problem]) -> dict[str, Grid]:
    """Return the tuned grids by name. Raises GpasError if the file cannot be read."""
    found: dict[str, Grid] = {}
    for name, part in _read(path, "tuned", grids, problems).items():
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


def write_tuned(config: Path, grid: str, setting: str, best: Mapping[str, float]) -> None:
    """Write the best values of a setting, by a cell's name without its seed, to the file that belongs to `config`.

    Other cells keep theirs. The caller holds a lock against other writers. Raises InvalidExperiments if the file is not
    valid, and OSError if it cannot be written.
    """
    problems: list[Problem] = []
    parts = _read(tuned_path(config), "tuned", None, problems)
    before = {name: part.entries().nodes for name, part in parts.items()}
    if problems:
        raise InvalidExperiments(problems)
    texts = {name: {cell: _flow(node.plain()) for cell, node in cells.items()} for name, cells in before.items()}
    texts.setdefault(grid, {}).update({cell: _flow({setting: value}) for cell, value in best.items()})
    _write(tuned_path(config), "tuned", config, texts)


def _flow(settings: Mapping[str, object]) -> str:
    return f"{{{', '.join(f'{name}: {value!r}' for name, value in settings.items())}}}"
