"""Events become rows: curves, metrics, scores."""

import math
from typing import Any

import pytest
from life import Connect, Life, with_journal

from gpas_cli.report.recorded import PARTIAL, read_results
from gpas_cli.store.ingest import sync
from gpas_cli.store.journal import Line
from gpas_cli.store.projection import _EVALUATION_CURVES, STEP_CURVES, integer, number, project_events, string


def event(kind: str, **fields: Any) -> Line:
    return Line({"n": 0, "t": 1760000000.0, "kind": kind, **fields})


def test_steps_and_evaluations_become_curves() -> None:
    speed = {"tokens_per_second": 7, "seconds_per_step": 0.1, "flops_per_second": 1e9, "mfu": 0.4, "memory": 2**30}
    speed["loss_scale"] = 512.0
    step = event("step", step=3, steps=9, loss=2.0, lr=1e-3, grad_norm=0.5, tokens=192, **speed)
    scores = dict.fromkeys(_EVALUATION_CURVES, 1.5)
    evaluation = event("evaluation", step=4, **scores, tokens=64, loss_reference=1.4)
    changes = project_events([step, evaluation])
    assert set(changes.curves) == {*STEP_CURVES, *_EVALUATION_CURVES.values()}
    assert changes.curves["loss"] == {3: 2.0}
    assert changes.curves["eval_loss"] == {4: 1.5}
    assert changes.columns == {"last_step": 4}
    assert changes.metrics is None


def test_a_skipped_update_is_a_point_with_its_loss_scale() -> None:
    changes = project_events([event("skipped", step=7, loss_scale=512.0), event("step", step=8, loss_scale=256.0)])
    assert changes.curves == {"skipped": {7: 512.0}, "loss_scale": {8: 256.0}}


def test_a_spike_is_a_point_of_its_own_curve() -> None:
    shown = [event("spike", step=7, of=of, value=9.0, usual=3.0) for of in ("loss", "grad_norm", "weather")]
    changes = project_events(shown)
    assert changes.curves == {"spike_loss": {7: 9.0}, "spike_grad_norm": {7: 9.0}}
    assert changes.damaged == 1


def test_a_number_that_a_step_does_not_report_has_no_point() -> None:
    assert project_events([event("step", step=1, loss=2.0, grad_norm=None)]).curves == {"loss": {1: 2.0}}


def test_layers_are_counted_from_zero() -> None:
    changes = project_events([event("layers", step=2, values={"gate": [0.5, None, "nan"]})])
    assert set(changes.layers["gate"]) == {(2, 0), (2, 2)}
    assert math.isnan(changes.layers["gate"][2, 2])


def test_later_events_win() -> None:
    changes = project_events(
        [event("step", step=1, loss=2.0), event("step", step=2, loss=1.9), event("step", step=1, loss=1.8)]
    )
    assert changes.curves["loss"] == {1: 1.8, 2: 1.9}
    assert changes.columns["last_step"] == 2


def test_an_outcome_ends_an_attempt_until_its_next_start() -> None:
    outcome = event("outcome", outcome="interrupted", step=7, cause="preempted", metrics={"loss": 2.0, "note": None})
    ended = project_events([outcome])
    assert ended.columns == {"outcome": "interrupted", "cause": "preempted", "ended": 1760000000.0, "last_step": 7}
    assert ended.metrics == {"loss": 2.0}
    again = project_events([outcome, event("start", host="b")])
    assert (again.columns["outcome"], again.columns["ended"], again.columns["host"]) == (None, None, "b")
    assert again.metrics == {}


def test_unknown_kinds_are_ignored() -> None:
    changes = project_events(
        [event("weather", step="?"), event("warning", message="x"), event("phase", name="training")]
    )
    assert (changes.columns, changes.curves, changes.damaged) == ({}, {}, 0)


@pytest.mark.parametrize(
    "bad",
    [
        event("step", loss=1.0),
        event("step", step="1", loss=1.0),
        event("step", step=-1, loss=1.0),
        event("step", step=2**31, loss=1.0),
        event("step", step=1, loss="low"),
        event("step", step=1, loss=True),
        event("layers", step=1, values=[1.0]),
        event("layers", step=1, values={"gate": 1.0}),
        event("outcome", step=1),
        event("outcome", outcome="done", metrics={"loss": [1.0]}),
        event("start", environment="linux"),
        event("start", parameters=1.5),
        event("checkpoint", step=None),
    ],
    ids=lambda line: str(line.values),
)
def test_a_malformed_event_is_counted_and_changes_nothing(bad: Line) -> None:
    changes = project_events([bad, event("step", step=5, loss=1.0)])
    assert changes.damaged == 1
    assert changes.columns == {"last_step": 5}
    assert (changes.curves, changes.layers, changes.metrics) == ({"loss": {5: 1.0}}, {}, None)


def test_numbers_from_a_journal() -> None:
    assert number("-inf") == -math.inf
    assert math.isnan(number("nan"))
    assert integer(2**40, 64) == 2**40
    with pytest.raises(ValueError, match="32 bits"):
        integer(2**40)
    assert string("a\0b\ud800") == "a\\0b\\ud800"


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
