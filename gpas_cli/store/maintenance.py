"""Looking after the database: upgrade, check, rebuild, backup. The run directories are the truth it is held against."""

from __future__ import annotations

import glob
import itertools
import math
import os
import shutil
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, delete, inspect, select, text

from gpas_cli.errors import StoreError
from gpas_cli.files import fsync
from gpas_cli.store import driver_errors, owner, rundir, session
from gpas_cli.store.consistency import Defect, inconsistencies
from gpas_cli.store.ingest import ATTEMPT, STAGE, Ingested, Unreadable, ingest_attempt, sync
from gpas_cli.store.points import CURVE, LAYER_CURVE, METRIC
from gpas_cli.store.schema import HEAD, Base

LEFT_SECONDS = 600.0  # since a rebuild that still lives has last written its file


def upgrade(url: str) -> Path | None:
    """Bring the schema to this version's. Returns the backup made before, None when none was needed.

    An SQLite database is copied first. On a server none is made (`gpas` cannot), but there the migration is one
    transaction: it happens whole or not at all. Raises StoreError for a newer schema and whatever `connect` refuses.
    """
    engine = session.open_engine(url)
    try:
        with engine.connect() as connection:
            version = session.version_of(connection)
        if version is not None and version > HEAD:
            session.refuse_other_version(engine, version)
        if version == HEAD:
            return None
        aside = backup(url) if version is not None and engine.dialect.name == "sqlite" else None
        session.migrate(engine)
        return aside
    finally:
        engine.dispose()


def backup(url: str) -> Path:
    """Copy the database, also while it is in use, to a file beside it. Raises StoreError; a server has its own tool."""
    path = session.file_of(session.parse(url))
    if path is None:
        where = driver_errors.name_of(session.parse(url))
        raise StoreError(
            f"{where}: is not a file that gpas can copy; back it up with pg_dump (pg_restore reads it back)"
        )
    if not path.exists():
        raise StoreError(f"{path}: there is no database to back up")
    target = _beside(path, "backup")
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with _explained(url):
            _copy(path, partial)
        partial.replace(target)
    except OSError as error:
        raise StoreError(f"{target}: the backup cannot be written: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)
    return target


def rebuild(url: str, runs: Path) -> Ingested:
    """Make the database anew from the run directories alone; the old one is in place until the new one is whole.

    What an SQLite file held is kept beside it, since it may know attempts whose directories are gone. On a server
    everything happens in one transaction. Raises StoreError, and then nothing has changed: also when the database is
    another project's.
    """
    path = session.file_of(session.parse(url))
    if path is None:
        return _rebuild_in_place(url, runs)
    _refuse_other_project(url, runs)
    _sweep(path)
    aside = path.with_name(f"{_aside_prefix(path)}{os.getpid()}")
    try:
        engine = session.connect(str(aside))
        try:
            ingested = sync(engine, runs)
        finally:
            engine.dispose()
        with _explained(url):
            _single_file(aside)
            _put_in_place(aside, path)
    finally:
        _remove(aside)
    return ingested


def check(url: str, runs: Path) -> list[Defect]:
    """What is wrong with the database: its version, its integrity, and whether its rows agree with `runs`.

    Reads all journals. An empty list means that all is well. Raises StoreError only for a URL that cannot be used.
    """
    session.parse(url)
    try:
        engine = session.connect(url, create=False)
    except StoreError as error:
        return [Defect(str(error), "until then nothing else can be checked")]
    try:
        missing = sorted(Base.metadata.tables.keys() - set(inspect(engine).get_table_names()))
        if missing:
            return [
                Defect(f"the database lacks the table {name}", "`gpas db rebuild` makes it anew") for name in missing
            ]
        owner.refuse_other(engine, runs)
        return [*_integrity(engine), *inconsistencies(engine, runs)]
    except StoreError as error:
        return [Defect(str(error), "the check ended there")]
    finally:
        engine.dispose()


def dump(engine: Engine) -> dict[str, list[tuple[Any, ...]]]:
    """All rows by table, sorted, with (stage key, attempt number) in place of the database's own attempt ids.

    Two databases made from the same run directories, in whatever order, have equal dumps. NaN, which equals nothing,
    is the word "nan".
    """
    with engine.connect() as connection:
        attempts = [dict(row) for row in connection.execute(select(ATTEMPT)).mappings()]
        ids = {row.pop("id"): (row["stage_key"], row["number"]) for row in attempts}
        dumped = {
            "stage": [tuple(row) for row in connection.execute(select(STAGE))],
            "attempt": [tuple(row.values()) for row in attempts],
        }
        for table in (METRIC, CURVE, LAYER_CURVE):
            rows = connection.execute(select(*table.primary_key, table.c.value))
            dumped[table.name] = [(*ids[i], *at, "nan" if math.isnan(value) else value) for i, *at, value in rows]
    return {name: sorted(rows, key=lambda row: repr(row)) for name, rows in dumped.items()}


def _integrity(engine: Engine) -> Iterator[Defect]:
    if engine.dialect.name != "sqlite":
        return
    remedy = "`gpas db rebuild` makes it anew"
    with engine.connect() as connection:
        for (message,) in connection.execute(text("PRAGMA integrity_check")):
            if message != "ok":
                yield Defect(f"the database is damaged: {message}", remedy)
        orphans = len(connection.execute(text("PRAGMA foreign_key_check")).all())
        if orphans:
            yield Defect(f"{orphans} rows belong to no attempt or stage", remedy)


def _rebuild_in_place(url: str, runs: Path) -> Ingested:
    engine = session.for_writing(session.connect(url))
    done = Ingested()
    skipped: list[str] = []
    try:
        with engine.begin() as connection:
            session.lock(connection)
            owner.claim_in(connection, runs)
            for table in (LAYER_CURVE, CURVE, METRIC, ATTEMPT, STAGE):
                connection.execute(delete(table))
            for attempt in rundir.all_attempts(runs, skipped):
                try:
                    with connection.begin_nested():
                        done += ingest_attempt(connection, attempt)
                except Unreadable as problem:
                    done += Ingested(problems=(str(problem),))
    finally:
        engine.dispose()
    return done + Ingested(problems=tuple(skipped))


def _put_in_place(new: Path, path: Path) -> Path | None:
    """Replace the content of the database `path` by that of `new`; returns where the old one is kept, if there was one.

    The content is copied in one transaction, so that readers keep the old one until it is there, and open connections
    stay good. Only what is no database is replaced as a file.
    """
    if not path.exists():
        new.replace(path)
        return None
    kept = _beside(path, "replaced")
    try:
        _copy(path, kept)
        _overwrite(path, new)
    except sqlite3.DatabaseError as error:
        _remove(kept)
        if isinstance(error, sqlite3.OperationalError):
            raise  # locked, read-only or a full disk: the old one is as it was
        _move_log(path, kept)
        _link_or_copy(path, kept)
        new.chmod(stat.S_IMODE(path.stat().st_mode))
        new.replace(path)
    return kept


def _copy(path: Path, target: Path) -> None:
    """Copy a database, also while it is in use, into one file with its permissions, whatever kind of log it has."""
    mode = stat.S_IMODE(path.stat().st_mode)
    os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode))
    with closing(_raw(path)) as source, closing(sqlite3.connect(target)) as copy:
        source.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")


