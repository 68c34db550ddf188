"""Arguments and options that several commands share, with their completion in the shell."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from gpas_cli.cli.console import STATE
from gpas_cli.cli.selection import experiments
from gpas_cli.errors import GpasError

if TYPE_CHECKING:
    pass


def complete_grid(incomplete: str) -> list[str]:
    """Return the grids that begin with `incomplete`, none if the file cannot be read."""
    try:
        return [name for name in experiments().grids if name.startswith(incomplete)]
    except GpasError:
        return []


def complete_cell(incomplete: str) -> list[str]:
    """Return names in the default grid, grid/name in all grids and, from four digits on, keys that begin so."""
    from gpas_cli.grid.expand import cell_names

    try:
        names = {grid: cell_names(experiments(), grid) for grid in experiments().grids}
    except GpasError:
        return []
    usual = names.get(experiments().default, [])
    everything = [f"{grid}/{name}" for grid, found in names.items() for name in found]
    return [name for name in (*usual, *everything) if name.startswith(incomplete)] or _keys(incomplete)


def _keys(incomplete: str) -> list[str]:
    from gpas_cli.grid.expand import expand
    from gpas_cli.grid.select import MIN_PREFIX_DIGITS

    if len(incomplete) < MIN_PREFIX_DIGITS or set(incomplete) - set("0123456789abcdef"):
        return []
    try:
        keys = dict.fromkeys(entry.key for entry in expand(experiments(), list(experiments().grids)))
    except GpasError:
        return []
    return [key for key in keys if key.startswith(incomplete)]


def complete_cell_or_grid(incomplete: str) -> list[str]:
    """Return grids, then cells, that begin with `incomplete`."""
    return [*complete_grid(incomplete), *complete_cell(incomplete)]


def complete_setting(incomplete: str) -> list[str]:
    """Return the settings of a cell of the default grid that begin so, as PATH=."""
    from gpas_cli.grid.expand import expand
    from gpas_cli.spec.parse import flat, plain

    try:
        first = next(iter(expand(experiments(), [experiments().default])), None)
    except GpasError:
        return []
    return [f"{name}=" for name in flat(plain(first.cell)) if name.startswith(incomplete)] if first else []


def complete_cell_or_setting(incomplete: str) -> list[str]:
    """Return cells that begin with `incomplete`, or settings."""
    return complete_cell(incomplete) or complete_setting(incomplete)


def complete_grid_or_setting(incomplete: str) -> list[str]:
    """Return grids that begin with `incomplete`, or settings."""
    return complete_grid(incomplete) or complete_setting(incomplete)


def complete_printed(incomplete: str) -> list[str]:
    """Return the tables of the papers, SOURCE:NUMBER, that begin with `incomplete`."""
    from gpas_cli.report.papers import SOURCES
    from gpas_cli.report.papers.layouts import ALIASES, SEPARATOR, numbers, source_named

    short = [name for name in (*SOURCES, *ALIASES) if name not in ALIASES.values()]
    names = (f"{source}{SEPARATOR}{number}" for source in short for number in numbers(source_named(source)))
    return [name for name in names if name.startswith(incomplete)]


def complete_where(incomplete: str) -> list[str]:
    """Return conditions AXIS=LABEL of all grids that begin with `incomplete`."""
    from gpas_cli.grid.document import spelled
    from gpas_cli.grid.expand import expand

    try:
        every = expand(experiments(), list(experiments().grids))
    except GpasError:
        return []
    conditions = dict.fromkeys(f"{axis}={spelled(label)}" for entry in every for axis, label in entry.axes.items())
    return [condition for condition in conditions if condition.startswith(incomplete)]


def complete_from(words: Iterable[str]) -> Callable[[str], list[str]]:
    """Return a completion function for a comma-separated list of `words`."""
    known = list(words)

    def complete(incomplete: str) -> list[str]:
        before, comma, begun = incomplete.rpartition(",")
        return [f"{before}{comma}{word}" for word in known if word.startswith(begun)]

    return complete


def _json_alone(asked: bool) -> bool:
    STATE.as_json = asked
    return asked


Names = Annotated[
    list[str] | None,
    typer.Argument(help="Grids in experiments.yaml; by default its default grid.", autocompletion=complete_grid),
]

Cell = Annotated[
    str, typer.Argument(help="grid/name, a unique name, or the start of a key.", autocompletion=complete_cell)
]

Cells = Annotated[
    list[str],
    typer.Argument(
        help="Cells (grid/name, a unique name, or the start of a key) and settings for all of them: optim.lr=3e-3.",
        autocompletion=complete_cell_or_setting,
    ),
]

NamesAndSettings = Annotated[
    list[str] | None,
    typer.Argument(
        help="Grids in experiments.yaml (by default its default grid) and settings for every cell: optim.lr=3e-3.",
        autocompletion=complete_grid_or_setting,
    ),
]

Settings = Annotated[
    list[str] | None,
    typer.Argument(
        help="Settings to change in the cell, as in experiments.yaml: optim.lr=3e-3 gate=gpas.",
        autocompletion=complete_setting,
    ),
]

CellsOrGrids = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CELL|GRID...",
        help="Cells (grid/name, a unique name, or the start of a key), or grids for all of their cells.",
        autocompletion=complete_cell_or_grid,
    ),
]

Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        "-w",
        help="Select cells: gate=gpas, seed!=2 or optim.lr=1e-3. Repeat to narrow further.",
        autocompletion=complete_where,
    ),
]


def complete_executor(incomplete: str) -> list[str]:
    """Return the schedulers whose names start so, for the shell."""
    from gpas_cli.state.view import scheduler_names

    return [name for name in ("auto", *scheduler_names()) if name.startswith(incomplete)]


Executor = Annotated[
    str,
    typer.Option("--executor", help="auto, local, slurm or a registered scheduler.", autocompletion=complete_executor),
]

AsJson = Annotated[
    bool, typer.Option("--json", help="Print JSON with a schema number instead of text.", callback=_json_alone)
]

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
