"""Where numbers come from: every attempt at a stage, and the runs, cost and command of a number of a table."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

from gpas_cli.checkpoints import newest_first
from gpas_cli.errors import StoreError, UnknownCell
from gpas_cli.events import Score
from gpas_cli.grid.declared import TableSpec
from gpas_cli.grid.document import Label
from gpas_cli.grid.select import conditions, run_words, select
from gpas_cli.report.recorded import Recorded, attempts_in, decoded, results_in, stage_in
from gpas_cli.report.tables.entry_status import EntryStatus
from gpas_cli.report.tables.table import Table
from gpas_cli.report.tables.table_place import Place, PlaceName, find_place
from gpas_cli.spec.cell import START
from gpas_cli.spec.downstream import measure_of
from gpas_cli.spec.parse_cell import Catalogue, cell_from
from gpas_cli.spec.stage import called
from gpas_cli.state.attempt import conclude
from gpas_cli.state.cleanup import read_forgetting
from gpas_cli.state.status import StageStatus
from gpas_cli.state.usage import NOTHING, Usage
from gpas_cli.statistics.stats import Paired
from gpas_cli.store.peek import Rows
from gpas_cli.store.records import Forgetting, Imported, Retry, Trunk
from gpas_cli.store.rundir import IMPORTED, AttemptDir, forgotten_attempts, read_record
from gpas_cli.store.snapshot import snapshot_path
from gpas_cli.structure import FLAT, HIDDEN, CellStateJson, Frozen, Number

T = TypeVar("T")

_GONE = "its run directory is gone"

# Columns of an attempt that record where, when and with what it ran.
_FACTS = (
    *("host", "device", "gpu", "threads", "precision", "code", "git_commit", "git_dirty", "environment", "executor"),
    *("created", "started", "ended", "resumed_from", "last_step", "parameters"),
    *("fingerprint", "validation_fingerprint", "journal_damaged"),
)


class AttemptProvenance(Frozen):
    """One attempt."""

    number: int
    outcome: str | None
    """None while it is running, or if it ended without one."""
    cause: str
    state: CellStateJson
    """Without an outcome concluded from its process."""
    evidence: str
    retry: Annotated[Retry | None, "why the attempt before was run again"]
    trunk: Annotated[Trunk | None, "the training whose updates are its first ones"]
    start: Annotated[str | None, "the network, not trained here, with whose weights it began"]
    imported: Annotated[Imported | None, "the project and attempt that it was copied from"]
    facts: Annotated[Mapping[str, Any], "host, device, code, git commit, fingerprints of the text and environment"]
    """Columns of the table "attempt"."""
    log: Path
    metrics: Mapping[str, Number]
    directory: Path
    checkpoint: Path | None
    """The newest one that still exists."""
    gone: bool = field(metadata=HIDDEN)
    """Whether its run directory is."""


class ForgottenAttempt(Frozen):
    """An attempt that `gpas forget` has set aside: when, by which user, why."""

    number: int
    outcome: str | None
    directory: Path
    record: Forgetting = field(metadata=FLAT)


class Provenance(Frozen):
    """One stage of a cell."""

    key: str
    stage: str
    name: str
    parents: Sequence[str]
    decisive: Annotated[int | None, "the number of the attempt that tables show"]
    cell: Mapping[str, Any]
    attempts: Sequence[AttemptProvenance]
    forgotten: Sequence[ForgottenAttempt]
    scores: Annotated[Sequence[Score], "the newest score of each task and metric; empty for stages without tasks"]
    """Those that tables show and the others of the same tasks, in the order of the cell's tasks."""


