"""Open the database; refuse one that gpas did not make or that has another version.

SQLite uses a write-ahead log, so that readers and the writer do not wait for each other, except on a network file
system, where hosts do not share the memory that the log needs. Transactions begin explicitly: with `BEGIN` for readers
and `BEGIN IMMEDIATE` in `writing`, so that a writer waits at the start and not in the middle.

All statements of a reader's transaction see the same content, on Postgres too, where that is REPEATABLE READ. A writer
on Postgres waits for an advisory lock, and sees what was committed before it got the lock.

Several users may share a file. It is created with the permissions that the umask allows, and its log files get its mode
and group. A user without write permission for the file or its folder reads it without creating files beside it.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from gpas_cli import file_systems
from gpas_cli.errors import StoreError
from gpas_cli.project import packaged
from gpas_cli.store import driver_errors
from gpas_cli.store.peek import BASELINE, HEAD, LOG_SUFFIXES, VERSION_TABLE, may_write, open_to_read
from gpas_cli.store.schema import Base

if TYPE_CHECKING:
    from alembic.config import Config

BUSY_SECONDS = 30.0  # a statement waits this long for another process's lock
_DRIVERS = ("sqlite", "sqlite+pysqlite", "postgresql+psycopg")
_FORMS = "GPAS_DB takes a path, sqlite:///path or postgresql://user:password@host:port/name"
_ENCODE = "(in a password write @ as %40, / as %2F, : as %3A, # as %23, % as %25)"
_SYNCHRONOUS = "NORMAL"  # with the log, a power failure may cost the last commits, which the journals still have
_LOCK = 0x67706173  # "gpas": the key of our advisory lock in Postgres
_WAIT = text("SELECT set_config('lock_timeout', :timeout, true), pg_advisory_xact_lock(:key)")


def connect(url: str, *, create: bool = True, busy_seconds: float = BUSY_SECONDS) -> Engine:
    """Return an engine for a database with exactly this version's schema.

    With `create`, a database without tables of gpas gets them. Raises StoreError with a remedy if the URL or its driver
    is unusable, or the database is missing (`create=False`), locked for `busy_seconds`, unreadable, not a database, not
    made by gpas, or of another version. The engine raises StoreError for such errors later, too.
    """
    engine = open_engine(url, create=create, busy_seconds=busy_seconds)
    try:
        with engine.connect() as connection:
            version = version_of(connection)
        if version is None and not create:
            raise StoreError(f"{driver_errors.name_of(engine.url)}: there are no results yet; `gpas run` produces them")
        if version is None:
            _refuse_link(file_of(engine.url))
            migrate(engine)
        else:
            refuse_other_version(engine, version)
        _use_log(engine)
    except BaseException:
        engine.dispose()
        raise
    return engine


@contextlib.contextmanager
def opened(url: str, *, create: bool = True, busy_seconds: float = BUSY_SECONDS) -> Iterator[Engine]:
    """Yield the engine of `connect`, and close its connections afterwards. Raises StoreError like `connect`."""
    engine = connect(url, create=create, busy_seconds=busy_seconds)
    try:
        yield engine
    finally:
        engine.dispose()


def open_engine(url: str, *, create: bool = True, busy_seconds: float = BUSY_SECONDS) -> Engine:
    """Return an engine for a database of any version. Raises StoreError if there is nothing to open."""
    parsed = parse(url)
    path = file_of(parsed)
    if path is not None and not create and not path.exists():
        raise StoreError(f"{path}: there is no database yet; `gpas run` creates it, `gpas db rebuild` restores it")
    if path is not None and not path.parent.is_dir():
        raise StoreError(f"{path}: the folder {path.parent} does not exist; create it, or name another with GPAS_DB")
    if path is not None and not path.exists():
        _refuse_link(path)
    if path is not None and may_write(path):
        # SQLite would create the file without write permission for the group, whatever the umask. It reports errors.
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666))
    engine = _create_engine(parsed, busy_seconds)
    driver_errors.explain_errors_of(engine, busy_seconds)
    if parsed.get_backend_name() == "sqlite":
        _prepare_sqlite(engine, busy_seconds)
    return engine


def _refuse_link(path: Path | None) -> None:
    """Raise StoreError for a link: whoever placed it could make this user create a file, or tables, elsewhere."""
    if path is not None and path.is_symlink():
        what = f"a link to {path.readlink()}, which is no database of gpas; gpas creates nothing through a link"
        raise StoreError(f"{path}: {what}: delete the link, or name the file itself with GPAS_DB")


def parse(url: str) -> URL:
    """Return the URL with its driver; an absolute path is an SQLite file.

    Raises StoreError if it is neither SQLite nor Postgres. No message repeats the text, because it may hold a password
    that cannot be distinguished from the rest.
    """
    if url.startswith("/"):
        return URL.create("sqlite", database=url)
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise StoreError(f"not a database URL; {_FORMS}") from error
    except ValueError as error:  # from int() on the port
        raise StoreError(f"not a database URL: its port is not a number; {_FORMS} {_ENCODE}") from error
    if parsed.drivername in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in _DRIVERS:
        raise StoreError(f"'{parsed.drivername}' databases are not supported; use sqlite:///path or postgresql://…")
    if parsed.get_backend_name() == "sqlite" and (parsed.host or parsed.username or parsed.port or parsed.query):
        raise StoreError(f"not a database URL: an SQLite file has no host, user or options; {_FORMS}")
    if parsed.get_backend_name() != "sqlite" and "@" in f"{parsed.host}{parsed.database}":
        raise StoreError(f"not a database URL: it has more than one '@'; {_FORMS} {_ENCODE}")
    return parsed


def name_of(url: str) -> str:
    """Return the name of the database in messages, without a password. Raises StoreError like `parse`."""
    return driver_errors.name_of(parse(url))


def file_of(url: URL) -> Path | None:
    """Return the file of an SQLite database; None for one in memory or on a server."""
    if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:"):
        return None
    return Path(str(url.database).removeprefix("file:")).absolute()


def version_of(connection: Connection) -> str | None:
    """Return the schema's version, None if no table of gpas exists. Raises StoreError for tables of other programs."""
    tables = set(inspect(connection).get_table_names())
    if VERSION_TABLE in tables:
        rows = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalars().all()
        if rows:
            return str(rows[0])
    taken = sorted(tables & Base.metadata.tables.keys())
    if taken:
        where = driver_errors.name_of(connection.engine.url)
        what = f"has a table '{taken[0]}' that gpas did not make"
        raise StoreError(f"{where}: {what}; name another database with GPAS_DB")
    return None


