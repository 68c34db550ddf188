"""What is recorded of some cells: their states from the run directories, their results from the database.

Tables, claims, figures and the report page all start here. The results of stages that have ended are also in the index
of ended stages (`state.ended_index`), so that a table of thousands of cells needs no database.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gpas_cli.project import Project
from gpas_cli.report.result import Result, from_plain, to_plain
from gpas_cli.state.ended_index import ENDED, EndedIndex
from gpas_cli.state.observe import observe, observe_ended
from gpas_cli.state.status import RESULTS, UNREADABLE, StageStatus
from gpas_cli.state.view import SchedulerView
from gpas_cli.store.peek import describe_lost, describe_missing_runs, known_stages, lost_stages

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from gpas_cli.grid.entry import Entry

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

    With `database`, all run directories are ingested, and the database is open. Without, only those stages of the
    entries are ingested whose results are not known, and the database may not be needed at all.

    Raises StoreError if the database cannot be read, or is another project's.
    """
    if not project.runs.is_dir():
        yield Recorded(tuple(entries), problem=describe_missing_runs(project, stage_keys(entries)))
        return
    look = _Look(project.runs)
    rest = [key for key in stage_keys(entries) if not look.find(key)]
    rest = look.without_attempts(project.database, rest)
    lost = describe_lost(project, look.lost)
    if not (rest or database):
        look.save([])
        yield look.recorded(entries)
        return
    from gpas_cli.store.refresh import results_of

    with results_of(project, None if database else rest) as (engine, problem):
        ended = look.read(engine, rest)
        look.save([] if problem else sorted(ended))
        yield look.recorded(entries, engine, "; ".join(filter(None, (problem, lost))))


class _Look:
    """The states and results of stages at one moment."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self.alive = SchedulerView(runs)
        self.index = EndedIndex(runs)
        self.states: dict[str, State] = {}
        self.results: dict[str, Result] = {}
        self.lost: list[str] = []  # stages that the database knows and that have no run directory

    def find(self, key: str) -> bool:
        """Return whether the state and the result of a stage are in the index."""
        try:
            found = self.index.find_result(key)
            if found is None:
                return False
            state, fraction, plain = found
            result = from_plain(plain)
            if state not in RESULTS:  # locks, claims and requests to cancel count, too
                status = observe_ended(self.runs, key, self.alive, self.index)
                if status is None:
                    return False
                state, fraction = _state(status)
        except UNREADABLE:
            return False
        self.states[key] = (state, fraction)
        if result is not None:
            self.results[key] = result
        return True

    def without_attempts(self, database: str, keys: Sequence[str]) -> list[str]:
        """Observe the stages that have no attempt, neither in the run directories nor in the database.

        Return the others.
        """
        known = known_stages(database, keys) if keys else None
        if known is None:
            return list(keys)
        self.lost = lost_stages(self.runs, known)
        new = {key: observe(self.runs, key, self.alive) for key in keys if key not in known}
        self.states |= {key: _state(status) for key, status in new.items() if status.attempt is None}
        return [key for key in keys if key not in self.states]

    def read(self, engine: Engine, keys: Sequence[str]) -> set[str]:
        """Read stages from the database and from their run directories. Return those that have ended.

        Results first: a cell that ends meanwhile is then done but not yet ingested, never a result without a done
        stage.
        """
        from gpas_cli.report import query

        self.results |= query.results(engine, keys)
        found = {key: observe(self.runs, key, self.alive, self.index) for key in keys}
        self.states |= {key: _state(status) for key, status in found.items()}
        return {key for key, status in found.items() if status.source in ENDED}

    def save(self, ended: Iterable[str]) -> None:
        """Add what was read to the index; states and results of the stages that have ended."""
        for key in ended:
            self.index.keep_result(key, [*self.states[key], to_plain(self.results.get(key))])
        self.index.save()

    def recorded(self, entries: Sequence[Entry], engine: Engine | None = None, problem: str = "") -> Recorded:
        """Return what was found of the entries."""
        return Recorded(tuple(entries), self.states, self.results, engine, problem)


def _state(status: StageStatus) -> State:
    """Return the state as tables show it: until a stage has been run again, that of its earlier result."""
    return status.stands or status.state, status.fraction


def stage_keys(entries: Sequence[Entry]) -> list[str]:
    """Return the keys of all stages of the entries, each once."""
    return list(dict.fromkeys(stage.key for entry in entries for stage in entry.cell.stages))
