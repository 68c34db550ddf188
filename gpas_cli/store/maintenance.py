"""Maintenance of the database: upgrade, check, rebuild, backup. The run directories are the source of truth.

A check compares the rows with the run directories, attempt by attempt.
"""

import itertools
import math
import os
import sqlite3
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, delete, inspect, select, text

from gpas_cli.errors import StoreError
from gpas_cli.files import open_descriptor
from gpas_cli.store import journal, owner, rundir, session
from gpas_cli.store.attempt_rows import STRETCH_BYTES, tail_of
from gpas_cli.store.ingest import Ingested, store
from gpas_cli.store.peek import BASELINE, HEAD, LOG_SUFFIXES
from gpas_cli.store.rundir import AttemptDir
from gpas_cli.store.schema import AttemptRow, Base, CurveRow, LayerCurveRow, MetricRow, ScoreRow, StageRow
from gpas_cli.structure import Frozen


class _Defect(Frozen):
    """A fault of the database, and its remedy."""

    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}"


class _Survey(Frozen):
    """A journal read to its end: the number of events, the offset after them, damaged lines and missing events."""

    events: int
    offset: int
    damaged: int
    lost: int


def _inconsistencies(engine: Engine, runs: Path, since: float = math.inf) -> Iterator[_Defect]:
    """Yield the differences between the database and `runs`, except events and attempts after the unix time `since`.

    Reads all journals, a stretch at a time.
    """
    with engine.connect() as connection:
        rows = {(row["stage_key"], row["number"]): row for row in connection.execute(select(AttemptRow)).mappings()}
    skipped: list[str] = []
    for attempt in rundir.all_attempts(runs, skipped):
        row = rows.pop((attempt.key, attempt.number), None)
        if row is None:
            if not _written_after(attempt.attempt_path, since):
                yield _Defect(
                    f"{attempt.relative} is not in the database", "`gpas db sync` ingests it or prints why not"
                )
            continue
        try:
            yield from _journal(attempt, dict(row), since)
        except OSError as error:
            yield _Defect(f"{attempt.journal_path}: {error.strerror}", "make it readable")
    yield from (_Defect(problem, "make it readable, or move it away") for problem in skipped)
    for row in rows.values():
        if rundir.is_gone(runs / row["directory"]):
            remedy = "restore the directory, or drop its rows with `gpas db rebuild`"
            yield _Defect(f"{row['directory']} is in the database but not in {runs}", remedy)


def _journal(attempt: AttemptDir, row: Mapping[str, Any], since: float) -> Iterator[_Defect]:
    found = _survey(attempt.journal_path)
    rebuild = "`gpas db rebuild` reads it again"
    if found.offset > row["journal_offset"]:
        left = found.offset - row["journal_offset"]
        if not _written_after(attempt.journal_path, since):
            yield _Defect(f"{attempt.relative}: {left} bytes are not yet ingested", "run `gpas db sync`")
    elif (found.offset, found.events) != (row["journal_offset"], row["journal_events"]):
        numbers = f"the journal has {found.events} events, the database {row['journal_events']}"
        yield _Defect(f"{attempt.relative}: {numbers}", rebuild)
    elif row["journal_tail"] not in (None, tail_of(attempt, found.offset)):
        yield _Defect(f"{attempt.relative}: the journal has changed since it was read", rebuild)
    if found.lost:
        what = f"{found.lost} events are missing ({found.damaged} damaged lines)"
        remedy = "they cannot be recovered; check the attempt's log and the disk"
        yield _Defect(f"{attempt.journal_path}: {what}", remedy)


def _written_after(path: Path, moment: float) -> bool:
    with suppress(OSError):
        return path.stat().st_mtime >= moment
    return False


def _survey(path: Path) -> _Survey:
    events = offset = damaged = 0
    # Spans of consecutive event numbers: even a long journal has few.
    spans: list[list[int]] = []
    while (read := journal.read_bytes(path, offset, STRETCH_BYTES))[1] > offset:
        data, offset = read
        for line in journal.decoded(data):
            if line is None:
                damaged += 1
                continue
            events += 1
            if spans and line.n == spans[-1][1]:
                spans[-1][1] += 1
            else:
                spans.append([line.n, line.n + 1])
    return _Survey(events, offset, damaged, _lost(spans))


def _lost(spans: list[list[int]]) -> int:
    """Return how many numbers from 0 on are in no span.

    Spans may overlap: an event of a torn line is written again, and a requeued job may write it once more.
    """
    lost = end = 0
    for start, stop in sorted(spans):
        lost += max(0, start - end)
        end = max(end, stop)
    return lost


def upgrade(url: str) -> Path | None:
    """Upgrade the schema to this version. Returns the backup, None if none was needed.

    An SQLite database is copied first. On a server, no backup is made, but the migration is one transaction. Raises
    StoreError for a newer schema, one from before BASELINE and whatever `connect` refuses.
    """
    engine = session.open_engine(url)
    try:
        with engine.connect() as connection:
            version = session.version_of(connection)
        if version is not None and not BASELINE <= version <= HEAD:
            session.refuse_other_version(engine, version)
        if version == HEAD:
            return None
        aside = backup(url) if version is not None and engine.dialect.name == "sqlite" else None
        session.migrate(engine)
        return aside
    finally:
        engine.dispose()


