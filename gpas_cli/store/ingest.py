"""Ingest run directories into the database.

Ingesting is incremental, idempotent and resumable, because the database records how far each journal was read. Each
attempt is one transaction: its rows and the offset in its journal are stored together. An attempt whose journal has not
changed costs one `stat`. If a journal has changed, its last bytes before the offset must be the same as before;
otherwise its rows are deleted and it is read again from the start.

An attempt whose run directory is gone keeps its rows and is marked as gone, so that its numbers are not shown as
results; the mark is removed when the directory is back.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, bindparam, delete, func, insert, select, update
from sqlalchemy.exc import DataError, DBAPIError, StatementError

from gpas_cli.errors import StoreError
from gpas_cli.files import open_regular
from gpas_cli.store import journal, owner, rundir, session
from gpas_cli.store.points import forget_points, store_points
from gpas_cli.store.projection import Changes, integer, number, project_events, string
from gpas_cli.store.records import AttemptRecord
from gpas_cli.store.rundir import AttemptDir
from gpas_cli.store.schema import Base

STAGE, ATTEMPT = (Base.metadata.tables[name] for name in ("stage", "attempt"))
KEY_DIGITS = 16
TAIL_BYTES = 4096  # bytes of a journal before the offset that are compared when it has changed; they hold its outcome


@dataclass(frozen=True)
class Ingested:
    """The result of `sync`: the numbers of changed attempts, of events read, and of damaged lines or events.

    `gone` counts attempts whose run directories have disappeared since the last time. `problems` are the attempts that
    could not be read, with the reason; they are tried again every time.
    """

    attempts: int = 0
    events: int = 0
    damaged: int = 0
    problems: tuple[str, ...] = ()
    gone: int = 0

    def __add__(self, other: Ingested) -> Ingested:
        return Ingested(
            self.attempts + other.attempts,
            self.events + other.events,
            self.damaged + other.damaged,
            self.problems + other.problems,
            self.gone + other.gone,
        )


class _Known(NamedTuple):
    """What the database has recorded of an attempt: its row, and its journal when it was last read."""

    id: int
    directory: str
    offset: int
    mtime: int | None
    gone: float | None


class Unreadable(Exception):
    """A file of an attempt cannot be read or has invalid content."""


def sync(engine: Engine, runs: Path, keys: Iterable[str] | None = None) -> Ingested:
    """Update the rows of all attempts under `runs`, or of those at the stages `keys`, from their journals.

    May run concurrently and may be killed. Raises StoreError if the database belongs to another project or cannot be
    written; what was stored before remains.
    """
    owner.claim(engine, runs)
    done = Ingested()
    writer = session.for_writing(engine)
    known = _known(engine, keys)
    skipped: list[str] = []
    for folder, name in _listed(runs, keys, skipped):
        before = known.pop((folder[-KEY_DIGITS:], int(name)), None)
        if before is not None and _is_unchanged(f"{folder}/{name}/{rundir.JOURNAL}", before):
            continue
        attempt = AttemptDir(Path(folder, name))
        try:
            if not _has_news(attempt, before):
                continue
            with writer.begin() as connection:
                session.lock(connection)
                done += ingest_attempt(connection, attempt)
        except Unreadable as problem:
            done += Ingested(problems=(str(problem),))
    return done + Ingested(problems=tuple(skipped), gone=_mark_gone(writer, runs, known.values()))


def ingest_attempt(connection: Connection, attempt: AttemptDir) -> Ingested:
    """Store the new events of one attempt in the caller's transaction, during which no other writer may write.

    Raises Unreadable, also for content that the database refuses; the caller then rolls back.
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
    mtime = _stat(attempt)[1]  # of before reading: what is written meanwhile is news
    if row is not None and not _still_holds(attempt, row):
        _forget(
            connection, row["id"]
        )  # the journal was cut, replaced or damaged: what was read from it no longer holds
        row = None
    changed = row is None or row["gone"] is not None
    if row is None:
        row = _insert_attempt(connection, attempt)
    events = damaged = 0
    while True:
        found, offset, bad = _read(attempt, row["journal_offset"])
        if offset == row["journal_offset"]:
            _seal(connection, attempt, row, mtime)
            return Ingested(int(changed or events + damaged > 0), events, damaged)
        changes = project_events(found)
        events, damaged = events + len(found), damaged + bad + changes.malformed
        row = _apply(connection, row, changes, offset, len(found), bad + changes.malformed)


def newest_facts(engine: Engine, prefix: str) -> list[dict[str, Any]]:
    """Return what the newest attempt at each stage whose key begins with `prefix` was to run.

    The facts are {key, stage, cell, grid, name, axes}.
    """
    stage, attempt = STAGE.c, ATTEMPT.c
    statement = (
        select(stage.key, stage.kind.label("stage"), stage.cell, attempt.grid, attempt.name, attempt.axes)
        .join(ATTEMPT, attempt.stage_key == stage.key)
        .where(stage.key.startswith(prefix, autoescape=True))
        .order_by(stage.key, attempt.number)
    )
    with engine.connect() as connection:
        return list({row["key"]: dict(row) for row in connection.execute(statement).mappings()}.values())


