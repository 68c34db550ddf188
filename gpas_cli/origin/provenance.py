"""Where numbers come from: every attempt at a stage, and the runs, cost and command of a number of a table."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

from sqlalchemy import Engine
from sqlalchemy import select as select_rows

from gpas_cli.checkpoints import newest_first
from gpas_cli.errors import StoreError, UnknownCell
from gpas_cli.events import Score
from gpas_cli.grid.declared import TableSpec
from gpas_cli.grid.document import Label
from gpas_cli.grid.select import conditions, run_words, select
from gpas_cli.report import query, recorded
from gpas_cli.report.recorded import Recorded
from gpas_cli.report.tables.entry_status import EntryStatus
from gpas_cli.report.tables.grid_table import build
from gpas_cli.report.tables.table import Table
from gpas_cli.report.tables.table_place import Place, PlaceName, find_place
from gpas_cli.spec.cell import START
from gpas_cli.spec.downstream import measure_of
from gpas_cli.spec.parse_cell import Catalogue, cell_from
from gpas_cli.state.attempt import conclude
from gpas_cli.state.cleanup import read_forgetting
from gpas_cli.state.merging import RECORD as IMPORTED
from gpas_cli.state.usage import NOTHING, Usage
from gpas_cli.store.records import Forgetting, Imported, Retry, Trunk
from gpas_cli.store.rundir import AttemptDir, forgotten_attempts, read_record
from gpas_cli.store.schema import StageRow
from gpas_cli.store.snapshot import snapshot_path

T = TypeVar("T")

# Columns of an attempt that record where, when and with what it ran.
_FACTS = (
    *("host", "device", "gpu", "threads", "precision", "code", "git_commit", "git_dirty", "environment", "executor"),
    *("created", "started", "ended", "resumed_from", "last_step", "parameters"),
    *("fingerprint", "validation_fingerprint", "journal_damaged"),
)


@dataclass(frozen=True)
class AttemptProvenance:
    """One attempt. `outcome` is None while it is running, or if it ended without an outcome.

    facts: the columns of the table "attempt" that record where, when and with what it ran. checkpoint: the newest one
    that still exists. gone: the run directory is gone. retry: why the attempt was made, if after a failure of another
    one. trunk: the training whose updates are its first ones. imported: from which project it was copied.
    """

    number: int
    outcome: str | None
    cause: str
    facts: Mapping[str, Any]
    metrics: Mapping[str, float]
    directory: Path
    log: Path
    checkpoint: Path | None
    gone: bool = False
    retry: Retry | None = None
    trunk: Trunk | None = None
    start: str = ""
    """The network, not trained here, with whose weights it began."""
    imported: Imported | None = None


@dataclass(frozen=True)
class ForgottenAttempt:
    """An attempt that `gpas forget` has set aside. outcome: None if it had none."""

    number: int
    outcome: str | None
    record: Forgetting
    directory: Path


@dataclass(frozen=True)
class Provenance:
    """The provenance of one stage's result. `decisive` is the number of the attempt that tables show.

    scores: those that tables show and the others of the same tasks, in the order of the cell's tasks.
    """

    key: str
    stage: str
    parents: tuple[str, ...]
    name: str
    cell: Mapping[str, Any]
    attempts: tuple[AttemptProvenance, ...]
    decisive: int | None
    scores: tuple[Score, ...] = ()
    forgotten: tuple[ForgottenAttempt, ...] = ()


def trace_number(engine: Engine, runs: Path, key: str, catalogue: Catalogue | None = None) -> Provenance:
    """Return the provenance of the result of stage `key`; `runs` is the project's folder of run directories.

    `catalogue`: what the experiments declare, for schemes of plugins. Raises UnknownCell when the database has no
    attempt at the stage.
    """
    stage = query.stage(engine, key)
    forgotten = _forgotten(runs, key)
    tries = query.attempts(engine, key)
    if stage is None or not (tries or forgotten):
        raise UnknownCell(f"{key}: the database has no attempt at this stage; `gpas db sync` ingests new ones")
    last = _read(AttemptDir(forgotten[-1].directory).read_attempt) if forgotten and not tries else None
    # Parsed as a cell, so that one recorded by an older version has the settings that were added later.
    own = cell_from(stage["cell"], catalogue)
    result = recorded.read_results(engine, [key]).get(key)
    section = own.parameters(stage["kind"])
    places = {task: place for place, task in enumerate(getattr(section, "tasks", ()))}
    scores = sorted(
        result.scores if result else (),
        key=lambda one: (places.get(one.task, len(places)), one.metric != measure_of(one.task)),
    )
    return Provenance(
        key=key,
        stage=stage["kind"],
        parents=tuple(stage["parents"]),
        name=f"{tries[-1]['grid']}/{tries[-1]['name']}" if tries else f"{last.grid}/{last.name}" if last else "",
        cell=own.to_mapping(),
        attempts=tuple(_attempt(runs, row) for row in tries),
        decisive=result.number if result and not result.gone else None,
        scores=tuple(scores),
        forgotten=forgotten,
    )


def _forgotten(runs: Path, key: str) -> tuple[ForgottenAttempt, ...]:
    found = []
    for attempt in forgotten_attempts(runs, key):
        record = _read(partial(read_forgetting, attempt))
        if record:
            outcome = conclude(attempt).outcome or None
            found.append(ForgottenAttempt(attempt.number, outcome, record, attempt.path))
    return tuple(found)


def _attempt(runs: Path, row: Mapping[str, Any]) -> AttemptProvenance:
    directory = AttemptDir(runs / row["directory"])
    asked = _read(directory.read_attempt)
    return AttemptProvenance(
        number=row["number"],
        outcome=row["outcome"],
        cause=row["cause"] or "",
        facts={name: row[name] for name in _FACTS},
        metrics=row["metrics"],
        directory=directory.path,
        log=directory.log_path,
        checkpoint=next(iter(newest_first([directory.checkpoints])), None),
        gone=row["gone"] is not None,
        retry=asked.retry if asked else None,
        trunk=asked.trunk if asked else None,
        start=_start(asked.cell.get(START)) if asked else "",
        imported=_read(lambda: read_record(Imported, directory.path / IMPORTED)),
    )


def _start(network: Mapping[str, str] | None) -> str:
    """Return what a recorded cell says of the network that its training starts from."""
    if not network:
        return ""
    return " ".join(filter(None, (network.get(name) for name in ("source", "hf", "revision", "path", "sha256"))))


def _read(reader: Callable[[], T]) -> T | None:
    """Return a record of an attempt, None if it cannot be read: the database has what matters."""
    try:
        return reader()
    except (OSError, StoreError):
        return None


def dependents(engine: Engine, keys: Iterable[str]) -> dict[str, list[str]]:
    """Return for each key the keys of all stages in the database that build on it, directly or through others."""
    with engine.connect() as connection:
        parents = {key: set(above) for key, above in connection.execute(select_rows(StageRow.key, StageRow.parents))}
    return {key: _building_on(key, parents) for key in keys}


def _building_on(stage: str, parents: Mapping[str, set[str]]) -> list[str]:
    reached = {stage}
    found: list[str] = []
    while new := [key for key, above in parents.items() if key not in reached and above & reached]:
        found += new
        reached.update(new)
    return found


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
    others: how many further cells the command runs, because no condition separates them. spent: by all attempts.
    """

    place: Place
    compared: Place
    grid: str
    seeds: tuple[SeedOrigin, ...]
    published: tuple[PublishedNumber, ...]
    codes: tuple[Code, ...]
    command: tuple[str, ...]
    others: int = 0
    spent: Usage = NOTHING


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
        where = (source, table.short, table.name, table.what)
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
