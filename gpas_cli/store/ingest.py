"""Run directories -> rows. Incremental, idempotent and resumable, because the database remembers how far it has read.

Each attempt is one transaction: its rows and the offset in its journal they came from are stored together or not at
all. What a journal had when it was last read is not read again, and an attempt whose journal has not grown since costs
one look at the size of a file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Dialect, Engine, Table, bindparam, delete, func, insert, select, update
from sqlalchemy.exc import DataError, DBAPIError, StatementError

from gpas_cli.errors import StoreError
from gpas_cli.store import journal, rundir, session
from gpas_cli.store.fold import Changes, fold, integer, number, optional, string
from gpas_cli.store.rundir import AttemptDir
from gpas_cli.store.schema import Base

STAGE, ATTEMPT, METRIC, CURVE, LAYER_CURVE = (
    Base.metadata.tables[name] for name in ("stage", "attempt", "metric", "curve", "layer_curve")
)
STRETCH = 4 << 20  # bytes of a journal taken into memory at a time: about 25,000 events
_REQUIRED = ("stage", "cell", "grid", "name", "axes", "executor")


@dataclass(frozen=True)
class Ingested:
    """What one `sync` did: attempts that changed, events read, lines or events that were damaged.

    `problems` names the attempts that could not be read, with the reason; they are tried again every time.
    """

    attempts: int = 0
    events: int = 0
    damaged: int = 0
    problems: tuple[str, ...] = ()

    def __add__(self, other: Ingested) -> Ingested:
        return Ingested(
            self.attempts + other.attempts,
            self.events + other.events,
            self.damaged + other.damaged,
            self.problems + other.problems,
        )


class Unreadable(Exception):
    """An attempt's file cannot be read, or is not what it should be."""


def sync(engine: Engine, runs: Path, keys: Iterable[str] | None = None) -> Ingested:
    """Bring the rows of all attempts under `runs`, or of those at the stages `keys`, up to their journals.

    Safe to run at the same time elsewhere, and to be killed. Raises StoreError when the database cannot be written;
    what was stored until then stays, and the next call goes on from there.
    """
    done = Ingested()
    writer = session.for_writing(engine)
    offsets = _offsets(engine)
    skipped: list[str] = []
    for attempt in _listed(runs, keys, skipped):
        try:
            if not _has_news(attempt, offsets.get((attempt.key, attempt.number))):
                continue
            with writer.begin() as connection:
                session.lock(connection)
                done += ingest_attempt(connection, attempt)
        except Unreadable as problem:
            done += Ingested(problems=(str(problem),))
    return done + Ingested(problems=tuple(skipped))


def ingest_attempt(connection: Connection, attempt: AttemptDir) -> Ingested:
    """Store what is new in one attempt, in the caller's transaction, which no other writer shares.

    Raises Unreadable, also for content that no job writes and the database refuses; the caller then rolls back.
    """
    try:
        return _ingest(connection, attempt)
    except (ArithmeticError, TypeError, ValueError, RecursionError) as error:
        raise Unreadable(f"{attempt.path}: {type(error).__name__}: {error}") from error
    except StatementError as error:
        if isinstance(error, DBAPIError) and not isinstance(error, DataError):
            raise
        raise Unreadable(f"{attempt.path}: the database refuses what it holds: {error.orig}") from error


def _ingest(connection: Connection, attempt: AttemptDir) -> Ingested:
    row = _row(connection, attempt)
    if row is not None and _size(attempt) < row["journal_offset"]:
        _forget(connection, row["id"])  # the journal was cut or replaced: what was read from it no longer holds
        row = None
    changed = row is None
    if row is None:
        row = _insert_attempt(connection, attempt)
    events = damaged = 0
    while True:
        found, offset, bad = _read(attempt, row["journal_offset"])
        if offset == row["journal_offset"]:
            return Ingested(int(changed or events + damaged > 0), events, damaged)
        changes = fold(found)
        events, damaged = events + len(found), damaged + bad + changes.malformed
        row = _apply(connection, row, changes, offset, len(found), bad + changes.malformed)


