"""Store the rows of attempts, from their attempt.json and their journals, in the caller's transaction.

A journal is read from the offset in its row, and the offset after what was read is stored with the rows. At most
STRETCH_BYTES are read at a time, so that memory does not depend on the length of the journals. If a journal has changed
before the offset, the rows are deleted and it is read again from the start.

Each statement is executed for all attempts of a transaction together: ingesting 5,800 attempts of 30 events takes 0.5
of the CPU time of one attempt after the other.
"""

import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Connection, bindparam, delete, inspect, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DataError, DBAPIError, StatementError

from gpas_cli.errors import StoreError
from gpas_cli.files import open_regular
from gpas_cli.store import journal
from gpas_cli.store.projection import Changes, integer, number, project_events, string
from gpas_cli.store.records import AttemptRecord
from gpas_cli.store.rundir import AttemptDir
from gpas_cli.store.schema import AttemptRow, Base, CurveRow, LayerCurveRow, MetricRow, ScoreRow, StageRow
from gpas_cli.structure import Frozen, plain
from gpas_cli.words import grouped

STRETCH_BYTES = 1 << 20  # of journals that are read into memory at a time: about 5,000 events
_TAIL_BYTES = 4096  # bytes of a journal before the offset that are compared when it has changed; they hold its outcome
# Made once: building a statement costs more than running it.
_a = AttemptRow
_FIND = select(
    *(_a.stage_key, _a.number, _a.id, _a.started, _a.last_step, _a.gone),
    *(_a.journal_offset, _a.journal_events, _a.journal_damaged, _a.journal_tail),
).where(_a.stage_key.in_(bindparam("keys", expanding=True)))
_UPDATE = update(AttemptRow).where(AttemptRow.id == bindparam("attempt"))
_DELETE_METRICS = delete(MetricRow).where(MetricRow.attempt_id == bindparam("attempt"))
_ARRAYS = {"name": "%b::text[]", "value": "%b::double precision[]"}  # columns of points that are no integers
_UNKNOWN: dict[str, Any] = {column.name: None for column in inspect(AttemptRow).columns if column.name != "id"}


class Stored(Frozen):
    """What `store_attempts` has stored of an attempt."""

    attempt: AttemptDir
    id: int | None  # None if the attempt had no row; then `columns` are all of its row, and `asked` is its attempt.json
    asked: AttemptRecord | None
    columns: dict[str, Any]
    changes: Changes
    changed: bool
    complete: bool  # whether the journal was read to its end


class Unreadable(Exception):
    """A file of an attempt cannot be read or has invalid content."""


def store_attempts(connection: Connection, attempts: Sequence[AttemptDir]) -> list[Stored]:
    """Store what is new of attempts in the caller's transaction, during which no other writer may write.

    After STRETCH_BYTES of journals, the rest of a journal and the rest of the attempts are left to the next call.
    Raises Unreadable, also for content that the database refuses; the caller then rolls back. It names the first
    attempt even where another one is at fault: the caller stores each alone to find out.
    """
    try:
        return _store(connection, attempts)
    except OSError as error:
        raise Unreadable(f"{error.filename or attempts[0].path}: {error.strerror}") from error
    except (ArithmeticError, TypeError, ValueError, RecursionError) as error:
        raise Unreadable(f"{attempts[0].path}: {type(error).__name__}: {error}") from error
    except StatementError as error:
        if isinstance(error, DBAPIError) and not isinstance(error, DataError):
            raise
        raise Unreadable(f"{attempts[0].path}: the database refuses its content: {error.orig}") from error


