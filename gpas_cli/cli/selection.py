"""The project of a command, and the grids and cells that its words choose."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from gpas_cli.cli.console import STATE, warn
from gpas_cli.errors import GpasError, Problem, UnknownCell
from gpas_cli.grid.declared import Entry, Experiments
from gpas_cli.grid.expand import expand
from gpas_cli.grid.load import load
from gpas_cli.grid.packs import Pack, known_packs
from gpas_cli.grid.resources import site_path
from gpas_cli.grid.select import find, find_preferring, select
from gpas_cli.grid.variant import SEPARATOR, vary
from gpas_cli.project import Project
from gpas_cli.spec.run import PRIVATE
from gpas_cli.state.observe import cell_statuses
from gpas_cli.state.status import CellStatus, started_grids
from gpas_cli.words import listed

if TYPE_CHECKING:
    from gpas_cli.report.recorded import Recorded


def project() -> Project:
    """Return the project of this command."""
    return Project.find(STATE.config)


@cache
def experiments() -> Experiments:
    """Return the grids of the project's experiments file.

    Plugin files are not run for shell completion: pressing TAB in a folder must not execute code in it.
    """
    completing = any("GPAS" in name and name.endswith("_COMPLETE") for name in os.environ)  # the shell asks for it
    return load(project().config, run_plugins=not completing, check=_report_problems, site=site_path())


def papers_known() -> Mapping[str, Pack]:
    """Return the papers that the experiments file may name; without a file, those in the installed packages."""
    return experiments().packs if Project.find(STATE.config, required=False).config.is_file() else known_packs()


def _report_problems(experiments: Experiments) -> Iterable[Problem]:
    if not STATE.check_reports:
        return ()
    from gpas_cli.report.checks import report_problems  # reads the papers' tables

    return report_problems(experiments)


def entries(names: Sequence[str] | None, where: Sequence[str] | None = None) -> list[Entry]:
    """Return the cells of the named grids, by default of the default grid, that match `where`."""
    return select(expand(experiments(), names or [experiments().default]), where or [])


def varied_entries(words: Sequence[str] | None, where: Sequence[str] | None = None) -> list[Entry]:
    """Return the cells of the grids in `words`, with the words of the form NAME=VALUE as settings of every cell."""
    names, settings = split_settings(words or [])
    return _varied(entries(names, where), settings)


def find_cells(words: Sequence[str]) -> list[Entry]:
    """Return the cells that `words` name: cells of the default grid take precedence over cells of other grids.

    Words of the form NAME=VALUE are settings of all of them. A key may also belong to a cell that no grid declares any
    more.
    """
    names, settings = split_settings(words)
    if settings and not names:
        raise GpasError(f"name the cell to apply {settings[0]} to")
    declared = expand(experiments(), experiments().available)
    return _varied([_find(declared, name) for name in names], settings)


def _find(declared: Sequence[Entry], name: str) -> Entry:
    """Return the declared cell that `name` names (grid/name, name or start of a key), else a recorded one.

    A recorded cell is found by the start of its key, or by its name if settings on the command line made it.
    """
    from gpas_cli.plan.undeclared import undeclared, with_key

    try:
        return find_preferring(experiments().default, declared, name)
    except UnknownCell:
        keys = (stage.key for entry in declared for stage in entry.cell.stages)
        runs, catalogue = project().runs, experiments().catalogue
        recorded = [] if any(key.startswith(name.lower()) for key in keys) else with_key(runs, name, catalogue)
        if not recorded and SEPARATOR in name:
            recorded = undeclared(runs, declared, catalogue)
        if not recorded and name in experiments().grids:
            cells = [entry.name for entry in declared if entry.grid == name]
            raise UnknownCell(f"'{name}' is a grid; name one of its cells: {listed(cells, 4)}") from None
        if not recorded:
            raise
        return _with_values(find(recorded, name), declared)


def _with_values(entry: Entry, declared: Sequence[Entry]) -> Entry:
    """Return a recorded cell with what records do not have of its resources, from the declared cells of its grid."""
    place = (entry.grid, entry.axes.get("size"))
    like = next((other for other in declared if (other.grid, other.axes.get("size")) == place), entry)
    values = {name: getattr(like.resources, name) for name in PRIVATE}
    return replace(entry, resources=replace(entry.resources, **values))


def split_settings(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words without and those with an equals sign; no name of a grid or cell has one."""
    return [word for word in words if "=" not in word], [word for word in words if "=" in word]


