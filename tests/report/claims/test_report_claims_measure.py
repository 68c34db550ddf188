"""The number that a run contributes to a claim, taken from a curve by layer."""

from __future__ import annotations

import math

import pytest
from curve_database import stand_in
from report_cells import entry, result

from gpas_cli.grid.claim import Feature
from gpas_cli.report import query
from gpas_cli.report.claims.measure import feature_fault, measure
from gpas_cli.report.recorded import Recorded

LAYERS = 12


def taken(monkeypatch: pytest.MonkeyPatch, values: list[float], **feature: object) -> float | None:
    """Return the number of a run that recorded `values` at the inputs of its layers and of the final norm."""
    lone = entry(size={"like": "71m", "layers": LAYERS}, axes={"size": "own"})  # type: ignore[arg-type]
    recorded = {lone.cell.key: [(600, dict(enumerate(values)))]}
    monkeypatch.setattr(query, "layer_curves", lambda engine, keys, name, until: recorded)
    known = Recorded((lone,), results=result(lone, 30.0), engine=object())  # type: ignore[arg-type]
    found = measure([lone], Feature(curve="output_variance", **feature), "seed", known)  # type: ignore[arg-type]
    return found[lone.id].value


def test_the_output_of_a_layer_is_what_enters_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [10.0 * n for n in range(LAYERS + 1)]
    assert taken(monkeypatch, values, take="first") == 10.0
    assert taken(monkeypatch, values, take="last") == 120.0
    assert taken(monkeypatch, values, take="mean", layers=(3,)) == 30.0


def test_an_exponential_and_a_power_law_over_the_layers_are_distinguished(monkeypatch: pytest.MonkeyPatch) -> None:
    exponential = [math.exp(0.2 * n) for n in range(LAYERS + 1)]
    assert taken(monkeypatch, exponential, take="exponential-aic") > 10  # type: ignore[operator]
    power = [0.5, *(n**1.5 for n in range(1, LAYERS + 1))]
    assert taken(monkeypatch, power, take="exponential-aic") < -10  # type: ignore[operator]
    assert taken(monkeypatch, [0.0] * (LAYERS + 1), take="exponential-aic") is None


def test_a_law_over_layers_is_taken_at_one_update() -> None:
    law = Feature(curve="output_variance", take="exponential-aic", updates="all")
    assert "a law of growth over layers is taken at one update" in feature_fault(law)


def test_every_spike_counts_wherever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    calm, wild = entry("lns"), entry("pre")
    spikes = {wild.cell.key: [(45, 8.3), (50, 49.3)]}
    stand_in(monkeypatch, lambda key, name: spikes.get(key, []), lambda key, name: [])
    results = {**result(calm, 30.0), **result(wild, 30.0)}
    known = Recorded((calm, wild), results=results, engine=object())  # type: ignore[arg-type]
    found = measure([calm, wild], Feature(curve="spike_grad_norm", take="count"), "seed", known)
    assert [found[one.id].value for one in (calm, wild)] == [0.0, 2.0]
    fault = feature_fault(Feature(curve="spike_grad_norm", take="count", updates=300))
    assert fault == "a count is of all updates; leave out updates"
