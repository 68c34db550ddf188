"""The one place where launching meets the database, which may be down, locked or full without costing a run."""

from __future__ import annotations

from gpas_cli.errors import GpasError
from gpas_cli.project import Project

# A scheduler waits while this runs, and what is not read in now is read in next time.
BUSY_SECONDS = 3.0
NAMED = 3  # run directories that cannot be read, in one message


def ingest(project: Project) -> str:
    """Ask the store to read the run directories. Returns what went wrong, "" when nothing did; never raises for it."""
    from sqlalchemy.exc import SQLAlchemyError

    from gpas_cli.store.ingest import sync
    from gpas_cli.store.session import connect

    try:
        engine = connect(project.database, busy_seconds=BUSY_SECONDS)
        try:
            problems = sync(engine, project.runs).problems
        finally:
            engine.dispose()
    except (GpasError, SQLAlchemyError, OSError) as error:
        return f"results were not copied into the database: {error}; the run directories have them"
    more = f", and {len(problems) - NAMED} more" if len(problems) > NAMED else ""
    return f"passed over, because they cannot be read: {'; '.join(problems[:NAMED])}{more}" if problems else ""
