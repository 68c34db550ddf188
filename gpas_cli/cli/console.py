"""What every command shares: the project, its grids, where text and JSON go, and common options."""

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

if TYPE_CHECKING:
    from rich.console import Console

    from gpas_cli.grid.declared import Experiments
    from gpas_cli.grid.entry import Entry
    from gpas_cli.spec.cell import Catalogue

SCHEMA = 1


@dataclass
class _State:
    """What the top-level options said."""

    config: Path | None = None
    as_json: bool = False  # standard output is for one JSON document: text goes to standard error


STATE = _State()


def complete_grid(incomplete: str) -> list[str]:
    """Grids that begin so, for the shell; nothing where the file cannot be read."""
    try:
        return [name for name in experiments().grids if name.startswith(incomplete)]
    except GpasError:
        return []


def complete_cell(incomplete: str) -> list[str]:
    """Cells that begin so: names of the default grid, grid/name of all, and keys from the fourth digit on."""
    from gpas_cli.grid.expand import cell_names

    try:
        names = {grid: cell_names(experiments(), grid) for grid in experiments().grids}
    except GpasError:
        return []
    usual = names.get(experiments().default, [])
    everything = [f"{grid}/{name}" for grid, found in names.items() for name in found]
    return [word for word in (*usual, *everything) if word.startswith(incomplete)] or _keys(incomplete)


def _keys(incomplete: str) -> list[str]:
    from gpas_cli.grid.expand import expand
    from gpas_cli.grid.select import MIN_PREFIX

    if len(incomplete) < MIN_PREFIX or set(incomplete) - set("0123456789abcdef"):
        return []
    try:
        keys = dict.fromkeys(entry.key for entry in expand(experiments(), list(experiments().grids)))
    except GpasError:
        return []
    return [key for key in keys if key.startswith(incomplete)]


def complete_cell_or_grid(incomplete: str) -> list[str]:
    """Grids, then cells, that begin so."""
    return [*complete_grid(incomplete), *complete_cell(incomplete)]


def complete_where(incomplete: str) -> list[str]:
    """Conditions AXIS=LABEL on any grid that begin so."""
    from gpas_cli.grid.expand import expand
    from gpas_cli.grid.scalar import spelled

    try:
        every = expand(experiments(), list(experiments().grids))
    except GpasError:
        return []
    conditions = dict.fromkeys(f"{axis}={spelled(label)}" for entry in every for axis, label in entry.axes.items())
    return [condition for condition in conditions if condition.startswith(incomplete)]


