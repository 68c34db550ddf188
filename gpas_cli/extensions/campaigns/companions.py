"""Write the files beside experiments.yaml: seeds that were added, and the best setting of each method.

`gpas_cli.grid.companions` shows and reads them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from gpas_cli.errors import InvalidExperiments, Problem
from gpas_cli.files import replace_file
from gpas_cli.grid.companions import VERSION, read_section, read_seeds, seeds_path, tuned_path
from gpas_cli.grid.declared import AddedSeeds, Entry, Experiments
from gpas_cli.grid.document import Mark, Node
from gpas_cli.grid.settings import family_name

_WRITTEN_BY = {
    "seeds": "Seeds beyond those in {name}, added by `gpas run claims`. Keep this file beside it",
    "tuned": "The best setting of each method, found by `gpas run tuned`. Keep this file beside {name}",
}

_NewSeeds = Mapping[str, Mapping[str, Iterable[int]]]  # grid -> name of a cell without its seed -> seeds


def family_of(experiments: Experiments, entry: Entry) -> tuple[str, str] | None:
    """Return the grid that declares a cell and the cell's name there without its seed, by which seeds are added to it.

    None if no grid declares the cell.
    """
    if entry.declared is None or entry.declared.grid not in experiments.grids:
        return None
    grid = experiments.grids[entry.declared.grid]
    return grid.name, family_name(grid.axis_names, entry.axes)


def with_seeds(experiments: Experiments, seeds: _NewSeeds) -> Experiments:
    """Return the experiments with further added seeds, as if the file had them."""
    return replace(experiments, seeds=_merged(experiments.seeds, seeds, seeds_path(experiments.path).name))


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


def _merged(known: Mapping[str, AddedSeeds], new: _NewSeeds, file: str) -> dict[str, AddedSeeds]:
    merged = {grid: dict(cells) for grid, cells in known.items()}
    for grid, cells in new.items():
        for name, added in cells.items():
            before = merged.setdefault(grid, {}).get(name, ())
            values = {node.value for node in before}
            more = (Node(seed, Mark(file, 0, 0)) for seed in sorted(added) if seed not in values)
            merged[grid][name] = (*before, *more)
    return dict(merged)


def _listed(cells: AddedSeeds) -> dict[str, str]:
    return {name: str(sorted(node.plain() for node in nodes)) for name, nodes in cells.items()}


def write_tuned(config: Path, grid: str, setting: str, best: Mapping[str, float]) -> None:
    """Write the best values of a setting, by a cell's name without its seed, to the file that belongs to `config`.

    Other cells keep theirs. The caller holds a lock against other writers. Raises InvalidExperiments if the file is not
    valid, and OSError if it cannot be written.
    """
    problems: list[Problem] = []
    parts = read_section(tuned_path(config), "tuned", None, problems)
    before = {name: part.entries().nodes for name, part in parts.items()}
    if problems:
        raise InvalidExperiments(problems)
    texts = {name: {cell: _flow(node.plain()) for cell, node in cells.items()} for name, cells in before.items()}
    texts.setdefault(grid, {}).update({cell: _flow({setting: value}) for cell, value in best.items()})
    _write(tuned_path(config), "tuned", config, texts)


def _flow(settings: Mapping[str, object]) -> str:
    return f"{{{', '.join(f'{name}: {value!r}' for name, value in settings.items())}}}"


def _write(path: Path, section: str, config: Path, grids: Mapping[str, Mapping[str, str]]) -> None:
    """Write the text of each cell by grid. Names of grids and cells have no quotes, but may read as numbers."""
    head = _WRITTEN_BY[section].format(name=config.name)
    lines = [f"# {head}, under version control.", f"version: {VERSION}", f"{section}:"]
    for grid, cells in grids.items():
        lines += [f'  "{grid}":', *(f'    "{cell}": {text}' for cell, text in cells.items())]
    replace_file(path, "\n".join(lines) + "\n")