def _store(connection: Connection, attempts: Sequence[AttemptDir]) -> list[Stored]:
    rows = _rows(connection, attempts)
    read: list[Stored] = []
    room = STRETCH_BYTES
    for attempt in attempts:
        row = rows.get((attempt.key, attempt.number), {})
        if row and not _still_holds(attempt, row):
            forget_attempt(connection, row["id"])
            row = {}
        read.append(_read(attempt, row, room))
        room -= read[-1].columns["journal_offset"] - row.get("journal_offset", 0)
        if room <= 0:
            break
    new = [one for one in read if one.asked]
    # Cells that differ in settings irrelevant to the stage share it: the first attempt's cell describes it.
    numbers = grouped([*rows, *((one.attempt.key, one.attempt.number) for one in new)])
    first = [one.asked for one in new if one.asked and one.attempt.number == min(numbers[one.attempt.key])]
    facts = ((own, plain({"parents": own.parents, "cell": own.cell})) for own in first)
    _put(connection, StageRow, [{"key": own.key, "kind": string(own.stage), **more} for own, more in facts])
    _put(connection, AttemptRow, [one.columns for one in new])
    rows |= _rows(connection, [one.attempt for one in new])
    for one in read:
        if one.id:
            connection.execute(_UPDATE, {**one.columns, "attempt": one.id})
    changed = {rows[one.attempt.key, one.attempt.number]["id"]: one.changes for one in read}
    store_points(connection, dict(sorted(changed.items())))
    return read


def _rows(connection: Connection, attempts: Sequence[AttemptDir]) -> dict[tuple[str, int], Mapping[str, Any]]:
    """Return the rows of all attempts at the stages of `attempts`, by key and number."""
    found = connection.execute(_FIND, {"keys": list({attempt.key for attempt in attempts})})
    return {(row.stage_key, row.number): row._asdict() for row in found}


def _read(attempt: AttemptDir, row: Mapping[str, Any], room: int) -> Stored:
    """Return what is new of an attempt with this row, which is empty if it has none."""
    asked, columns = (None, {}) if row else _described(attempt)
    begin = row.get("journal_offset", 0)
    mtime = journal_stat(attempt)[1]  # before reading: what is written after this counts as new
    data, offset = journal.read_bytes(attempt.journal_path, begin, room)
    complete = len(data) < room
    changes = project_events(journal.decoded(data))
    columns |= changes.columns
    if row.get("started") is not None:  # the first start of a requeued job counts
        columns.pop("started", None)
    if "last_step" in changes.columns:
        columns["last_step"] = max(columns["last_step"], row.get("last_step") or 0)
    columns |= {
        "journal_offset": offset,
        "journal_events": row.get("journal_events", 0) + changes.events,
        "journal_damaged": row.get("journal_damaged", 0) + changes.damaged,
        "journal_mtime": mtime if complete else None,  # a journal that was not read to its end counts as changed
        "journal_tail": tail_of(attempt, offset) if begin else zlib.crc32(data[-_TAIL_BYTES:]),
        "gone": None,
    }
    changed = not row or row["gone"] is not None or changes.events + changes.damaged > 0
    return Stored(attempt, row.get("id"), asked, columns, changes, changed, complete)


def store_points(connection: Connection, changed: Mapping[int, Changes]) -> None:
    """Store the metrics, scores and points of attempts, by their ids in ascending order.

    They are inserted in the order of the primary keys, which is the order of the file.
    """
    ended = {attempt: changes.metrics for attempt, changes in changed.items() if changes.metrics is not None}
    if ended:
        connection.execute(_DELETE_METRICS, [{"attempt": attempt} for attempt in ended])
    metrics = ((attempt, *metric) for attempt, own in ended.items() for metric in sorted(own.items()))
    _put(connection, MetricRow, [{"attempt_id": a, "name": name, "value": value} for a, name, value in metrics])
    scores = ((attempt, score) for attempt, changes in changed.items() for score in changes.scores.values())
    _put(connection, ScoreRow, [{"attempt_id": attempt, **score} for attempt, score in scores])
    curves = ((attempt, *curve) for attempt, changes in changed.items() for curve in sorted(changes.curves.items()))
    points = [(attempt, name, *point) for attempt, name, curve in curves for point in sorted(curve.items())]
    _put_points(connection, CurveRow, points)
    layers = ((attempt, *curve) for attempt, changes in changed.items() for curve in sorted(changes.layers.items()))
    values = [(a, name, *place, value) for a, name, curve in layers for place, value in sorted(curve.items())]
    _put_points(connection, LayerCurveRow, values)