def _overwrite(path: Path, new: Path) -> None:
    deadline = time.monotonic() + session.BUSY_SECONDS

    def give_up(status: int, _remaining: int, _total: int) -> None:
        if status in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) and time.monotonic() > deadline:
            raise sqlite3.OperationalError("database is locked")

    # `backup` itself tries again for ever; the connection's own patience would add to ours.
    with closing(_raw(new)) as source, closing(_raw(path, patience=0.0)) as target:
        source.backup(target, progress=give_up, sleep=0.05)


def _move_log(path: Path, kept: Path) -> None:
    # What is damaged beyond opening has a log that only its own file could use.
    for suffix in ("-wal", "-shm"):
        log = path.with_name(path.name + suffix)
        if log.exists():
            log.replace(kept.with_name(kept.name + suffix))


def _link_or_copy(path: Path, kept: Path) -> None:
    try:
        kept.hardlink_to(path)
    except OSError:  # a file system without hard links
        shutil.copy2(path, kept)


def _single_file(path: Path) -> None:
    with closing(_raw(path)) as database:
        database.execute("PRAGMA journal_mode = DELETE")
    fsync(path)


def _refuse_other_project(url: str, runs: Path) -> None:
    try:
        engine = session.connect(url, create=False)
    except StoreError:  # absent, damaged or of another version, which is what a rebuild is for
        return
    try:
        owner.refuse_other(engine, runs)
    finally:
        engine.dispose()


def _aside_prefix(path: Path) -> str:
    return f".{path.name}.rebuild-"


def _sweep(path: Path) -> None:
    """Remove what rebuilds left behind that were killed. One on another host may live: its file is written often."""
    for left in path.parent.glob(f"{glob.escape(_aside_prefix(path))}*"):
        pid = left.name.removeprefix(_aside_prefix(path)).partition("-")[0]
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > LEFT_SECONDS and not (pid.isdigit() and _lives(int(pid))):
                left.unlink()


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _beside(path: Path, why: str) -> Path:
    """A name beside `path` that says what the copy is and when it was made, and that is not taken."""
    stamp = f"{path.name}.{why}-{time.strftime('%Y%m%d-%H%M%S')}"
    names = (f"{stamp}-{n}" if n else stamp for n in itertools.count())
    return next(candidate for name in names if not (candidate := path.with_name(name)).exists())


def _raw(path: Path, patience: float | None = None) -> sqlite3.Connection:
    timeout = session.BUSY_SECONDS if patience is None else patience
    return sqlite3.connect(path, timeout=timeout, isolation_level=None)


@contextmanager
def _explained(url: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        explanation = driver_errors.explain(session.parse(url), error, session.BUSY_SECONDS)
        if explanation is None:
            raise
        raise explanation from error
