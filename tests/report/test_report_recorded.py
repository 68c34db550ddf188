"""What is recorded of cells is the same whether results come from the database or from the index of ended stages."""

from __future__ import annotations

import itertools
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from attempts import attempt_at
from launching import entry

from gpas_cli.events import Score, event_of
from gpas_cli.grid import Entry
from gpas_cli.project import Project
from gpas_cli.report.recorded import Recorded, recorded
from gpas_cli.state import ended_index, rerun
from gpas_cli.state.ended_index import FOLDER, forget_results
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
    monkeypatch.setattr(ended_index, "SETTLED_SECONDS", -60.0)
    monkeypatch.setattr(ended_index.file_systems, "type_of", lambda path: "ext4")
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
    """Return what is recorded according to a new database, without the index."""
    aside = project.runs.with_name(f"aside-{next(fresh)}")
    if (project.runs / FOLDER).exists():
        (project.runs / FOLDER).rename(aside)
    found = look(replace(project, database=str(aside.with_suffix(".db"))))
    assert found.engine is not None
    shutil.rmtree(project.runs / FOLDER, ignore_errors=True)
    if aside.exists():
        aside.rename(project.runs / FOLDER)
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
}


def test_a_database_is_not_needed_for_what_is_indexed(project: Project) -> None:
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


def test_the_results_of_another_version_are_read_again(project: Project) -> None:
    look(project)
    for path in (project.runs / FOLDER).glob("*-results.json"):
        path.write_bytes(path.read_bytes()[:-1])
    known = look(project)
    assert known.engine is not None
    assert plain(known) == plain(truth(project))


def test_a_rebuilt_database_is_read_again(project: Project) -> None:
    look(project)
    with sqlite3.connect(project.database) as connection:
        connection.execute("UPDATE metric SET value = 9 WHERE name = 'perplexity'")
    assert look(project).results[KEY].metrics["perplexity"] == 4.0
    forget_results(project.runs)
    assert look(project).results[KEY].metrics["perplexity"] == 9.0


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