def _put(connection: Connection, table: type[Base], rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows, replacing those with the same primary keys."""
    if rows:
        connection.execute(_replacing(table, connection.dialect.name), rows)


@cache
def _replacing(table: type[Base], dialect: str) -> Any:
    statement = (postgresql if dialect == "postgresql" else sqlite).insert(table)
    keys = [column.name for column in inspect(table).primary_key]
    others = {column.name: column for column in statement.excluded if column.name not in keys}
    return statement.on_conflict_do_update(index_elements=keys, set_=others)


def _put_points(connection: Connection, table: type[Base], points: Sequence[tuple[Any, ...]]) -> None:
    """Insert points of curves, (attempt, name, step, value) or (attempt, name, step, layer, value), like `_put`.

    The driver gets them without SQLAlchemy's parameters for each point, which takes a third of the time. Postgres gets
    each column as one array in the binary format, a tenth of the time of one row after the other.
    NaN becomes NULL as in `schema.Real`: SQLite does that itself.
    """
    if not points:
        return
    *keys, _ = columns = [column.name for column in inspect(table).columns]
    source = f"VALUES ({', '.join('?' * len(columns))})"
    parameters: Any = points
    if connection.dialect.name == "postgresql":
        kinds = ", ".join(_ARRAYS.get(name, "%b::integer[]") for name in columns)
        source = f"SELECT {', '.join(keys)}, nullif(value, 'NaN') FROM unnest({kinds}) AS point({', '.join(columns)})"
        parameters = tuple(map(list, zip(*points, strict=True)))
    replace = f"ON CONFLICT ({', '.join(keys)}) DO UPDATE SET value = excluded.value"
    into = f"{inspect(table).local_table} ({', '.join(columns)})"
    connection.exec_driver_sql(f"INSERT INTO {into} {source} {replace}", parameters)


def forget_attempt(connection: Connection, attempt_id: int) -> None:
    """Delete the rows of an attempt and all its numbers."""
    for table in (MetricRow, ScoreRow, CurveRow, LayerCurveRow):
        connection.execute(delete(table).where(table.attempt_id == attempt_id))
    connection.execute(delete(AttemptRow).where(AttemptRow.id == attempt_id))


def journal_stat(attempt: AttemptDir) -> tuple[int, int]:
    """Return the size of the journal in bytes and the time of its last change in nanoseconds. Raises OSError."""
    try:
        found = attempt.journal_path.stat()
    except FileNotFoundError:
        return 0, 0
    return found.st_size, found.st_mtime_ns


def _still_holds(attempt: AttemptDir, row: Mapping[str, Any]) -> bool:
    """Return whether the journal has the same last bytes before the offset as when it was read.

    False if that is not recorded: revision 0001 of the database did not, nor did it store all that is stored now.
    """
    offset: int = row["journal_offset"]
    return journal_stat(attempt)[0] >= offset and bool(tail_of(attempt, offset) == row["journal_tail"])


def tail_of(attempt: AttemptDir, offset: int) -> int:
    """Return the checksum of the last bytes of an attempt's journal before `offset`. Raises OSError."""
    start = max(0, offset - _TAIL_BYTES)
    try:
        with open_regular(attempt.journal_path) as file:
            file.seek(start)
            return zlib.crc32(file.read(offset - start))
    except FileNotFoundError:
        return 0


def _described(attempt: AttemptDir) -> tuple[AttemptRecord, dict[str, Any]]:
    """Return what the attempt.json of an attempt says, and the row of an attempt of which no more is known."""
    path = attempt.attempt_path
    try:
        asked = attempt.read_attempt()
        known = {"created": number(asked.created), "code": string(asked.code), "threads": integer(asked.threads)}
    except (StoreError, ValueError) as error:
        raise Unreadable(str(error) if isinstance(error, StoreError) else f"{path}: {error}") from error
    if (asked.key, asked.number) != (attempt.key, attempt.number):
        raise Unreadable(f"{path}: is of {asked.key}/{asked.number}; its directory was renamed or copied")
    named = {"grid": string(asked.grid), "name": string(asked.name), "executor": string(asked.executor)}
    place = {"stage_key": attempt.key, "number": attempt.number, "directory": attempt.relative}
    # JSON in a database has no Infinity, although Python reads it.
    return asked, _UNKNOWN | known | named | place | {"axes": plain(asked.axes)}
