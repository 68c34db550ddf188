"""Grids in which each method has its own best setting, in a file beside experiments.yaml.

`gpas run tuned quickstart` finds the best learning rate of each method and writes it to `experiments.tuned.yaml`:

    version: 1
    tuned:
      quickstart:                     # the grid quickstart-tuned has these cells of quickstart
        pre: {optim.lr: 0.003}        # a cell's name without its seed
        pre-gpas: {optim.lr: 0.0015}
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gpas_cli.errors import InvalidExperiments, Problem, nearest
from gpas_cli.files import replace_file
from gpas_cli.grid.declared import Grid
from gpas_cli.grid.document import Node, read_document
from gpas_cli.grid.readers import Part, root_of
from gpas_cli.grid.seeds import seeds_path
from gpas_cli.grid.settings import nested

_SUFFIX = "-tuned"
_VERSION = 1
_HEAD = """\
# The best setting of each method, found by `gpas run tuned`. Keep this file beside {name}, under version control.
version: 1
tuned:
"""


def tuned_path(config: Path) -> Path:
    """Return the path of the file of tuned settings that belongs to an experiments file."""
    return config.with_suffix(".tuned.yaml")


def companions(config: Path) -> dict[str, Path]:
    """Return the files that belong to an experiments file and exist, by the ending that they have in place of .yaml."""
    paths = {".seeds.yaml": seeds_path(config), ".tuned.yaml": tuned_path(config)}
    return {ending: path for ending, path in paths.items() if path.exists()}


def tuned_name(grid: str) -> str:
    """Return the name of the grid with the tuned cells of a grid."""
    return f"{grid}{_SUFFIX}"


def read_tuned(path: Path, grids: Mapping[str, Grid], problems: list[Problem]) -> dict[str, Grid]:
    """Return the tuned grids by name, nothing if there is no such file. Raises GpasError if it cannot be read."""
    found: dict[str, Grid] = {}
    for name, part in _parts(path, problems).items():
        if name not in grids:
            part.report(f"no grid '{name}'; {nearest(name, grids)}", part.key)
        elif tuned_name(name) in grids:
            part.report(f"{tuned_name(name)} is also a grid of the experiments file; rename that one", part.key)
        else:
            tuned = {
                cell: nested(child.node, problems, ("tuned", name, cell))
                for cell, child in part.entries().items()
                if child.entries() and child.node is not None
            }
            title = f"{grids[name].title or name}, each method tuned"
            table = replace(grids[name].table_spec, title=title)
            found[tuned_name(name)] = replace(grids[name], name=tuned_name(name), title=title, table=table, tuned=tuned)
    return found


def _parts(path: Path, problems: list[Problem]) -> dict[str, Part]:
    if not path.is_file():
        return {}
    parts = root_of(read_document(path), problems).entries(("version", "tuned"))
    if parts["version"].value != _VERSION:
        parts["version"].report(f"write version: {_VERSION}")
    return parts["tuned"].entries()


def write_tuned(config: Path, grid: str, setting: str, best: Mapping[str, float]) -> None:
    """Write the best values of a setting, by a cell's name without its seed, to the file that belongs to `config`.

    Other cells keep theirs. The caller holds a lock against other writers. Raises InvalidExperiments if the file is not
    valid, and OSError if it cannot be written.
    """
    path = tuned_path(config)
    problems: list[Problem] = []
    before = {name: part.entries().nodes for name, part in _parts(path, problems).items()}
    if problems:
        raise InvalidExperiments(problems)
    lines = {name: {cell: _flow(node) for cell, node in cells.items()} for name, cells in before.items()}
    lines.setdefault(grid, {}).update({cell: f"{{{setting}: {value!r}}}" for cell, value in best.items()})
    text = [line for name, cells in lines.items() for line in (f'  "{name}":\n', *_entries(cells))]
    replace_file(path, _HEAD.format(name=config.name) + "".join(text))


def _entries(cells: Mapping[str, str]) -> list[str]:
    return [f'    "{cell}": {settings}\n' for cell, settings in cells.items()]


def _flow(node: Node) -> str:
    return f"{{{', '.join(f'{name}: {value!r}' for name, value in node.plain().items())}}}"
