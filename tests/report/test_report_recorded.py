"""What is recorded of cells is the same with and without SQLAlchemy, and whatever has happened to the database."""

import itertools
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from attempts import attempt_at
from face import quicken_databases
from launching import entry

from gpas_cli.errors import StoreError
from gpas_cli.events import Score, event_of
from gpas_cli.grid import Entry
from gpas_cli.project import Project
from gpas_cli.report.recorded import Recorded, recorded
from gpas_cli.state import observe, rerun
from gpas_cli.store.rundir import AttemptDir, stage_dir

CELLS = [entry(seed=seed) for seed in (1, 2, 3)]
DONE, FAILED, MISSING = CELLS
KEY = DONE.cell.stages[0].key
fresh = itertools.count()


def outcome(name: str, **metrics: float) -> Any:
    return event_of({"kind": "outcome", "outcome": name, "step": 3, "metrics": metrics})


def score(task: str) -> Score:
    return Score(task, "acc", 0.5, 100, stderr=0.01, task_version="1", harness="harness")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    quicken_databases(monkeypatch)
    runs = tmp_path / "runs"
    attempt_at(runs, DONE, [outcome("interrupted")])
    attempt_at(runs, DONE, [outcome("done", perplexity=4.0, loss=float("nan"))])
    attempt_at(runs, FAILED, [outcome("failed")])
    return Project(tmp_path / "experiments.yaml", runs, tmp_path / "cache", str(tmp_path / "gpas.db"))


def plain(known: Recorded) -> tuple[Any, ...]:
    """Return states and results; their text, because nan is not equal to itself."""
    return known.states, {key: repr(result) for key, result in known.results.items()}


def look(project: Project) -> Recorded:
    with recorded(project, CELLS, database=False) as known:
        return known


def truth(project: Project) -> Recorded:
    """Return what is recorded according to a new database."""
    found = look(replace(project, database=str(project.runs.with_name(f"new-{next(fresh)}.db"))))
    assert found.engine is not None
    return found


def add(*events: Any, to: Entry = DONE) -> Callable[[Project], Any]:
    return lambda project: attempt_at(project.runs, to, events)


def edit(number: int, old: str, new: str) -> Callable[[Project], Any]:
    """Return a function that changes the journal of an attempt as a damage or a person would."""

    def change(project: Project) -> None:
        path = AttemptDir(stage_dir(project.runs, KEY) / f"{number:03d}").journal_path
        path.write_text(path.read_text().replace(old, new))

    return change


CHANGES: dict[str, Callable[[Project], Any]] = {
    "a new result": add(outcome("done", perplexity=3.0)),
    "a new attempt that diverged": add(outcome("diverged")),
    "a failure after the result": add(outcome("failed")),
    "a result of what had failed": add(outcome("done", perplexity=3.0), to=FAILED),
    "a result of what was missing": add(outcome("done", perplexity=3.0), to=MISSING),
    "the journal is damaged": edit(2, '"outcome":"done"', '"outcome":"dome"'),
    "the journal has another number": edit(2, '"perplexity":4.0', '"perplexity":5.0'),
    "it is to be run again": lambda project: rerun.request(project.runs, KEY),
    "it ran again and failed": lambda project: (rerun.request(project.runs, KEY), add(outcome("failed"))(project)),
}


def test_sqlalchemy_is_not_needed_where_nothing_is_new(project: Project) -> None:
    first = look(project)
    assert first.engine is not None
    assert first.results[KEY].metrics["perplexity"] == 4.0
    second = look(project)
    assert second.engine is None
    assert plain(second) == plain(first) == plain(truth(project))
    assert [second.states[one.key][0] for one in CELLS] == ["done", "failed", "missing"]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_run_directories_is_seen(project: Project, change: str) -> None:
    look(project)
    CHANGES[change](project)
    after = look(project)
    assert plain(after) == plain(truth(project))
    assert plain(look(project)) == plain(after)


def test_a_result_whose_run_directory_is_gone_is_marked(project: Project) -> None:
    look(project)
    shutil.rmtree(stage_dir(project.runs, KEY))
    for _ in range(2):
        known = look(project)
        assert known.engine is not None
        assert known.results[KEY].gone
        assert known.states[KEY][0] == "missing"


def test_scores_of_earlier_attempts_are_seen(project: Project) -> None:
    add(score("piqa"), outcome("done", perplexity=4.0))(project)
    look(project)
    assert [one.task for one in look(project).results[KEY].scores] == ["piqa"]
    path = AttemptDir(stage_dir(project.runs, KEY) / "001").journal_path
    path.unlink()
    attempt_at(project.runs.with_name("other"), DONE, [score("arc_easy")])
    shutil.copy(stage_dir(project.runs.with_name("other"), KEY) / "001/journal.jsonl", path)
    assert {one.task for one in look(project).results[KEY].scores} == {"arc_easy", "piqa"}
    assert plain(look(project)) == plain(truth(project))


HARMS: dict[str, Callable[[Path], Any]] = {
    "deleted": Path.unlink,
    "older": lambda path: shutil.copy(path.with_name("older.db"), path),
    "of another version": lambda path: write(path, "UPDATE gpas_alembic_version SET version_num = '0001'"),
    "empty": lambda path: path.write_bytes(b""),
    "not a database": lambda path: path.write_bytes(b"x" * 5000),
    "of another project": lambda path: write(path, "UPDATE gpas_project SET id = 'other'"),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


def write(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


def single_file(path: Path) -> None:
    """Move what is in the log into the database, so that a test can replace the file."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")


@pytest.mark.parametrize("harm", HARMS)
def test_the_database_changes_no_state_and_no_number(project: Project, harm: str) -> None:
    before = look(project)
    single_file(Path(project.database))
    shutil.copy(project.database, project.runs.with_name("older.db"))
    add(outcome("done", perplexity=3.0))(project)
    after = plain(look(project))
    single_file(Path(project.database))
    assert after != plain(before)
    HARMS[harm](Path(project.database))
    states = [status.state for status in observe.cell_statuses(project.runs, CELLS)]
    assert states == ["done", "failed", "missing"]
    try:
        assert plain(look(project)) == after
    except StoreError:  # a message with a remedy, never other numbers
        assert harm not in ("deleted", "older", "empty")
    with closing(sqlite3.connect(project.runs.with_name("older.db"))) as held:
        held.execute("BEGIN EXCLUSIVE")
        assert [status.state for status in observe.cell_statuses(project.runs, CELLS)] == states


def test_without_a_database_file_only_what_is_missing_makes_one(project: Project) -> None:
    look(project)
    Path(project.database).unlink()
    known = look(project)
    assert known.engine is not None  # whether the database has results of cells without run directories is not known
    assert plain(known) == plain(truth(project))


def test_a_caller_that_reads_the_database_gets_it(project: Project) -> None:
    look(project)
    with recorded(project, CELLS) as known:
        assert known.engine is not None
        assert plain(known) == plain(truth(project))
