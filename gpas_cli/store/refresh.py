"""Keep the database up to date while cells run. A database that is down, locked or full costs no run."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gpas_cli.errors import GpasError
from gpas_cli.project import Project
from gpas_cli.store import peek
from gpas_cli.words import listed

if TYPE_CHECKING:
    from sqlalchemy import Engine

# Short, because a scheduler waits for it; what is not ingested now is ingested next time.
_BUSY_SECONDS = 3.0
_NAMED = 3  # run directories that cannot be read, in one message


def ingest(project: Project, keys: Collection[str] | None = None) -> str:
    """Ingest the run directories: all, or of the stages `keys`.

    Return an error message, "" if there was no error; never raises for one.
    """
    from sqlalchemy.exc import SQLAlchemyError

    from gpas_cli.store import session
    from gpas_cli.store.ingest import sync

    try:
        with session.opened(project.database, busy_seconds=_BUSY_SECONDS) as engine:
            problems = sync(engine, project.runs, keys).problems
    except (GpasError, SQLAlchemyError, OSError) as error:
        return f"results were not copied into the database: {error}; the run directories have them"
    return f"passed over, because they cannot be read: {listed(problems, _NAMED, '; ')}" if problems else ""


@contextmanager
def results_of(project: Project, keys: Collection[str] | None = None) -> Iterator[tuple[Engine, str]]:
    """Return the results database, as up to date as possible, and why it is not quite ("" if it is).

    With `keys`, only these stages are brought up to date.

    A user who may only read the database gets it as it is; one who may not create it gets a database in memory.
    Raises StoreError when the database cannot be read, or is another project's.
    """
    from gpas_cli.store import owner, session
    from gpas_cli.store.ingest import sync

    problem = ingest(project, keys)
    path = session.file_of(session.parse(project.database))
    in_memory = path is not None and not path.exists() and not peek.may_write(path)
    with session.opened("sqlite://" if in_memory else project.database, create=in_memory) as engine:
        if in_memory:
            sync(engine, project.runs, keys)
        owner.refuse_other(engine, project.runs)
        yield engine, problem


def describe_missing_runs(project: Project, keys: Collection[str]) -> str:
    """Return the warning about the stages of `keys` that the database knows, if the whole folder of run
    directories is missing; "" if it knows none, or cannot be read."""
    known: set[str] = set()
    with suppress(GpasError, OSError, sqlite3.Error):
        known = _known_stages(project)
    return peek.describe_lost(project, known.intersection(keys))


def _known_stages(project: Project) -> set[str]:
    statement = "SELECT DISTINCT stage_key FROM attempt"
    if Path(project.database).is_absolute():
        with closing(peek.open_file(Path(project.database))) as file:
            return {key for (key,) in file.execute(statement)}
    from gpas_cli.store import session

    opened = session.opened(project.database, create=False, busy_seconds=peek.PEEK_SECONDS)
    with opened as engine, engine.connect() as connection:
        return {key for (key,) in connection.exec_driver_sql(statement)}