def trace_number(rows: Rows, runs: Path, key: str, catalogue: Catalogue | None = None) -> Provenance:
    """Return the provenance of the result of stage `key`; `runs` is the project's folder of run directories.

    `catalogue`: what the experiments declare, for schemes of plugins. Raises UnknownCell when the database has no
    attempt at the stage.
    """
    stage = stage_in(rows, key)
    forgotten = _forgotten(runs, key)
    tries = attempts_in(rows, key)
    if stage is None or not (tries or forgotten):
        raise UnknownCell(f"{key}: the database has no attempt at this stage; `gpas db sync` ingests new ones")
    last = _read(AttemptDir(forgotten[-1].directory).read_attempt) if forgotten and not tries else None
    # Parsed as a cell, so that one recorded by an older version has the settings that were added later.
    own = cell_from(stage["cell"], catalogue)
    result = results_in(rows, [key]).get(key)
    section = own.parameters(stage["kind"])
    places = {task: place for place, task in enumerate(getattr(section, "tasks", ()))}
    scores = sorted(
        result.scores if result else (),
        key=lambda one: (places.get(one.task, len(places)), one.metric != measure_of(one.task)),
    )
    return Provenance(
        key=key,
        stage=stage["kind"],
        parents=stage["parents"],
        name=f"{tries[-1]['grid']}/{tries[-1]['name']}" if tries else f"{last.grid}/{last.name}" if last else "",
        cell=own.to_mapping(),
        attempts=[_attempt(runs, row) for row in tries],
        decisive=result.number if result and not result.gone else None,
        scores=scores,
        forgotten=forgotten,
    )


def _forgotten(runs: Path, key: str) -> list[ForgottenAttempt]:
    found = []
    for attempt in forgotten_attempts(runs, key):
        record = _read(partial(read_forgetting, attempt))
        if record:
            outcome = conclude(attempt).outcome or None
            found.append(ForgottenAttempt(attempt.number, outcome, attempt.path, record))
    return found


def _attempt(runs: Path, row: Mapping[str, Any]) -> AttemptProvenance:
    directory = AttemptDir(runs / row["directory"])
    asked, gone = _read(directory.read_attempt), row["gone"] is not None
    seen = conclude(directory) if not gone else StageStatus(state=row["outcome"] or "unknown", evidence=_GONE)
    return AttemptProvenance(
        number=row["number"],
        outcome=row["outcome"],
        cause=row["cause"] or "",
        state=called(seen.state, row["metrics"]),
        evidence=seen.evidence,
        facts={name: row[name] for name in _FACTS},
        metrics=row["metrics"],
        directory=directory.path,
        log=directory.log_path,
        checkpoint=next(iter(newest_first([directory.checkpoints])), None),
        gone=gone,
        retry=asked.retry if asked else None,
        trunk=asked.trunk if asked else None,
        start=_start(asked.cell.get(START)) if asked else None,
        imported=_read(lambda: read_record(Imported, directory.path / IMPORTED)),
    )


def _start(network: Mapping[str, str] | None) -> str | None:
    """Return what a recorded cell says of the network that its training starts from."""
    if not network:
        return None
    return " ".join(filter(None, (network.get(name) for name in ("source", "hf", "revision", "path", "sha256"))))


def _read(reader: Callable[[], T]) -> T | None:
    """Return a record of an attempt, None if it cannot be read: the database has what matters."""
    try:
        return reader()
    except (OSError, StoreError):
        return None


def dependents(rows: Rows, keys: Iterable[str]) -> dict[str, list[str]]:
    """Return for each key the keys of all stages in the database that build on it, directly or through others."""
    parents = {row["key"]: set(decoded(row)["parents"]) for row in rows("SELECT key, parents FROM stage", ())}
    return {key: _building_on(key, parents) for key in keys}


def _building_on(stage: str, parents: Mapping[str, set[str]]) -> list[str]:
    reached = {stage}
    found: list[str] = []
    while new := [key for key, above in parents.items() if key not in reached and above & reached]:
        found += new
        reached.update(new)
    return found


class SeedOrigin(Frozen):
    """One run of a number in a table."""

    status: EntryStatus = field(metadata=HIDDEN)
    seed: Any
    cell: Annotated[str, "grid/name"]
    key: str
    state: str
    value: Number | None
    base: Annotated[Number | None, "the number of the same seed in the base row"]
    attempt: int | None
    directory: Annotated[str | None, "in the folder of run directories"]
    host: str | None
    device: str | None
    ended: Annotated[float | None, "unix time"]


class PublishedNumber(Frozen):
    """A published number of the same table cell."""

    source: str
    short: Annotated[str, "the source's short name"]
    table: str
    what: str
    value: float
    delta: Annotated[float | None, "the difference from the published base"]
    as_if: Annotated[str, "the column that it was looked up in, empty if that is the cell's own"] = ""


