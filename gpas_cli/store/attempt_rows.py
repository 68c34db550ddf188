"""Store the rows of one attempt, from its attempt.json and its journal, in the caller's transaction.

The journal is read from the offset in the row, STRETCH_BYTES at a time, and the offset after them is stored with the
rows, so that memory does not depend on the length of the journal. If the journal has changed before the offset, the
rows are deleted and it is read again from the start.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, insert, inspect, select, update
from sqlalchemy.exc import DataError, DBAPIError, StatementError

from gpas_cli.errors import StoreError
from gpas_cli.files import open_regular
from gpas_cli.store import journal
from gpas_cli.store.projection import Changes, integer, number, project_events, string
from gpas_cli.store.records import AttemptRecord
from gpas_cli.store.rundir import AttemptDir
from gpas_cli.store.schema import AttemptRow, CurveRow, LayerCurveRow, MetricRow, ScoreRow, StageRow
from gpas_cli.structure import plain

_PLACES = {"curve": ("step",), "layer_curve": ("step", "layer")}  # the columns that place a point on its curve
# Made once: building a statement costs more than running it.
_DELETE_METRICS = delete(MetricRow).where(MetricRow.attempt_id == bindparam("attempt"))
_INSERT_METRICS = insert(MetricRow)
_DELETE_SCORE = delete(ScoreRow).where(
    ScoreRow.attempt_id == bindparam("attempt"), ScoreRow.task == bindparam("of"), ScoreRow.metric == bindparam("by")
)
_INSERT_SCORES = insert(ScoreRow)


def store_points(connection: Connection, attempt: int, changes: Changes) -> None:
    """Store the metrics and points that a stretch of journal changes.

    They are inserted in the order of the primary keys, which is the order of the file.
    """
    if changes.metrics is not None:
        connection.execute(_DELETE_METRICS, {"attempt": attempt})
        metrics = sorted(changes.metrics.items())
        rows = [{"attempt_id": attempt, "name": name, "value": value} for name, value in metrics]
        if rows:
            connection.execute(_INSERT_METRICS, rows)
    if changes.scores:
        places = [{"attempt": attempt, "of": task, "by": metric} for task, metric in changes.scores]
        connection.execute(_DELETE_SCORE, places)
        connection.execute(_INSERT_SCORES, [{"attempt_id": attempt, **row} for row in changes.scores.values()])
    for name, curve in sorted(changes.curves.items()):
        _put(connection, "curve", attempt, name, sorted(curve.items()))
    for name, layers in sorted(changes.layers.items()):
        points = [(step, layer, value) for (step, layer), value in sorted(layers.items())]
        _put(connection, "layer_curve", attempt, name, points)


def _put(connection: Connection, table: str, attempt: int, name: str, points: Sequence[tuple[float, ...]]) -> None:
    """Insert the points (step, value) or (step, layer, value) of one curve, replacing those that are there.

    The driver gets them without SQLAlchemy's parameters for each point, which takes a third of the time. Postgres gets
    each column as one array in the binary format, a tenth of the time of one row after the other.
    NaN becomes NULL as in `schema.Real`: SQLite does that itself.
    """
    if not points:
        return
    places = ", ".join(_PLACES[table])
    columns = f"attempt_id, name, {places}"
    if connection.dialect.name == "postgresql":
        arrays = ", ".join(["%b::integer[]"] * len(_PLACES[table]))
        values = f"unnest({arrays}, %b::double precision[]) AS point({places}, value)"
        rows = f"SELECT %s, %s, {places}, nullif(value, 'NaN') FROM {values}"
        parameters: Any = (attempt, name, *map(list, zip(*points, strict=True)))
    else:
        rows = f"VALUES (?, ?{', ?' * len(points[0])})"
        parameters = [(attempt, name, *point) for point in points]
    replace = f"ON CONFLICT ({columns}) DO UPDATE SET value = excluded.value"
    connection.exec_driver_sql(f"INSERT INTO {table} ({columns}, value) {rows} {replace}", parameters)


STRETCH_BYTES = 1 << 20  # of a journal that are read into memory at a time: about 5,000 events
_TAIL_BYTES = 4096  # bytes of a journal before the offset that are compared when it has changed; they hold its outcome


@dataclass(frozen=True)
class Stored:
    """What `store_attempt` has done: whether rows have changed, and the numbers of events and of damaged ones.

    complete: whether the journal was read to its end.
    """

    changed: bool
    events: int
    damaged: int
    complete: bool


class Unreadable(Exception):
    """A file of an attempt cannot be read or has invalid content."""


def store_attempt(connection: Connection, attempt: AttemptDir, limit: int | None = None) -> Stored:
    """Store the new events of one attempt in the caller's transaction, during which no other writer may write.

    `limit`: bytes of the journal after which to stop; the next call continues there. Raises Unreadable, also for
    content that the database refuses; the caller then rolls back.
    """
    try:
        return _store(connection, attempt, limit)
    except (ArithmeticError, TypeError, ValueError, RecursionError) as error:
        raise Unreadable(f"{attempt.path}: {type(error).__name__}: {error}") from error
    except StatementError as error:
        if isinstance(error, DBAPIError) and not isinstance(error, DataError):
            raise
        raise Unreadable(f"{attempt.path}: the database refuses its content: {error.orig}") from error


def _store(connection: Connection, attempt: AttemptDir, limit: int | None) -> Stored:
    row = _row(connection, attempt)
    mtime = journal_stat(attempt)[1]  # before reading: what is written after this counts as new
    if row is not None and not _still_holds(attempt, row):
        forget_attempt(connection, row["id"])
        row = None
    changed = row is None or row["gone"] is not None
    if row is None:
        row = _insert_attempt(connection, attempt)
    begin = row["journal_offset"]
    events = damaged = 0
    complete = False
    while not complete and (limit is None or row["journal_offset"] - begin < limit):
        data, offset = read_lines(attempt, row["journal_offset"])
        complete = offset == row["journal_offset"]
        if not complete:
            changes = project_events(journal.decoded(data))
            events += changes.events
            damaged += changes.damaged
            row = _apply(connection, row, changes, offset)
    _seal(connection, attempt, row, mtime if complete else None)
    return Stored(changed or events + damaged > 0, events, damaged, complete)


def forget_attempt(connection: Connection, attempt_id: int) -> None:
    """Delete the rows of an attempt and all its numbers."""
    for table in (MetricRow, ScoreRow, CurveRow, LayerCurveRow):
        connection.execute(delete(table).where(table.attempt_id == attempt_id))
    connection.execute(delete(AttemptRow).where(AttemptRow.id == attempt_id))


def journal_stat(attempt: AttemptDir) -> tuple[int, int]:
    """Return the size of the journal in bytes and the time of its last change in nanoseconds. Raises Unreadable."""
    try:
        found = attempt.journal_path.stat()
    except FileNotFoundError:
        return 0, 0
    except OSError as error:
        raise Unreadable(f"{attempt.journal_path}: {error.strerror}") from error
    return found.st_size, found.st_mtime_ns


def read_lines(attempt: AttemptDir, offset: int, limit: int | None = None) -> tuple[bytes, int]:
    """Return what `journal.read_bytes` does, for STRETCH_BYTES by default. Raises Unreadable."""
    try:
        return journal.read_bytes(attempt.journal_path, offset, STRETCH_BYTES if limit is None else limit)
    except OSError as error:
        raise Unreadable(f"{attempt.journal_path}: {error.strerror}") from error


def _still_holds(attempt: AttemptDir, row: Mapping[str, Any]) -> bool:
    """Return whether the journal has the same last bytes before the offset as when it was read.

    False if that is not recorded: revision 0001 of the database did not, nor did it store all that is stored now.
    """
    offset: int = row["journal_offset"]
    return journal_stat(attempt)[0] >= offset and bool(tail_of(attempt, offset) == row["journal_tail"])


def tail_of(attempt: AttemptDir, offset: int) -> int:
    """Return the checksum of the last bytes of an attempt's journal before `offset`. Raises Unreadable."""
    start = max(0, offset - _TAIL_BYTES)
    try:
        with open_regular(attempt.journal_path) as file:
            file.seek(start)
            return zlib.crc32(file.read(offset - start))
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise Unreadable(f"{attempt.journal_path}: {error.strerror}") from error


