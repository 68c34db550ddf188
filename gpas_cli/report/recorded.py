"""What is recorded of some cells: their states from the run directories, their results from the database.

Tables, claims, figures and the report page all start here.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gpas_cli.grid.declared import Entry
from gpas_cli.project import Project
from gpas_cli.report.result import Result
from gpas_cli.report.stored_results import results_in
from gpas_cli.state.observe import observe
from gpas_cli.state.view import SchedulerView
from gpas_cli.store.peek import Survey, describe_lost, lost_stages, rows_of, survey
from gpas_cli.store.refresh import describe_missing_runs, results_of

if TYPE_CHECKING:
    from sqlalchemy import Engine

State = tuple[str, float | None]  # with the fraction that is done, None if unknown


@dataclass(frozen=True)
class Recorded:
    """States and results of the entries' stages, by stage key.

    states: until a stage has been run again, that of its earlier result.
    engine: the database, closed when `recorded` ends; None if nothing has been run yet, or if it was not asked for.
    problem: why the results are not up to date, "" if they are.
    """

    entries: tuple[Entry, ...]
    states: Mapping[str, State] = field(default_factory=dict)
    results: Mapping[str, Result] = field(default_factory=dict)
    engine: Engine | None = None
    problem: str = ""


@contextmanager
def recorded(project: Project, entries: Sequence[Entry], *, database: bool = True) -> Iterator[Recorded]:
    """Ingest new events, then return what is recorded of `entries`. A database that cannot be written is read as it is.

    With `database`, all run directories are ingested, and the database is open. Without, only the stages of the entries
    are ingested; if there is nothing new, an SQLite database is read without SQLAlchemy (`store.peek`).

    Raises StoreError if the database cannot be read, or is another project's.
    """
    if not project.runs.is_dir():
        yield Recorded(tuple(entries), problem=describe_missing_runs(project, stage_keys(entries)))
        return
    keys = stage_keys(entries)
    seen, stored = _stored(project, keys)
    if stored is not None and not database:
        yield Recorded(tuple(entries), _states(project.runs, keys), stored)
        return
    from gpas_cli.report import query

    with results_of(project, None if database else keys) as (engine, problem):
        # Results first: a cell that ends meanwhile is then done but not yet ingested, never a result without a done
        # stage.
        results = query.results(engine, keys)
        lost = describe_lost(project, lost_stages(project.runs, seen.known)) if seen else ""
        problem = "; ".join(filter(None, (problem, lost)))
        yield Recorded(tuple(entries), _states(project.runs, keys), results, engine, problem)


def _stored(project: Project, keys: Sequence[str]) -> tuple[Survey | None, dict[str, Result] | None]:
    """Return what an SQLite database knows of the stages, and their results if it has all that their journals have."""
    with rows_of(project) as rows, suppress(sqlite3.Error):
        seen = survey(rows, project.runs, keys) if rows else None
        return seen, results_in(rows, keys) if rows and seen and seen.current else None
    return None, None


def _states(runs: Path, keys: Iterable[str]) -> dict[str, State]:
    alive = SchedulerView(runs)
    found = {key: observe(runs, key, alive) for key in keys}
    # Until a stage has been run again, the state of its earlier result stands.
    return {key: (status.stands or status.state, status.fraction) for key, status in found.items()}


def stage_keys(entries: Sequence[Entry]) -> list[str]:
    """Return the keys of all stages of the entries, each once."""
    return list(dict.fromkeys(stage.key for entry in entries for stage in entry.cell.stages))
