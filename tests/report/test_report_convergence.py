"""Smoothed losses, and the update at which they reach the final loss of a base."""

import math

import pytest
from cases import cases
from report_cells import entry, result

from gpas_cli.errors import GpasError
from gpas_cli.report import query
from gpas_cli.report.convergence import reached, smooth_losses, smoothed, with_convergence
from gpas_cli.report.labels import has_labels
from gpas_cli.report.recorded import Recorded
from gpas_cli.spec.stage import CONVERGENCE


def test_smoothing_is_the_mean_of_the_losses_in_the_window_that_ends_at_an_update() -> None:
    curve = [(step, float(step), 10) for step in range(10, 601, 10)]
    assert smoothed(curve, 600)[:3] == [(30, 20.0), (40, 30.0), (50, 40.0)]
    assert smoothed([(1, 100.0, 1), (10, 10.0, 9), (20, 20.0, 10)], 400) == [(20, (100 + 90 + 200) / 20)]
    assert smoothed([(step, loss, 1) for step, loss, _ in curve], 600) == []  # windows of three losses


def test_a_crossing_is_interpolated_and_may_never_happen() -> None:
    curve = [(10, 4.0), (20, 3.0), (30, 1.0), (40, 2.0)]
    assert [reached(curve, target) for target in (5.0, 3.5, 3.0, 2.0, 1.0)] == [10, 15, 20, 25, 30]
    assert reached(curve, 0.5) == math.inf


@cases("report/cases.yaml", outcome="done")
def test_updates_tokens_and_speed_up(
    monkeypatch: pytest.MonkeyPatch, falls: list[float], outcome: str, found: list[list[float]]
) -> None:
    """Of Pre-LN and of Pre-LN + GPAS, which ended so, whose training losses fall from 10 by so much an update."""
    cells = entry("pre", "none"), entry("pre", "gpas")
    keys = [cell.cell.stages[0].key for cell in cells]
    losses = {
        key: [(step, 10.0 - by * step) for step in range(20, 401, 20)] for key, by in zip(keys, falls, strict=True)
    }
    monkeypatch.setattr(query, "curves", lambda engine, keys, name: {key: losses[key] for key in keys})
    facts = {"last_step": 400, "metrics": {"train_tokens": 4e5}}
    results = {**result(cells[0], **facts), **result(cells[1], **facts, outcome=outcome)}
    known = Recorded(cells, results=results, engine="a database")  # type: ignore[arg-type]
    made = with_convergence(
        known, lambda one: has_labels(one, {"gate": "none"}), ["gate"], "here", smooth_losses(known)
    ).results
    for key, numbers in zip(keys, found, strict=True):
        assert [made[key].metrics[name] for name in CONVERGENCE if name in made[key].metrics] == pytest.approx(numbers)


def test_without_a_base_there_is_nothing_to_reach() -> None:
    with pytest.raises(GpasError, match=r"table 'x': .*speedup compare a cell with its base: add `against`"):
        with_convergence(Recorded(()), lambda one: True, [], "table 'x'", {})