def refuse_other_version(engine: Engine, version: str) -> None:
    """Raise StoreError unless `version` is this program's."""
    where = driver_errors.name_of(engine.url)
    if version > HEAD:
        what = f"its schema is version {version}, newer than this program's ({HEAD})"
        raise StoreError(f"{where}: {what}; update gpas, or name another database with GPAS_DB")
    if version < BASELINE:
        what = f"its schema is version {version}, from before {BASELINE}, the oldest that can be upgraded"
        on_server = "" if engine.dialect.name == "sqlite" else "; on a server first name an empty database with GPAS_DB"
        raise StoreError(f"{where}: {what}; `gpas db rebuild` makes it anew from the run directories{on_server}")
    if version < HEAD:
        how = "it makes a backup first" if engine.dialect.name == "sqlite" else "make a backup with pg_dump first"
        what = f"its schema is version {version}, this program needs {HEAD}"
        raise StoreError(f"{where}: {what}; run `gpas db upgrade` ({how})")


def migrate(engine: Engine) -> None:
    """Upgrade the schema to HEAD in one transaction. Of concurrent callers, the first does it."""
    with writing(engine) as connection:
        if version_of(connection) != HEAD:
            from alembic import command  # slow to import, and needed only here

            command.upgrade(alembic_config(connection), "head")


def alembic_config(connection: Connection) -> Config:
    """Return Alembic's configuration for our scripts on an open connection."""
    from alembic.config import Config

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(packaged("migrations")).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


@contextlib.contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """Yield a connection in a transaction, in which no other writer is, and commit it at the end.

    Raises StoreError if another writer takes longer than the engine's `busy_seconds`.
    """
    on_server = engine.dialect.name == "postgresql"
    options = {"isolation_level": "READ COMMITTED"} if on_server else {"gpas_begin": "BEGIN IMMEDIATE"}
    with engine.execution_options(**options).begin() as connection:
        if on_server:
            milliseconds = round(1000 * connection.get_execution_options()["gpas_busy_seconds"])
            connection.execute(_WAIT, {"timeout": f"{milliseconds}ms", "key": _LOCK})
        yield connection


def _create_engine(url: URL, busy_seconds: float) -> Engine:
    try:
        if url.get_backend_name() == "sqlite":
            path = file_of(url)
            if path is not None and path.exists() and not may_write(path):
                return create_engine(url, creator=lambda: open_to_read(path, busy_seconds))
            return create_engine(url, connect_args={"timeout": busy_seconds})
        return create_engine(
            url,
            connect_args={"connect_timeout": max(2, round(busy_seconds))},
            isolation_level="REPEATABLE READ",
            execution_options={"gpas_busy_seconds": busy_seconds},
        )
    except (ModuleNotFoundError, NoSuchModuleError) as error:
        what = f"{driver_errors.name_of(url)}: the driver of {url.drivername} is not installed"
        raise StoreError(f"{what}; pip install 'gpas-cli[postgres]', or use sqlite:///path") from error


def _share_log(path: Path) -> None:
    """Set the group of log files that this user has created to the database's; SQLite has set their mode."""
    with contextlib.suppress(OSError):  # deleted meanwhile, or this user is not in the group
        group = path.stat().st_gid
        for beside in (path.with_name(path.name + suffix) for suffix in LOG_SUFFIXES):
            found = beside.stat()
            if found.st_uid == os.geteuid() and found.st_gid != group:
                os.chown(beside, -1, group)


def _prepare_sqlite(engine: Engine, busy_seconds: float) -> None:
    @event.listens_for(engine, "connect")
    def _configure(connection: sqlite3.Connection, _record: Any) -> None:
        connection.isolation_level = None  # the driver begins no transactions of its own
        with explained(engine.url, busy_seconds):
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute(f"PRAGMA synchronous = {_SYNCHRONOUS}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql(connection.get_execution_options().get("gpas_begin", "BEGIN"))


def _use_log(engine: Engine) -> None:
    path = file_of(engine.url)
    if path is None or not may_write(path):
        return
    with contextlib.closing(engine.raw_connection()) as connection:
        cursor = connection.cursor()
        if cursor.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
            _share_log(path)
            return
        if file_systems.network_type(path):
            return
        # Without the log everything works with less concurrency, so a file that is read-only or in use is left alone.
        with contextlib.suppress(sqlite3.OperationalError):
            cursor.execute("PRAGMA journal_mode = WAL")
            _share_log(path)


@contextlib.contextmanager
def explained(url: URL, busy_seconds: float) -> Iterator[None]:
    """Raise StoreError for an error of the driver within the block that has an explanation."""
    try:
        yield
    except sqlite3.Error as error:
        explanation = driver_errors.explain(url, error, busy_seconds)
        if explanation is None:
            raise
        raise explanation from error