def _listed(runs: Path, keys: Iterable[str] | None, skipped: list[str]) -> Iterator[AttemptDir]:
    if keys is None:
        yield from rundir.all_attempts(runs, skipped)
        return
    for key in sorted(set(keys)):
        try:
            yield from rundir.attempts(runs, key)
        except OSError as error:
            skipped.append(f"{error.filename}: {error.strerror}")


def _offsets(engine: Engine) -> dict[tuple[str, int], int]:
    with engine.connect() as connection:
        rows = connection.execute(select(ATTEMPT.c.stage_key, ATTEMPT.c.number, ATTEMPT.c.journal_offset))
        return {(key, number): offset for key, number, offset in rows}


def _has_news(attempt: AttemptDir, offset: int | None) -> bool:
    if offset is None:
        return True
    size = _size(attempt)
    # A torn last line stays behind the offset for good: it is worth one read, but no transaction.
    return size != offset and (size < offset or _read(attempt, offset, limit=1)[1] > offset)


def _size(attempt: AttemptDir) -> int:
    try:
        return attempt.journal_path.stat().st_size
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise Unreadable(f"{attempt.journal_path}: {error.strerror}") from error


def _read(attempt: AttemptDir, offset: int, limit: int = STRETCH) -> tuple[list[dict[str, Any]], int, int]:
    try:
        return journal.read(attempt.journal_path, offset, limit)
    except OSError as error:
        raise Unreadable(f"{attempt.journal_path}: {error.strerror}") from error


def _row(connection: Connection, attempt: AttemptDir) -> dict[str, Any] | None:
    found = connection.execute(_FIND, {"key": attempt.key, "of": attempt.number}).mappings().first()
    return dict(found) if found else None


# Made once: building a statement costs more than running it.
_FIND = select(ATTEMPT).where(ATTEMPT.c.stage_key == bindparam("key"), ATTEMPT.c.number == bindparam("of"))
_FIRST = select(func.min(ATTEMPT.c.number)).where(ATTEMPT.c.stage_key == bindparam("key"))
_INSERT = insert(ATTEMPT)
_UPDATE = update(ATTEMPT).where(ATTEMPT.c.id == bindparam("attempt"))
_DELETE_METRICS = delete(METRIC).where(METRIC.c.attempt_id == bindparam("attempt"))


def _forget(connection: Connection, attempt_id: int) -> None:
    for table in (METRIC, CURVE, LAYER_CURVE):
        connection.execute(delete(table).where(table.c.attempt_id == attempt_id))
    connection.execute(delete(ATTEMPT).where(ATTEMPT.c.id == attempt_id))


def _insert_attempt(connection: Connection, attempt: AttemptDir) -> dict[str, Any]:
    asked = _asked(attempt)
    # Attempts at one stage may come from cells that differ in what does not matter to it: the first one speaks for it.
    first = connection.scalar(_FIRST, {"key": attempt.key})
    if first is None or attempt.number < first:
        _put_stage(connection, attempt.key, asked)
    row = _row_of(attempt, asked)
    inserted = connection.execute(_INSERT, row).inserted_primary_key
    return row | {"id": inserted[0] if inserted else None}


def _row_of(attempt: AttemptDir, asked: Mapping[str, Any]) -> dict[str, Any]:
    try:
        known = {
            "created": optional(number, asked.get("created")),
            "code": optional(string, asked.get("code")),
            "threads": optional(integer, asked.get("threads")),
        }
    except ValueError as error:
        raise Unreadable(f"{attempt.attempt_path}: {error}") from error
    axes = journal.plain(asked["axes"])
    unknown: dict[str, Any] = {column.name: None for column in ATTEMPT.columns if column.name != "id"}
    named = {name: string(asked[name]) for name in ("grid", "name", "executor")}
    place = {"stage_key": attempt.key, "number": attempt.number, "directory": attempt.relative, "axes": axes}
    return unknown | known | named | place | {"journal_offset": 0, "journal_events": 0, "journal_damaged": 0}


