"""What all commands share: the project, its grids, text and JSON output, and common options."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpas_cli.errors import Exit, GpasError, UnknownCell
from gpas_cli.project import Project
from gpas_cli.words import listed

if TYPE_CHECKING:
    from rich.console import Console

    from gpas_cli.grid.declared import Experiments
    from gpas_cli.grid.entry import Entry
    from gpas_cli.report.recorded import Recorded
    from gpas_cli.spec.parse_cell import Catalogue

SCHEMA = 1


@dataclass
class _State:
    """The options that apply to the whole command."""

    config: Path | None = None
    as_json: bool = False  # standard output holds one JSON document, and text goes to standard error


STATE = _State()


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


def complete_where(incomplete: str) -> list[str]:
    """Return conditions AXIS=LABEL of all grids that begin with `incomplete`."""
    from gpas_cli.grid.expand import expand
    from gpas_cli.grid.scalar import spelled

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
        autocompletion=complete_cell,
    ),
]
NamesAndSettings = Annotated[
    list[str] | None,
    typer.Argument(
        help="Grids in experiments.yaml (by default its default grid) and settings for every cell: optim.lr=3e-3.",
        autocompletion=complete_grid,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Argument(help="Settings to change in the cell, as in experiments.yaml: optim.lr=3e-3 gate=gpas."),
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
    from gpas_cli.state.schedulers import scheduler_names

    return [name for name in ("auto", *scheduler_names()) if name.startswith(incomplete)]


Executor = Annotated[
    str,
    typer.Option("--executor", help="auto, local, slurm or a registered scheduler.", autocompletion=complete_executor),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print JSON with a schema number instead of text.", callback=_json_alone)
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def project() -> Project:
    """Return the project of this command."""
    return Project.find(STATE.config)


@cache
def experiments() -> Experiments:
    """Return the grids of the project's experiments file.

    Plugin files are not run for shell completion: pressing TAB in a folder must not execute code in it.
    """
    from gpas_cli.grid.load import load
    from gpas_cli.report.checks import report_problems

    return load(project().config, run_plugins=not _completing(), check=report_problems)


def _completing() -> bool:
    """Return whether the shell asks for completions: it sets _GPAS_COMPLETE, named after the command."""
    return any("GPAS" in name and name.endswith("_COMPLETE") for name in os.environ)


def entries(names: Sequence[str] | None, where: Sequence[str] | None = None) -> list[Entry]:
    """Return the cells of the named grids, by default of the default grid, that match `where`."""
    from gpas_cli.grid.expand import expand
    from gpas_cli.grid.select import select

    return select(expand(experiments(), names or [experiments().default]), where or [])


def varied_entries(words: Sequence[str] | None, where: Sequence[str] | None = None) -> list[Entry]:
    """Return the cells of the grids in `words`, with the words of the form NAME=VALUE as settings of every cell."""
    names, settings = split_settings(words or [])
    return _varied(entries(names, where), settings)


def find_cells(words: Sequence[str]) -> list[Entry]:
    """Return the cells that `words` name: cells of the default grid take precedence over those of other grids.

    Words of the form NAME=VALUE are settings of all of them. A key may also belong to a cell that no grid declares any
    more.
    """
    from gpas_cli.grid.expand import expand

    names, settings = split_settings(words)
    if settings and not names:
        raise GpasError(f"name the cell to apply {settings[0]} to")
    declared = expand(experiments(), list(experiments().grids))
    return _varied([_find(declared, name) for name in names], settings)


def _find(declared: Sequence[Entry], name: str) -> Entry:
    """Return the declared cell that `name` names (grid/name, name or start of a key), else a recorded one.

    A recorded cell is found by the start of its key, or by its name if settings on the command line made it.
    """
    from gpas_cli.grid.select import find, find_preferring
    from gpas_cli.grid.variant import SEPARATOR
    from gpas_cli.plan.undeclared import undeclared, with_key

    try:
        return find_preferring(experiments().default, declared, name)
    except UnknownCell:
        keys = (stage.key for entry in declared for stage in entry.cell.stages)
        recorded = [] if any(key.startswith(name.lower()) for key in keys) else with_key(project(), name, catalogue())
        if not recorded and SEPARATOR in name:
            recorded = undeclared(project().runs, declared, catalogue())
        if not recorded and name in experiments().grids:
            cells = [entry.name for entry in declared if entry.grid == name]
            raise UnknownCell(f"'{name}' is a grid; name one of its cells: {listed(cells, 4)}") from None
        if not recorded:
            raise
        return find(recorded, name)


def catalogue() -> Catalogue:
    """Return the named sizes, corpora, recipes and schemes of the project's experiments file."""
    return experiments().catalogue


