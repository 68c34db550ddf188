"""The project that a database belongs to.

runs/.project.json   {id, created}: written when a database first ingests these run directories. It is moved and
                     copied with them, and `gpas db rebuild` gives the new database the same id

Stage keys are the same in every project. Two projects in one database would overwrite each other's attempts and show
each other's results, so a database holds one project and refuses others. On a server, each project needs its own
database or schema.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from sqlalchemy import Connection, Engine, delete, insert, select

from gpas_cli.errors import StoreError
from gpas_cli.store import driver_errors, session
from gpas_cli.store.peek import PROJECT_FILE
from gpas_cli.store.records import ProjectRecord
from gpas_cli.store.rundir import read_record, write_record
from gpas_cli.store.schema import ProjectRow
from gpas_cli.structure import Frozen


class _Owner(Frozen):
    """A project's run directories: their id ("" if they have none), and the host and folder that they are in."""

    id: str
    host: str
    runs: str

    def is_same(self, other: _Owner, *, across_hosts: bool) -> bool:
        """Return whether both are the same project: by id, or by folder if one of them has no id."""
        if self.id and other.id:
            return self.id == other.id
        return self.runs == other.runs and (self.host == other.host or not across_hosts)


def claim(engine: Engine, runs: Path) -> None:
    """Record the project in `runs` as the owner of the database.

    Run directories without an id get the database's id if they are in the folder that it has recorded, else a new one.
    Does nothing if there are no run directories. Raises StoreError if the database belongs to another project.
    """
    if not runs.is_dir():
        return
    own = of(runs)
    before = recorded(engine)
    if before is not None and own.id and (own.id, own.runs) == (before.id, before.runs):
        return
    with session.writing(engine) as connection:
        claim_in(connection, runs)


def claim_in(connection: Connection, runs: Path) -> None:
    """Like `claim`, in the caller's transaction, during which no other writer may write."""
    if not runs.is_dir():
        return
    own = of(runs)
    before = _recorded(connection)
    _refuse(connection.engine, before, own)
    if not own.id:
        own = replace(own, id=_write_id(runs, before.id if before else ""))
    connection.execute(delete(ProjectRow))
    connection.execute(insert(ProjectRow), vars(own))


def refuse_other(engine: Engine, runs: Path) -> None:
    """Raise StoreError if the database belongs to another project than the one in `runs`."""
    _refuse(engine, recorded(engine), of(runs))


def of(runs: Path) -> _Owner:
    """Return the project in `runs`. Raises StoreError when its id cannot be read."""
    path = runs / PROJECT_FILE
    try:
        found = read_record(ProjectRecord, path).id
    except FileNotFoundError:
        found = ""
    except OSError as error:
        raise StoreError(f"{path}: the project's id cannot be read: {error}") from error
    return _Owner(found, socket.gethostname(), str(runs.resolve()))


def recorded(engine: Engine) -> _Owner | None:
    """Return the project of the database, None if nothing has been ingested yet."""
    with engine.connect() as connection:
        return _recorded(connection)


def _recorded(connection: Connection) -> _Owner | None:
    row = connection.execute(select(ProjectRow.id, ProjectRow.host, ProjectRow.runs)).first()
    return _Owner(*row) if row else None


def _refuse(engine: Engine, before: _Owner | None, own: _Owner) -> None:
    on_server = engine.dialect.name != "sqlite"
    if before is None or before.is_same(own, across_hosts=on_server):
        return
    remedy = (
        "name another database with GPAS_DB: each project needs its own"
        if on_server
        else "name another database with GPAS_DB or, if that project no longer exists, move the file away: "
        "`gpas db sync` makes a new one"
    )
    other = f"of another project, {before.host}:{before.runs}, not those of {own.runs}"
    if before.runs == own.runs:
        other = f"of other run directories, which were at {own.runs} before"
    raise StoreError(f"{driver_errors.name_of(engine.url)}: this database holds the results {other}; {remedy}")


def _write_id(runs: Path, known: str) -> str:
    """Give the run directories an id and return it; of concurrent callers the first wins. "" if they are read-only."""
    path = runs / PROJECT_FILE
    aside = runs / f".{PROJECT_FILE}.{os.urandom(8).hex()}"
    try:
        write_record(aside, ProjectRecord(id=known or secrets.token_hex(8), created=time.time()))
        with suppress(FileExistsError):
            path.hardlink_to(aside)
    except OSError:
        with suppress(OSError):  # a file system without links
            if aside.exists() and not path.exists():
                aside.replace(path)
    finally:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
    return of(runs).id