def _listed(runs: Path, keys: Iterable[str] | None, skipped: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the folder of the stage and the name of every attempt. As text: a project may have many thousands."""
    for key in rundir.all_keys(runs, skipped) if keys is None else sorted(set(keys)):
        folder = str(rundir.stage_dir(runs, key))
        for name in rundir.attempt_names(folder, skipped):
            yield folder, name


def _known(engine: Engine, keys: Iterable[str] | None) -> dict[tuple[str, int], _Known]:
    a = ATTEMPT.c
    wanted = None if keys is None else set(keys)
    with engine.connect() as connection:
        rows = connection.execute(
            select(a.stage_key, a.number, a.id, a.directory, a.journal_offset, a.journal_mtime, a.gone)
        )
        return {(key, number): _Known(*others) for key, number, *others in rows if wanted is None or key in wanted}


def _is_unchanged(journal_path: str, known: _Known) -> bool:
    """Return whether a journal was read to its end and has not changed since."""
    if known.gone is not None:
        return False
    try:
        found = os.stat(journal_path)  # noqa: PTH116 - a Path takes as long to make as this does
    except OSError:
        return False
    return found.st_mtime_ns == known.mtime and found.st_size == known.offset


def _has_news(attempt: AttemptDir, known: _Known | None) -> bool:
    if known is None or known.gone is not None:
        return True
    size, mtime = _stat(attempt)
    if size < known.offset or mtime != known.mtime:
        return True
    # A torn last line always remains after the offset: check it with a read, without a transaction.
    return size > known.offset and _read(attempt, known.offset, limit=1)[1] > known.offset


def _stat(attempt: AttemptDir) -> tuple[int, int]:
    """Return the size of the journal in bytes and the time of its last change in nanoseconds."""
    try:
        found = attempt.journal_path.stat()
    except FileNotFoundError:
        return 0, 0
    except OSError as error:
        raise Unreadable(f"{attempt.journal_path}: {error.strerror}") from error
    return found.st_size, found.st_mtime_ns


def _still_holds(attempt: AttemptDir, row: Mapping[str, Any]) -> bool:
    """Return whether the journal has the same last bytes before the offset as when it was read."""
    offset, tail = row["journal_offset"], row["journal_tail"]
    return _stat(attempt)[0] >= offset and (tail is None or tail == tail_of(attempt, offset))


def tail_of(attempt: AttemptDir, offset: int) -> int:
    """Return the checksum of the last bytes of an attempt's journal before `offset`. Raises Unreadable."""
    start = max(0, offset - TAIL_BYTES)
    try:
        with open_regular(attempt.journal_path) as file:
            file.seek(start)
            return zlib.crc32(file.read(offset - start))
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise Unreadable(f"{attempt.journal_path}: {error.strerror}") from error


def _seal(connection: Connection, attempt: AttemptDir, row: Mapping[str, Any], mtime: int) -> None:
    """Record the state of the journal when it was read, and that its directory exists."""
    seal = {"journal_mtime": mtime, "journal_tail": tail_of(attempt, row["journal_offset"]), "gone": None}
    if any(row[name] != value for name, value in seal.items()):
        connection.execute(_UPDATE, {**seal, "attempt": row["id"]})


def _mark_gone(writer: Engine, runs: Path, rest: Iterable[_Known]) -> int:
    """Mark the attempts of `rest` whose directories are certainly gone; return how many.

    The rows of forgotten attempts are deleted, as a rebuilt database would not have them.
    """
    if not runs.is_dir():  # for example not mounted: nothing is known about any attempt
        return 0
    missing = [known for known in rest if rundir.is_gone(runs / known.directory)]
    forgotten = [known.id for known in missing if _is_forgotten(runs, known)]
    gone = [known.id for known in missing if known.gone is None and known.id not in forgotten]
    if forgotten:
        with writer.begin() as connection:
            session.lock(connection)
            for attempt in forgotten:
                _forget(connection, attempt)
    if gone:
        with writer.begin() as connection:
            session.lock(connection)
            connection.execute(_UPDATE, [{"attempt": attempt, "gone": time.time()} for attempt in gone])
    return len(gone)


def _is_forgotten(runs: Path, known: _Known) -> bool:
    directory = runs / known.directory
    return (directory.parent / f"{rundir.FORGOTTEN}{directory.name}").is_dir()


def _read(attempt: AttemptDir, offset: int, limit: int | None = None) -> tuple[list[journal.Line], int, int]:
    try:
        return journal.read(attempt.journal_path, offset, journal.STRETCH_BYTES if limit is None else limit)
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


def _forget(connection: Connection, attempt_id: int) -> None:
    forget_points(connection, attempt_id)
    connection.execute(delete(ATTEMPT).where(ATTEMPT.c.id == attempt_id))


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
    axes = journal.plain(asked.axes)
    unknown: dict[str, Any] = {column.name: None for column in ATTEMPT.columns if column.name != "id"}
    named = {"grid": string(asked.grid), "name": string(asked.name), "executor": string(asked.executor)}
    place = {"stage_key": attempt.key, "number": attempt.number, "directory": attempt.relative, "axes": axes}
    return unknown | known | named | place | {"journal_offset": 0, "journal_events": 0, "journal_damaged": 0}


def _put_stage(connection: Connection, key: str, asked: AttemptRecord) -> None:
    # JSON in a database has no Infinity, although Python reads it.
    facts = journal.plain({"parents": asked.parents, "cell": asked.cell})
    stage = {"kind": string(asked.stage), **facts}
    if connection.execute(update(STAGE).where(STAGE.c.key == key).values(stage)).rowcount == 0:
        connection.execute(insert(STAGE), stage | {"key": key})


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


def _apply(
    connection: Connection, row: Mapping[str, Any], changes: Changes, offset: int, events: int, damaged: int
) -> dict[str, Any]:
    columns = dict(changes.columns)
    if row["started"] is not None:  # the first start of a requeued job counts
        columns.pop("started", None)
    if "last_step" in columns:
        columns["last_step"] = max(columns["last_step"], row["last_step"] or 0)
    columns |= {
        "journal_offset": offset,
        "journal_events": row["journal_events"] + events,
        "journal_damaged": row["journal_damaged"] + damaged,
    }
    connection.execute(_UPDATE, columns | {"attempt": row["id"]})
    store_points(connection, row["id"], changes)
    return dict(row) | columns