def complete_from(words: Iterable[str]) -> Callable[[str], list[str]]:
    """A completion that offers these words; after a comma, for another of them."""
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
    typer.Argument(help="Grids of experiments.yaml; none means its default grid.", autocompletion=complete_grid),
]
Cell = Annotated[
    str, typer.Argument(help="grid/name, a unique name, or the start of a key.", autocompletion=complete_cell)
]
Cells = Annotated[
    list[str],
    typer.Argument(
        help="Cells: grid/name, a unique name, or the start of a key; settings of all of them: optim.lr=3e-3.",
        autocompletion=complete_cell,
    ),
]
NamesAndSettings = Annotated[
    list[str] | None,
    typer.Argument(
        help="Grids of experiments.yaml; none means its default grid. Settings of every cell: optim.lr=3e-3.",
        autocompletion=complete_grid,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Argument(help="Settings that make another cell of it, as in experiments.yaml: optim.lr=3e-3 gate=gpas."),
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
        help="Only these cells: gate=gpas, seed!=2 or optim.lr=1e-3; repeat to narrow.",
        autocompletion=complete_where,
    ),
]
Executor = Annotated[
    str,
    typer.Option("--executor", help="auto, local or slurm.", autocompletion=complete_from(("auto", "local", "slurm"))),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print JSON with a schema number instead of text.", callback=_json_alone)
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def project() -> Project:
    """The project of this call."""
    return Project.find(STATE.config)


@cache
def experiments() -> Experiments:
    """The grids of the project's experiments file. Its plugin files are not run for the shell's completion: a TAB in a
    folder must not execute anything that lies there."""
    from gpas_cli.grid.load import load
    from gpas_cli.report.table_checks import table_problems

    return load(project().config, run_plugins=not _completing(), check=table_problems)


def _completing() -> bool:
    """Whether the shell has called for completions: it sets _GPAS_COMPLETE, named after the command."""
    return any("GPAS" in name and name.endswith("_COMPLETE") for name in os.environ)


def entries(names: Sequence[str] | None, where: Sequence[str] | None = None) -> list[Entry]:
    """The cells of the named grids (the default one if none), narrowed by `where`."""
    from gpas_cli.grid.expand import expand
    from gpas_cli.grid.select import select

    return select(expand(experiments(), names or [experiments().default]), where or [])


def varied_entries(words: Sequence[str] | None, where: Sequence[str] | None = None) -> list[Entry]:
    """`entries` of the words that name grids, with the other words, NAME=VALUE, as settings of every cell."""
    names, settings = _split(words or [])
    return _varied(entries(names, where), settings)


def find_cells(words: Sequence[str]) -> list[Entry]:
    """The cells that `words` name: those of the default grid first, then those of any grid. Words of the form
    NAME=VALUE are settings of all of them. A key may also be that of a cell which no grid declares any more."""
    from gpas_cli.grid.expand import expand

    names, settings = _split(words)
    if settings and not names:
        raise GpasError(f"name the cell that {settings[0]} is to change")
    usual = expand(experiments(), [experiments().default])
    everything = expand(experiments(), list(experiments().grids))
    named = {entry.name for entry in usual}
    return _varied([_find(usual if word in named else everything, word) for word in names], settings)


def _find(declared: Sequence[Entry], word: str) -> Entry:
    """The declared cell that `word` names, else the recorded one whose key begins so, or that settings on the command
    line have made under this name."""
    from gpas_cli.grid.select import find
    from gpas_cli.grid.variant import JOINED
    from gpas_cli.plan.undeclared import undeclared, with_key

    try:
        return find(declared, word)
    except UnknownCell:
        keys = (stage.key for entry in declared for stage in entry.cell.stages)
        recorded = [] if any(key.startswith(word.lower()) for key in keys) else with_key(project(), word, catalogue())
        if not recorded and JOINED in word:
            recorded = undeclared(project().runs, declared, catalogue())
        if not recorded:
            raise
        return find(recorded, word)


def catalogue() -> Catalogue:
    """The named sizes, corpora, recipes and schemes of the project's experiments file."""
    return experiments().catalogue


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words without and with an equals sign, which no name of a grid or cell has."""
    return [word for word in words if "=" not in word], [word for word in words if "=" in word]


def _varied(found: list[Entry], settings: Sequence[str]) -> list[Entry]:
    from gpas_cli.grid.variant import vary

    return vary(experiments(), found, settings) if settings else found


def cells_or_grids(words: Sequence[str] | None, where: Sequence[str] | None = None) -> list[Entry]:
    """The cells that `words` name, a grid's name standing for all of its cells; without words, those of every grid.
    Words of the form NAME=VALUE are settings of all of them."""
    from gpas_cli.grid.select import select

    grids = experiments().grids
    names, settings = _split(words or [])
    if settings and not names:
        raise GpasError(f"name the cells that {settings[0]} is to change")
    found = [entry for word in names or grids for entry in (entries([word]) if word in grids else find_cells([word]))]
    return select(list({entry.id: entry for entry in _varied(found, settings)}.values()), where or [])


def console() -> Console:
    """The terminal, for text: standard output, or standard error where standard output is for JSON."""
    return _console(STATE.as_json)


@cache
def _console(stderr: bool) -> Console:
    """Piped text is 160 columns wide and is not wrapped."""
    from gpas_cli.cli.literal_console import LiteralConsole

    seen = (sys.stderr if stderr else sys.stdout).isatty()
    return LiteralConsole(width=None if seen else 160, soft_wrap=not seen, stderr=stderr)


@contextmanager
def working(doing: str) -> Iterator[Callable[[str], None]]:
    """Show on standard error what is being done: one line that changes on a terminal, and lines elsewhere. Yields what
    takes the next message."""
    from rich.console import Console
    from rich.markup import escape

    errors = Console(stderr=True, highlight=False)
    if not errors.is_terminal:
        yield lambda message: errors.print(message, markup=False, soft_wrap=True)
        return
    with errors.status(doing) as status:
        yield lambda message: status.update(escape(message))


def print_json(**fields: Any) -> None:
    """One JSON document with the schema number first."""
    print(json.dumps({"schema": SCHEMA, **fields}, indent=2, allow_nan=False))


def json_number(value: Any) -> Any:
    """A metric as JSON can hold it: what is not finite becomes a word."""
    return value if isinstance(value, int) or (isinstance(value, float) and abs(value) < float("inf")) else str(value)


def confirm(question: str, yes: bool) -> None:
    """Ask, unless `--yes`. Where nobody can answer, refuse instead of waiting."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"{question} Nobody can answer here; add --yes.")
    if not typer.confirm(question, err=STATE.as_json):
        console().print("Nothing was done.")
        raise typer.Exit(Exit.INCOMPLETE)