def _put_stage(connection: Connection, key: str, asked: Mapping[str, Any]) -> None:
    # JSON in a database has no Infinity, though Python reads it.
    facts = journal.plain({"parents": list(asked.get("parents") or []), "cell": asked["cell"]})
    stage = {"kind": string(asked["stage"]), **facts}
    if connection.execute(update(STAGE).where(STAGE.c.key == key).values(stage)).rowcount == 0:
        connection.execute(insert(STAGE), stage | {"key": key})


def _asked(attempt: AttemptDir) -> dict[str, Any]:
    path = attempt.attempt_path
    try:
        asked = attempt.read_attempt()
    except OSError as error:
        raise Unreadable(f"{path}: {error.strerror}") from error
    except StoreError as error:
        raise Unreadable(str(error)) from error
    lacking = [name for name in _REQUIRED if asked.get(name) is None]
    if lacking:
        raise Unreadable(f"{path}: lacks {', '.join(lacking)}")
    if asked.get("key", attempt.key) != attempt.key or asked.get("number", attempt.number) != attempt.number:
        raise Unreadable(f"{path}: is of {asked.get('key')}/{asked.get('number')}; its directory was renamed or copied")
    if not isinstance(asked["cell"], dict) or not isinstance(asked["axes"], dict):
        raise Unreadable(f"{path}: cell and axes must be objects")
    return asked


def _apply(
    connection: Connection, row: Mapping[str, Any], changes: Changes, offset: int, events: int, damaged: int
) -> dict[str, Any]:
    columns = dict(changes.columns)
    if row["started"] is not None:  # of a job that was requeued, the first start
        columns.pop("started", None)
    if "last_step" in columns:
        columns["last_step"] = max(columns["last_step"], row["last_step"] or 0)
    columns |= {
        "journal_offset": offset,
        "journal_events": row["journal_events"] + events,
        "journal_damaged": row["journal_damaged"] + damaged,
    }
    connection.execute(_UPDATE, columns | {"attempt": row["id"]})
    _store_points(connection, row["id"], changes)
    return dict(row) | columns


def _store_points(connection: Connection, attempt: int, changes: Changes) -> None:
    """In the order of the primary keys, which is the order of the file."""
    if changes.metrics is not None:
        connection.execute(_DELETE_METRICS, {"attempt": attempt})
        _put(connection, METRIC, [(attempt, name, value) for name, value in sorted(changes.metrics.items())])
    for name, curve in sorted(changes.curves.items()):
        _put(connection, CURVE, [(attempt, name, step, value) for step, value in sorted(curve.items())])
    for name, layers in sorted(changes.layers.items()):
        _put(connection, LAYER_CURVE, [(attempt, name, *at, value) for at, value in sorted(layers.items())])


def _put(connection: Connection, table: Table, rows: list[tuple[Any, ...]]) -> None:
    """Insert points, replacing those that are there; each row is the primary key, in order, and the value.

    Straight to the driver, which is three times as fast as building parameters for each point; NaN becomes NULL as in
    `schema.Real`. No two rows have the same key.
    """
    if not rows:
        return
    points = [(*at, None if math.isnan(value) else value) for *at, value in rows]
    statement = _put_statement(table, connection.dialect)
    if connection.dialect.name == "postgresql":  # the columns as arrays: one statement, ten times as fast
        connection.exec_driver_sql(statement, tuple(map(_array, zip(*points, strict=True))))
    else:
        connection.exec_driver_sql(statement, points)


def _array(values: Iterable[int | float | str | None]) -> str:
    """A Postgres array as text; the driver, which looks at each element in turn, takes ten times as long."""
    return "{" + ",".join(map(_element, values)) + "}"


def _element(value: int | float | str | None) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return "NULL" if value is None else repr(value)


@cache
def _put_statement(table: Table, dialect: Dialect) -> str:
    columns = [*table.primary_key.columns, table.c.value]
    key = ", ".join(column.name for column in table.primary_key)
    if dialect.name == "postgresql":
        arrays = ", ".join(f"%s::{column.type.compile(dialect)}[]" for column in columns)
        rows = f"SELECT * FROM unnest({arrays})"
    else:
        rows = f"VALUES ({', '.join('?' * len(columns))})"
    return f"INSERT INTO {table.name} ({key}, value) {rows} ON CONFLICT ({key}) DO UPDATE SET value = excluded.value"
