"""The origin of one number of a table: its seeds and their runs, its cost, and the command that makes it again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from sqlalchemy import Engine

from gpas_cli.errors import UnknownCell
from gpas_cli.grid.declared import TableSpec
from gpas_cli.grid.document import Label
from gpas_cli.grid.select import conditions, run_words, select
from gpas_cli.report import query
from gpas_cli.report.papers import load
from gpas_cli.report.recorded import Recorded
from gpas_cli.report.tables.entry_status import EntryStatus
from gpas_cli.report.tables.table import Table, build
from gpas_cli.report.tables.table_place import Place, PlaceName, find_place
from gpas_cli.state.usage import Spent, spent_on
from gpas_cli.store.snapshot import snapshot_path


@dataclass(frozen=True)
class SeedOrigin(EntryStatus):
    """One entry of a table cell, and where its number comes from.

    base: the number of the same seed in the row that differences refer to. environment: the versions and the machine
    that the attempt recorded.
    """

    base: float | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PublishedNumber:
    """A published number of the same table cell."""

    source: str
    short: Annotated[str, "the source's short name"]
    table: str
    what: str
    value: float
    delta: Annotated[float | None, "the difference from the published base"]
    as_if: Annotated[str, "the column that it was looked up in, empty if that is the cell's own"] = ""


@dataclass(frozen=True)
class Code:
    """A version of the code that made a number."""

    code: Annotated[str, "the hash of the package's files"]
    commit: str
    dirty: Annotated[bool, "whether the checkout had local changes"]
    snapshot: Annotated[Path | None, "the folder with a copy of the code, null if there is none"]
    seeds: tuple[Any, ...]


@dataclass(frozen=True)
class NumberOrigin:
    """What a table cell was computed from. `command` are the words of the command that computes it in an empty project.

    compared: the same cell in the table with published numbers, which may have another metric: the one that the source
    prints. grid: the name of the grid, or of a paper's table.
    others: how many further cells the command runs, because no condition separates them.
    """

    place: Place
    compared: Place
    grid: str
    seeds: tuple[SeedOrigin, ...]
    published: tuple[PublishedNumber, ...]
    codes: tuple[Code, ...]
    spent: Spent
    command: tuple[str, ...]
    others: int = 0


def trace_cell(name: PlaceName, spec: TableSpec, known: Recorded, runs: Path) -> NumberOrigin:
    """Return the origin of the number that `name` names in the table `spec` of its grid.

    `known` is of all cells of the grid. Raises UnknownCell with the nearest choices.
    """
    plain, compared = (build(known.entries, known.states, known.results, each)
                       for each in (replace(spec, published={}), spec))  # fmt: skip
    place = find_place(plain, name)
    return _origin(place, place.same_in(compared), name.grid, known, runs)


def trace_printed(name: PlaceName, tables: Sequence[Table], known: Recorded, runs: Path) -> NumberOrigin:
    """Return the origin of our number at the place that `name` names in a paper's layout, whose parts are `tables`.

    `known` is of all cells of their grids. Raises UnknownCell with the nearest choices.
    """
    problems: list[UnknownCell] = []
    for table in tables:
        try:
            place = find_place(table, name)
        except UnknownCell as problem:
            problems.append(problem)
        else:
            return _origin(place, place, name.grid, known, runs)
    raise problems[0]


def _origin(place: Place, compared: Place, name: str, known: Recorded, runs: Path) -> NumberOrigin:
    seeds = tuple(_seed(status, place, known.engine) for status in place.cell.statuses)
    keys = [stage.key for seed in seeds for stage in seed.entry.cell.stages]
    own = {seed.entry.grid for seed in seeds}
    entries = [entry for entry in known.entries if entry.grid in own]
    wanted = [status.entry for status in place.cell.runs]
    others = {entry.key for entry in select(entries, conditions(wanted, entries))} - {entry.key for entry in wanted}
    return NumberOrigin(
        place=place,
        compared=compared,
        grid=name,
        seeds=seeds,
        published=_published(compared),
        codes=_codes(seeds, runs),
        spent=spent_on(runs, keys),
        command=tuple(run_words(wanted, entries)),
        others=len(others),
    )


def environments(seeds: Sequence[SeedOrigin]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Return what the recorded environments of the seeds have in common, and the values of the other facts."""
    recorded = [seed.environment for seed in seeds if seed.environment]
    names = list(dict.fromkeys(name for each in recorded for name in each))
    values = {name: list(dict.fromkeys(each.get(name) for each in recorded)) for name in names}
    same = {name: found[0] for name, found in values.items() if len(found) == 1 and found[0] not in ("", None)}
    return same, {name: found for name, found in values.items() if len(found) > 1}


def _seed(status: EntryStatus, place: Place, engine: Engine | None) -> SeedOrigin:
    base = place.base
    result = status.result
    environment: Mapping[str, Any] = {}
    if result is not None and engine is not None:
        rows = {row["number"]: row for row in query.attempts(engine, result.key)}
        environment = rows[result.number]["environment"] or {}
    number = base.cell.values.get(status.seed) if base else None
    return SeedOrigin(**vars(status), base=number, environment=environment)


def _published(place: Place) -> tuple[PublishedNumber, ...]:
    found = []
    for source, printed in place.cell.printed.items():
        table = printed.cell.table
        if table is None or printed.value is None:
            continue
        where = (source, str(load(source)["short"]), table.name, table.what)
        found.append(PublishedNumber(*where, printed.value, printed.delta, table.as_if))
    return tuple(found)


def _codes(seeds: Sequence[SeedOrigin], runs: Path) -> tuple[Code, ...]:
    by_version: dict[tuple[str, str, bool], list[Label | None]] = {}
    for seed in seeds:
        if (made := seed.result) is not None:
            version = (made.code or "", made.git_commit or "", bool(made.git_dirty))
            by_version.setdefault(version, []).append(seed.seed)
    found = []
    for (code, commit, dirty), labels in by_version.items():
        copy = snapshot_path(runs, code)
        found.append(Code(code, commit, dirty, copy if code and copy.is_dir() else None, tuple(labels)))
    return tuple(found)