def _seal(connection: Connection, attempt: AttemptDir, row: Mapping[str, Any], mtime: int | None) -> None:
    """Record the state of the journal when it was read, and that its directory exists.

    `mtime`: None for a journal that was not read to its end, which then always counts as changed.
    """
    seal = {"journal_mtime": mtime, "journal_tail": tail_of(attempt, row["journal_offset"]), "gone": None}
    if any(row[name] != value for name, value in seal.items()):
        connection.execute(_UPDATE, {**seal, "attempt": row["id"]})


def _row(connection: Connection, attempt: AttemptDir) -> dict[str, Any] | None:
    found = connection.execute(_FIND, {"key": attempt.key, "of": attempt.number}).mappings().first()
    return dict(found) if found else None


# Made once: building a statement costs more than running it.
_FIND = select(AttemptRow).where(AttemptRow.stage_key == bindparam("key"), AttemptRow.number == bindparam("of"))
_FIRST = select(func.min(AttemptRow.number)).where(AttemptRow.stage_key == bindparam("key"))
_INSERT = insert(AttemptRow)
_UPDATE = update(AttemptRow).where(AttemptRow.id == bindparam("attempt"))


def _insert_attempt(connection: Connection, attempt: AttemptDir) -> dict[str, Any]:
    asked = _asked(attempt)
    # Cells that differ in settings irrelevant to the stage share it: the first attempt's cell describes it.
    first = connection.scalar(_FIRST, {"key": attempt.key})
    if first is None or attempt.number < first:
        _put_stage(connection, attempt.key, asked)
    row = _row_of(attempt, asked)
    inserted = connection.execute(_INSERT, row).inserted_primary_key
    return row | {"id": inserted[0] if inserted else None}