def backup(url: str) -> Path:
    """Copy the database to a file beside it, even while it is in use. Raises StoreError, also for one on a server."""
    path = session.file_of(session.parse(url))
    if path is None:
        remedy = "back this database up with pg_dump and restore with pg_restore"
        raise StoreError(f"{session.name_of(url)}: gpas can only copy SQLite files; {remedy}")
    if not path.exists():
        raise StoreError(f"{path}: there is no database to back up")
    target = _beside(path, "backup")
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with session.explained(session.parse(url), session.BUSY_SECONDS):
            _copy(path, partial)
        partial.replace(target)
    except OSError as error:
        raise StoreError(f"{target}: the backup cannot be written: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)
    return target


def rebuild(url: str, runs: Path) -> Ingested:
    """Rebuild the database from the run directories in one transaction: until it ends, readers see the old rows.

    The old content of an SQLite file is kept beside it, because it may have attempts whose directories are gone. A file
    that is damaged or of another version is moved there. Raises StoreError, also if the database belongs to another
    project; then nothing has changed.
    """
    path = session.file_of(session.parse(url))
    is_old = path is not None and path.exists()
    if path is not None and is_old and not _is_sound(url):
        _move_aside(path)
        is_old = False
    with session.opened(url, busy_seconds=session.BUSY_SECONDS) as engine, session.writing(engine) as connection:
        owner.claim_in(connection, runs)
        with _kept_beside(url, path if is_old else None):
            return _fill(connection, runs)


def _is_sound(url: str) -> bool:
    """Return whether a file is a whole database of this version. Raises StoreError if it cannot be used now."""
    try:
        with session.opened(url, create=False, busy_seconds=session.BUSY_SECONDS) as engine:
            return not _missing_tables(engine) and not list(_integrity(engine))
    except StoreError as error:
        if isinstance(error.__cause__, sqlite3.OperationalError):
            raise  # locked, read-only or a full disk
        return False


def _move_aside(path: Path) -> None:
    """Move a file with its log beside its place, where an empty file with its permissions is left."""
    kept = _beside(path, "replaced")
    mode = stat.S_IMODE(path.stat().st_mode)
    for suffix in ("", *LOG_SUFFIXES):
        with suppress(FileNotFoundError):
            path.with_name(path.name + suffix).replace(kept.with_name(kept.name + suffix))
    path.touch()
    path.chmod(mode)


@contextmanager
def _kept_beside(url: str, path: Path | None) -> Iterator[None]:
    """Copy the file beside its place; the copy is removed if its replacement fails. None: there is nothing to keep."""
    if path is None:
        yield
        return
    kept = _beside(path, "replaced")
    try:
        with session.explained(session.parse(url), session.BUSY_SECONDS):
            _copy(path, kept)
        yield
    except BaseException:
        kept.unlink(missing_ok=True)
        raise


def _fill(connection: Connection, runs: Path) -> Ingested:
    """Replace all rows by the rows of the run directories, in the caller's transaction."""
    skipped: list[str] = []
    for table in (LayerCurveRow, CurveRow, ScoreRow, MetricRow, AttemptRow, StageRow):
        connection.execute(delete(table))
    done = store(lambda: nullcontext(connection), rundir.all_attempts(runs, skipped))
    return done + Ingested(problems=tuple(skipped))


def check(url: str, runs: Path, since: float = math.inf) -> list[_Defect]:
    """Return the defects of the database: its version, its integrity, and whether its rows agree with `runs`.

    Reads all journals. New events in those written after the unix time `since` are no defect: a job has added them.
    Raises StoreError only for an invalid URL.
    """
    session.parse(url)
    try:
        engine = session.connect(url, create=False)
    except StoreError as error:
        return [_Defect(str(error), "nothing else can be checked until this is fixed")]
    try:
        if missing := _missing_tables(engine):
            remedy = "`gpas db rebuild` rebuilds the database"
            return [_Defect(f"the table {name} is missing", remedy) for name in missing]
        owner.refuse_other(engine, runs)
        return [*_integrity(engine), *_inconsistencies(engine, runs, since)]
    except StoreError as error:
        return [_Defect(str(error), "the check stopped here")]
    finally:
        engine.dispose()


def _missing_tables(engine: Engine) -> list[str]:
    return sorted(Base.metadata.tables.keys() - set(inspect(engine).get_table_names()))


def _integrity(engine: Engine) -> Iterator[_Defect]:
    if engine.dialect.name != "sqlite":
        return
    remedy = "`gpas db rebuild` rebuilds it"
    with engine.connect() as connection:
        for (message,) in connection.execute(text("PRAGMA integrity_check")):
            if message != "ok":
                yield _Defect(f"the database is damaged: {message}", remedy)
        orphans = len(connection.execute(text("PRAGMA foreign_key_check")).all())
        if orphans:
            yield _Defect(f"{orphans} rows belong to no attempt or stage", remedy)


def _copy(path: Path, target: Path) -> None:
    """Copy a database into one file with its permissions, even while it is in use and whatever its journal mode."""
    mode = stat.S_IMODE(path.stat().st_mode)
    os.close(open_descriptor(target, os.O_RDWR | os.O_CREAT, mode))
    with (
        closing(sqlite3.connect(path, timeout=session.BUSY_SECONDS)) as source,
        closing(sqlite3.connect(target)) as copy,
    ):
        source.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")


def _beside(path: Path, why: str) -> Path:
    """Return an unused path beside `path` that contains the reason for the copy and the time."""
    stamp = f"{path.name}.{why}-{time.strftime('%Y%m%d-%H%M%S')}"
    names = (f"{stamp}-{n}" if n else stamp for n in itertools.count())
    return next(candidate for name in names if not (candidate := path.with_name(name)).exists())