class Code(Frozen):
    """A version of the code that made a number."""

    code: Annotated[str, "the hash of the package's files"]
    commit: str
    dirty: Annotated[bool, "whether the checkout had local changes"]
    snapshot: Annotated[Path | None, "the folder with a copy of the code, null if there is none"]
    seeds: tuple[Any, ...]


class ComparedNumber(Frozen):
    """A number with the metric that published tables print."""

    metric: str
    mean: Number | None


class NumberOrigin(Frozen):
    """A number of a table, and what it was computed from."""

    place: Place = field(metadata=HIDDEN)
    comparison: Place = field(metadata=HIDDEN)
    """The same cell in the table with published numbers, which may have another metric: the one that the source has."""
    grid: Annotated[str, "the name of the grid, or of a paper's table"]
    cell: Annotated[str, "the words that name it: ROW,COLUMN"]
    row: Mapping[str, Any]
    column: Mapping[str, Any]
    metric: str
    title: Annotated[str, "what the metric is"]
    mean: Number | None
    std: Number | None
    n: int
    status: Annotated[str, "why numbers are missing, empty if none is"]
    delta: Paired | None
    base: Annotated[str | None, "the words that name the base"]
    compared: Annotated[ComparedNumber, "our number to compare with the published ones"]
    published: Sequence[PublishedNumber]
    seeds: Sequence[SeedOrigin]
    code: Sequence[Code]
    command: Annotated[Sequence[str], "the words of the command that makes the number in an empty project"]
    other_cells: Annotated[int, "further cells that this command runs"]
    """No condition separates them."""
    hours: Annotated[Usage, "of all attempts at its cells"] = NOTHING


def trace_cell(name: PlaceName, spec: TableSpec, known: Recorded, runs: Path) -> NumberOrigin:
    """Return the origin of the number that `name` names in the table `spec` of its grid.

    `known` is of all cells of the grid. Raises UnknownCell with the nearest choices.
    """
    from gpas_cli.report.tables.grid_table import build

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
    seeds = [_seed(status, place) for status in place.cell.statuses]
    own = {seed.status.entry.grid for seed in seeds}
    entries = [entry for entry in known.entries if entry.grid in own]
    wanted = [status.entry for status in place.cell.runs]
    others = {entry.key for entry in select(entries, conditions(wanted, entries))} - {entry.key for entry in wanted}
    summary, theirs = place.cell.summary, compared.cell.summary
    return NumberOrigin(
        place, compared, grid=name, cell=place.words, row=place.row_labels, column=place.column_labels,
        metric=place.metric.name, title=place.metric.title, mean=summary.mean if summary else None,
        std=summary.std if summary else None, n=place.cell.n, status=place.cell.status, delta=place.cell.delta,
        base=place.base.words if place.base else None,
        compared=ComparedNumber(compared.metric.name, theirs.mean if theirs else None),
        published=_published(compared), seeds=seeds, code=_codes(seeds, runs), command=run_words(wanted, entries),
        other_cells=len(others),
    )  # fmt: skip


def _seed(status: EntryStatus, place: Place) -> SeedOrigin:
    base = place.base
    result = status.result
    return SeedOrigin(
        status, seed=status.seed, cell=status.entry.id, key=status.key, state=status.state, value=status.value,
        base=base.cell.values.get(status.seed) if base else None,
        attempt=result.number if result else None, directory=(result.directory or None) if result else None,
        host=(result.host or None) if result else None, device=(result.hardware or None) if result else None,
        ended=result.ended if result else None,
    )  # fmt: skip


def _published(place: Place) -> list[PublishedNumber]:
    found = []
    for source, printed in place.cell.printed.items():
        table = printed.cell.table
        if printed.value is not None:
            where = (source, table.short, table.name, table.what)
            found.append(PublishedNumber(*where, printed.value, printed.delta, table.as_if))
    return found


def _codes(seeds: Sequence[SeedOrigin], runs: Path) -> list[Code]:
    by_version: dict[tuple[str, str, bool], list[Label | None]] = {}
    for seed in seeds:
        if (made := seed.status.result) is not None:
            version = (made.code or "", made.git_commit or "", bool(made.git_dirty))
            by_version.setdefault(version, []).append(seed.seed)
    found = []
    for (code, commit, dirty), labels in by_version.items():
        copy = snapshot_path(runs, code)
        found.append(Code(code, commit, dirty, copy if code and copy.is_dir() else None, tuple(labels)))
    return found
