"""Scores of tasks in the database: journalled once, stored once, restored by a rebuild."""

import math
from pathlib import Path

import pytest
from life import Connect, Life, with_journal
from sqlalchemy import select

from gpas_cli.report.recorded import PARTIAL, read_results
from gpas_cli.store import maintenance
from gpas_cli.store.ingest import sync
from gpas_cli.store.journal import Line
from gpas_cli.store.projection import project_events
from gpas_cli.store.schema import ScoreRow

SCORE = {
    "task": "piqa", "metric": "acc", "value": 0.6, "stderr": 0.02, "examples": 500, "shots": 0,
    "task_version": "1.0", "harness": "lm_eval 0.4.13", "checkpoint": "x",
}  # fmt: skip


def line(**changed: object) -> Line:
    return Line({"n": 0, "t": 1760000000.0, "kind": "score", **SCORE, **changed})


def test_a_score_becomes_a_row_and_the_later_one_counts() -> None:
    lines = [line(value=value) for value in (0.5, 0.6)]
    assert list(project_events(lines).scores) == [("piqa", "acc")]
    assert project_events(lines).scores["piqa", "acc"]["value"] == 0.6


@pytest.mark.parametrize("wrong", [{"value": "much"}, {"examples": -1}, {"examples": 0.5}])
def test_a_malformed_score_is_counted(wrong: dict[str, object]) -> None:
    changes = project_events([line(**wrong)])
    assert changes.damaged == 1
    assert not changes.scores


def scored(life: Life, *scores: dict[str, object], outcome: str = "", key: str = "0123456789abcdef") -> None:
    """Make an attempt at a stage of two tasks that journals `scores`, and its outcome unless it is ""."""
    cell = {"size": "60m", "downstream": {"tasks": ["piqa", "openbookqa"]}}
    attempt = life.attempt(key, stage="downstream", cell=cell)
    with_journal(attempt, [("start", {"stage": "downstream"}), *(("score", {**SCORE, **score}) for score in scores)])
    if outcome:
        life.end(attempt, outcome)


def test_scores_of_a_stage_that_has_not_finished_are_a_partial_result(connect: Connect, url: str, life: Life) -> None:
    scored(life, {}, outcome="interrupted")
    engine = connect(url, create=True)
    sync(engine, life.runs)
    (found,) = read_results(engine, ["0123456789abcdef"]).values()
    assert found.outcome == PARTIAL
    assert found.metrics == {"accuracy/piqa": 60.0}
    assert found.stderr("accuracy/piqa") == pytest.approx(2.0)


def test_attempts_are_joined_and_the_newest_score_of_a_task_counts(connect: Connect, url: str, life: Life) -> None:
    scored(life, {"value": 0.1}, outcome="interrupted")
    scored(life, {}, {"task": "openbookqa", "value": 0.2}, outcome="interrupted")
    engine = connect(url, create=True)
    sync(engine, life.runs)
    (found,) = read_results(engine, ["0123456789abcdef"]).values()
    assert found.metrics == pytest.approx({"accuracy/piqa": 60.0, "accuracy/openbookqa": 20, "accuracy/average": 40})
    assert found.stderr("accuracy/average") == pytest.approx(100 * math.hypot(0.02, 0.02) / 2)


def test_a_rebuild_restores_scores(connect: Connect, url: str, life: Life, tmp_path: Path) -> None:
    scored(life, {}, {"metric": "acc_norm", "stderr": None}, outcome="interrupted")
    engine = connect(url, create=True)
    sync(engine, life.runs)
    with engine.connect() as connection:
        before = [tuple(row)[1:] for row in connection.execute(select(ScoreRow.__table__))]
    engine.dispose()
    maintenance.rebuild(url, life.runs)
    with connect(url).connect() as connection:
        # without the id of the attempt, which a server counts on
        assert [tuple(row)[1:] for row in connection.execute(select(ScoreRow.__table__))] == before
    assert len(before) == 2
