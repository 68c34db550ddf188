"""What is recorded of some cells: their states from the run directories, their results from the database.

Tables, claims, figures and the report page all start here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpas_cli.project import Project
from gpas_cli.report.result import Result
from gpas_cli.state.observe import statuses

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from gpas_cli.grid.entry import Entry


@dataclass(frozen=True)
class Recorded:
    """States and results of the entries' stages, by stage key.

    states: (state, fraction that is done or None); until a stage has been run again, that of its earlier result.
    engine: the database, None if nothing has been run yet; closed when `recorded` ends. problem: why the results are
    not up to date, "" if they are.
    """

    entries: tuple[Entry, ...]
    states: Mapping[str, tuple[str, float | None]] = field(default_factory=dict)
    results: Mapping[str, Result] = field(default_factory=dict)
    engine: Engine | None = None
    problem: str = ""


@contextmanager
def recorded(project: Project, entries: Sequence[Entry]) -> Iterator[Recorded]:
    """Ingest new events, then return what is recorded of `entries`. A database that cannot be written is read as it is.

    Raises StoreError if the database cannot be read, or is another project's.
    """
    from gpas_cli.report import query
    from gpas_cli.store.refresh import results_of

    if not project.runs.is_dir():
        yield Recorded(tuple(entries))
        return
    with results_of(project) as (engine, problem):
        # Results first: a cell that ends meanwhile is then done but not yet ingested, never a result without a done
        # stage.
        results = query.results(engine, stage_keys(entries))
        seen = statuses(project.runs, entries)
        states = {key: (status.stands or status.state, status.fraction) for key, status in seen.items()}
        yield Recorded(tuple(entries), states, results, engine, problem)


def stage_keys(entries: Sequence[Entry]) -> list[str]:
    """Return the keys of all stages of the entries, each once."""
    return list(dict.fromkeys(stage.key for entry in entries for stage in entry.cell.stages))
