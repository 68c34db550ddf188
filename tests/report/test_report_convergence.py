"""Smoothed losses, and the update at which they reach the final loss of a base."""

import math

import pytest
from report_cells import entry, result

from gpas_cli.errors import GpasError
from gpas_cli.report import query
from gpas_cli.report.convergence import reached, smooth_losses, smoothed, with_convergence
from gpas_cli.report.labels import has_labels
from gpas_cli.report.recorded import Recorded
from gpas_cli.spec.stage import CONVERGENCE

Curve = list[tuple[int, float]]


def test_smoothing_is_the_mean_of_the_losses_in_the_window_that_ends_at_an_update() -> None:
    curve = [(step, float(step), 10) for step in range(10, 601, 10)]
    assert smoothed(curve, 600)[:3] == [(30, 20.0), (40, 30.0), (50, 40.0)]
    assert smoothed([(1, 100.0, 1), (10, 10.0, 9), (20, 20.0, 10)], 400) == [(20, (100 + 90 + 200) / 20)]
    assert smoothed([(step, loss, 1) for step, loss, _ in curve], 600) == []  # windows of three losses


def test_a_crossing_is_interpolated_and_may_never_happen() -> None:
    curve = [(10, 4.0), (20, 3.0), (30, 1.0), (40, 2.0)]
    assert [reached(curve, target) for target in (5.0, 3.5, 3.0, 2.0, 1.0)] == [10, 15, 20, 25, 30]
    assert reached(curve, 0.5) == math.inf


def measured(monkeypatch: pytest.MonkeyPatch, losses: tuple[Curve, Curve], outcome: str = "done") -> list[object]:
    """Return the metrics of Pre-LN and of Pre-LN + GPAS, which ended so, with these training losses."""
    cells = entry("pre", "none"), entry("pre", "gpas")
    curves = {cell.cell.stages[0].key: curve for cell, curve in zip(cells, losses, strict=True)}
    monkeypatch.setattr(query, "curves", lambda engine, keys, name: {key: curves[key] for key in keys})
    facts = {"last_step": 400, "metrics": {"train_tokens": 4e5}}
    results = {**result(cells[0], **facts), **result(cells[1], **facts, outcome=outcome)}
    known = Recorded(cells, results=results, engine="a database")  # type: ignore[arg-type]
    found = with_convergence(
        known, lambda one: has_labels(one, {"gate": "none"}), ["gate"], "here", smooth_losses(known)
    )
    numbers = [found.results[cell.cell.stages[0].key].metrics for cell in cells]
    return [tuple(own.get(name) for name in CONVERGENCE) for own in numbers]


def falling(by: float) -> Curve:
    return [(step, 10.0 - by * step) for step in range(20, 401, 20)]


def test_a_network_that_learns_twice_as_fast_needs_half_the_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    base, gated = measured(monkeypatch, (falling(0.01), falling(0.02)))
    assert base == (400.0, 400_000.0, 1.0)
    assert gated == pytest.approx((200.0, 200_000.0, 2.0))


def test_one_that_never_gets_there_has_a_speed_up_of_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    _, gated = measured(monkeypatch, (falling(0.02), falling(0.01)))
    assert gated == (math.inf, math.inf, 0.0)


def test_a_run_that_diverged_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    base, gated = measured(monkeypatch, (falling(0.02), falling(0.01)), "diverged")
    assert base == (400.0, 400_000.0, 1.0)
    assert gated == (None, None, None)


def test_without_a_base_there_is_nothing_to_reach() -> None:
    with pytest.raises(GpasError, match=r"table 'x': .*speedup compare a cell with its base: add `against`"):
        with_convergence(Recorded(()), lambda one: True, [], "table 'x'", {})