def split_settings(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words without and those with an equals sign; no name of a grid or cell has one."""
    return [word for word in words if "=" not in word], [word for word in words if "=" in word]


def _varied(found: list[Entry], settings: Sequence[str]) -> list[Entry]:
    from gpas_cli.grid.variant import vary

    return vary(experiments(), found, settings) if settings else found


def cells_or_grids(words: Sequence[str] | None, where: Sequence[str] | None = None) -> list[Entry]:
    """Return the cells that `words` name, where a grid names all of its cells; without words, those of every grid.

    Words of the form NAME=VALUE are settings of all of them.
    """
    from gpas_cli.grid.select import select

    grids = experiments().grids
    names, settings = split_settings(words or [])
    if settings and not names:
        raise GpasError(f"name the cells to apply {settings[0]} to")
    found = [entry for name in names or grids for entry in (entries([name]) if name in grids else find_cells([name]))]
    return select(list({entry.id: entry for entry in _varied(found, settings)}.values()), where or [])


def chosen_cells(words: Sequence[str] | None, where: Sequence[str] | None) -> list[Entry]:
    """Return `cells_or_grids`, for commands that need a choice. Raises GpasError without words and conditions."""
    if not words and not where:
        raise GpasError("name cells or a grid, or select cells with --where")
    return cells_or_grids(words, where)


@contextmanager
def recorded_of(chosen: Sequence[Entry], where: Project | None = None, *, database: bool = True) -> Iterator[Recorded]:
    """Yield what is recorded of the cells, by default in this project. Print why results are not up to date.

    `database` is as for `report.recorded.recorded`.
    """
    from gpas_cli.report.recorded import recorded

    with recorded(where or project(), chosen, database=database) as known:
        warn(known.problem)
        yield known


def warn(problem: str) -> None:
    """Print a problem that does not stop the command on standard error; "" prints nothing."""
    if problem:
        print(f"gpas: {problem}", file=sys.stderr)


def without_runs(chosen: Sequence[Entry]) -> str:
    """Return the warning that the database knows cells and the folder of run directories is missing, or ""."""
    if project().runs.is_dir():
        return ""
    from gpas_cli.store.peek import describe_missing_runs

    return describe_missing_runs(project(), {stage.key for entry in chosen for stage in entry.cell.stages})


def console() -> Console:
    """Return the console for text: standard output, or standard error if standard output holds JSON."""
    return _console(STATE.as_json)


@cache
def _console(stderr: bool) -> Console:
    """Return a console; piped text is laid out for 160 columns and not wrapped, so that tables are not truncated."""
    from gpas_cli.cli.literal_console import LiteralConsole

    on_terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return LiteralConsole(width=None if on_terminal else 160, soft_wrap=not on_terminal, stderr=stderr)


def print_json(**fields: Any) -> None:
    """Print one JSON document that begins with the schema number."""
    print(json.dumps({"schema": SCHEMA, **fields}, indent=2, allow_nan=False))


def json_number(value: Any) -> Any:
    """Return a number for JSON; one that is not finite becomes the string "nan", "inf" or "-inf"."""
    return value if isinstance(value, int) or (isinstance(value, float) and abs(value) < float("inf")) else str(value)


def confirm(question: str, yes: bool) -> None:
    """Ask for confirmation unless `yes`. Raises BadParameter if standard input is not a terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"{question} Standard input is not a terminal; add --yes to confirm.")
    if not typer.confirm(question, err=STATE.as_json):
        console().print("Nothing was done.")
        raise typer.Exit(Exit.INCOMPLETE)