def _row_of(attempt: AttemptDir, asked: AttemptRecord) -> dict[str, Any]:
    try:
        known = {"created": number(asked.created), "code": string(asked.code), "threads": integer(asked.threads)}
    except ValueError as error:
        raise Unreadable(f"{attempt.attempt_path}: {error}") from error
    axes = plain(asked.axes)
    unknown: dict[str, Any] = {column.name: None for column in inspect(AttemptRow).columns if column.name != "id"}
    named = {"grid": string(asked.grid), "name": string(asked.name), "executor": string(asked.executor)}
    place = {"stage_key": attempt.key, "number": attempt.number, "directory": attempt.relative, "axes": axes}
    return unknown | known | named | place | {"journal_offset": 0, "journal_events": 0, "journal_damaged": 0}


def _put_stage(connection: Connection, key: str, asked: AttemptRecord) -> None:
    # JSON in a database has no Infinity, although Python reads it.
    facts = plain({"parents": asked.parents, "cell": asked.cell})
    stage = {"kind": string(asked.stage), **facts}
    if connection.execute(update(StageRow).where(StageRow.key == key).values(stage)).rowcount == 0:
        connection.execute(insert(StageRow), stage | {"key": key})


def _asked(attempt: AttemptDir) -> AttemptRecord:
    path = attempt.attempt_path
    try:
        asked = attempt.read_attempt()
    except OSError as error:
        raise Unreadable(f"{path}: {error.strerror}") from error
    except StoreError as error:
        raise Unreadable(str(error)) from error
    if (asked.key, asked.number) != (attempt.key, attempt.number):
        raise Unreadable(f"{path}: is of {asked.key}/{asked.number}; its directory was renamed or copied")
    return asked


def _apply(connection: Connection, row: Mapping[str, Any], changes: Changes, offset: int) -> dict[str, Any]:
    columns = dict(changes.columns)
    if row["started"] is not None:  # the first start of a requeued job counts
        columns.pop("started", None)
    if "last_step" in columns:
        columns["last_step"] = max(columns["last_step"], row["last_step"] or 0)
    columns |= {
        "journal_offset": offset,
        "journal_events": row["journal_events"] + changes.events,
        "journal_damaged": row["journal_damaged"] + changes.damaged,
    }
    connection.execute(_UPDATE, columns | {"attempt": row["id"]})
    store_points(connection, row["id"], changes)
    return dict(row) | columns