def _varied(found: list[Entry], settings: Sequence[str]) -> list[Entry]:
    return vary(experiments(), found, settings) if settings else found


def cells_or_grids(words: Sequence[str] | None, where: Sequence[str] | None = None) -> list[Entry]:
    """Return the cells that `words` name, where a grid names all of its cells; without words, the cells of every grid.

    Words of the form NAME=VALUE are settings of all of them.
    """
    grids = experiments().grids
    names, settings = split_settings(words or [])
    if settings and not names:
        raise GpasError(f"name the cells to apply {settings[0]} to")
    found = [entry for name in names or grids for entry in (entries([name]) if name in grids else find_cells([name]))]
    return select(list({entry.id: entry for entry in _varied(found, settings)}.values()), where or [])


def chosen_cells(words: Sequence[str] | None, where: Sequence[str] | None) -> list[Entry]:
    """Return `cells_or_grids`, for commands that change cells. Raises GpasError without words and conditions."""
    if not words and not where:
        raise GpasError("name cells or a grid, or select cells with --where")
    return cells_or_grids(words, where)


@contextmanager
def recorded_of(chosen: Sequence[Entry], where: Project | None = None, *, database: bool = True) -> Iterator[Recorded]:
    """Yield what is recorded about the cells, by default in this project. Print why results are not up to date.

    `database` is as for `report.recorded.recorded`.
    """
    from gpas_cli.report.recorded import recorded

    with recorded(where or project(), chosen, database=database) as known:
        warn(known.problem)
        yield known


def without_runs(chosen: Sequence[Entry]) -> str:
    """Return the warning that the database knows cells and the folder of run directories is missing, or ""."""
    database = Path(project().database)
    if project().runs.is_dir() or (database.is_absolute() and not database.exists()):
        return ""
    from gpas_cli.store.refresh import describe_missing_runs

    return describe_missing_runs(project(), {stage.key for entry in chosen for stage in entry.cell.stages})


def observed(
    names: Sequence[str] | None, where: Sequence[str] | None, *, jobs: bool = False, started: bool = True
) -> list[CellStatus]:
    """Return the states of the cells of the named grids, with the settings NAME=VALUE in `names` if there are any.

    Without names, return the states of all grids or, with `started`, of the grids that have been started, else of the
    default grid. `where` does not change which grids count as started; if none of their cells matches, all grids count.
    """
    if names or not started:
        named = varied_entries(names or experiments().available, where)
        return cell_statuses(project().runs, named, jobs=jobs)
    everything = cell_statuses(project().runs, entries(experiments().available), jobs=jobs)
    matching = {id(entry) for entry in select([state.entry for state in everything], where or [])}
    chosen = [state for state in only_started(everything) if id(state.entry) in matching]
    return chosen or [state for state in everything if id(state.entry) in matching]


def only_started(states: Sequence[CellStatus]) -> list[CellStatus]:
    """Return the states of the grids that have been started, else of the default grid."""
    names = started_grids(states) or {experiments().default}
    return [state for state in states if state.entry.grid in names]


def undeclared_cells(shown: Iterable[Entry] = (), *, claimed: bool = False) -> list[CellStatus]:
    """Return the states of recorded cells that no grid declares; with `claimed`, only of those that may be running.

    `shown` are declared cells that are expanded already: to expand the others takes half the time of a small state.
    """
    from gpas_cli.plan.undeclared import undeclared

    found = undeclared(project().runs, _everything(), experiments().catalogue, claimed=claimed, shown=shown)
    return cell_statuses(project().runs, found, jobs=not claimed)


def trunks_among(found: Sequence[CellStatus]) -> list[CellStatus]:
    """Return those of the cells without a grid from which declared ones start."""
    if all(one.entry.cell.optim.schedule != "constant" for one in found):
        return []
    from gpas_cli.plan.trunks import trunk_keys

    keys = trunk_keys(_everything())
    return [one for one in found if one.entry.cell.key in keys]


def _everything() -> Iterator[Entry]:
    """Yield the cells of all grids; they are expanded when the first one is requested."""
    yield from entries(experiments().available)
