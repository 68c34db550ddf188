"""Turn errors of the database drivers into a StoreError with a remedy. Other errors are left unchanged.

Every engine of `session` passes its errors through this module, so that no query ends in a driver's traceback because a
disk is full, a file is locked or a server is down.
"""

import sqlite3

from sqlalchemy import URL, Engine, event
from sqlalchemy.engine.interfaces import ExceptionContext

from gpas_cli.errors import StoreError, first_line

_TRUTH = "the run directories hold everything that the database does"

_LOCKED = "another process has held the lock for {busy:g} s; nothing is lost: run the command again"
# Messages of SQLite, and its name of an error where that says more -> what they mean and what to do.
_SQLITE = {
    "sqlite_ioerr_lock": "its file system has no locks: set GPAS_DB to a file on another; nothing is lost",
    "database is locked": f"{_LOCKED}; if no other process is at work, its file system has no locks: set GPAS_DB",
    "readonly database": (
        "you cannot write to it, or to its folder, where SQLite keeps a log; "
        "ask its owner for write access, or name your own database with GPAS_DB"
    ),
    "unable to open database file": (
        "it cannot be opened; the folder must exist and be writable, because SQLite keeps files beside the database; "
        "ask its owner for write access, or name your own database with GPAS_DB"
    ),
    "file is not a database": (
        f"the file is not an SQLite database; move it away, and `gpas db rebuild` makes a new one ({_TRUTH})"
    ),
    "malformed": f"the file is damaged; `gpas db rebuild` rebuilds it ({_TRUTH})",
    "database or disk is full": "the disk is full; free some space and run the command again, nothing is lost",
    "disk i/o error": f"the disk failed to read or write it; check the disk, then `gpas db rebuild` ({_TRUTH})",
}


def name_of(url: URL) -> str:
    """Return the name of the database in messages: the path of an SQLite file, else the URL without its password.

    Only hosts and ports of the URL's query are kept, because it may hold a password too (`?password=`).
    """
    if url.get_backend_name() == "sqlite":
        return url.database or ":memory:"
    shown = {name: value for name, value in url.query.items() if name in ("host", "port")}
    return url.set(query=shown).render_as_string(hide_password=True)


def explain(url: URL, error: BaseException, busy: float) -> StoreError | None:
    """Return the StoreError for a driver's error, None if the error is a bug rather than a problem of the machine."""
    text = str(error)
    if isinstance(error, sqlite3.Error):
        known = f"{text} {getattr(error, 'sqlite_errorname', '')}".lower()
        meanings = [meaning for symptom, meaning in _SQLITE.items() if symptom in known]
        return StoreError(f"{name_of(url)}: {meanings[0].format(busy=busy)}") if meanings else None
    # psycopg's names; the class is not imported, since the driver is an optional dependency.
    names = {kind.__name__ for kind in type(error).__mro__ if kind.__module__.startswith("psycopg")}
    if "LockNotAvailable" in names:
        return StoreError(f"{name_of(url)}: {_LOCKED.format(busy=busy)}")
    first = first_line(error)
    if "OperationalError" in names:
        return StoreError(f"{name_of(url)}: {first}; nothing is lost: run the command again once the server answers")
    if "ProgrammingError" in names and "connection option" in text:
        return StoreError(f"{name_of(url)}: {first}; correct the part of the URL after the '?' (GPAS_DB)")
    return None


def explain_errors_of(engine: Engine, busy: float) -> None:
    """Make every statement and connection of `engine` raise StoreError where `explain` has an explanation."""

    @event.listens_for(engine, "handle_error")
    def _explain(context: ExceptionContext) -> None:
        explanation = explain(engine.url, context.original_exception, busy)
        if explanation is not None:
            raise explanation from context.original_exception
