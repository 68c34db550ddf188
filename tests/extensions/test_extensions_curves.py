"""Runs become series with mean, spread and a look of their own."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from curve_database import stand_in
from goldens import as_yaml, compact, compare, golden_cases
from report_cells import entry

from gpas_cli.extensions.curves.series import (
    CellCurve,
    Selection,
    Series,
    curves,
    make_series,
    over_updates,
    ratios,
    recorded_quantities,
)
from gpas_cli.report.labels import has_labels
from gpas_cli.report.quantities import by_layer, quantity


def made(one: Mapping[str, Any]) -> CellCurve:
    """Return the run of a case."""
    of = dict(one)
    values, final_norm, grid = of.pop("values", [1.0]), of.pop("final_norm", None), of.pop("grid", "demo")
    points = tuple(zip(of.pop("at", itertools.count(10, 10)), values, strict=False))
    cell = replace(entry(**of), grid=grid)
    return CellCurve(cell, "seed", points, final_norm=final_norm, stage=cell.cell.stages[0].key)


def as_text(series: Series) -> str:
    looks = {"colour": series.colour, "style": series.style, "shade": series.shade, "runs": len(series.runs)}
    mean = [[x, point.mean, point.std, point.n] for x, point in series.mean()]
    final = series.final_norm()
    values = {"mean": mean, "tails": series.tails(), "final_norm": final and final.mean}
    return f"{series.title}: {as_yaml(compact({**looks, **values}))}"


@pytest.mark.parametrize("title", golden_cases("series"))
def test_series_are_those_of_the_golden_file(title: str) -> None:
    runs = [made(one) for one in golden_cases("series")[title]]
    compare("series", title, "".join(map(as_text, make_series(runs))))


def test_nonfinite_values_are_left_out_and_units_are_scaled() -> None:
    assert over_updates([(1, 5.0), (2, math.nan), (3, math.inf), (4, 3.0)], 0.5) == ((1, 2.5), (4, 1.5))


def test_layers_are_numbered_from_one_without_the_final_norm() -> None:
    of = entry(size={"like": "71m", "layers": 2}, axes={"size": "71m"})
    assert by_layer(of, {0: 1.0, 1: 2.0, 2: 9.0}) == (((1, 1.0), (2, 2.0)), 9.0)
    assert by_layer(of, {0: 1.0, 1: math.nan}) == (((1, 1.0),), None)
    assert by_layer(of, {0: 1.0, 1: 2.0, 2: math.inf})[1] is None
    # two gates a layer
    assert by_layer(of, dict(enumerate((0.1, 0.2, 0.3, 0.4)))) == (((1, 0.1), (1.5, 0.2), (2, 0.3), (2.5, 0.4)), None)


LAYERS = 4
STEPS = (1, 1000, 2000, 5000, 10_000)


@pytest.fixture
def factors(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Return factors by stage key, by which the curves that a stand-in for the database has of all stages differ."""
    found: dict[str, float] = {}

    def layers(key: str, name: str) -> list[tuple[int, dict[int, float]]]:
        values = {"activation_variance": LAYERS + 1, "grad_norm": LAYERS, "weight_norm": LAYERS}.get(name, 0)
        return [(step, {i: found[key] * (step + i) for i in range(values)}) for step in STEPS]

    def curve(key: str, name: str) -> list[tuple[int, float]]:
        return [(step, found[key] * step) for step in STEPS] if name == "loss" else []

    stand_in(monkeypatch, curve, layers)
    return found


def run_text(run: CellCurve, stages: Mapping[str, str]) -> str:
    labels = " ".join(f"{axis}={label}" for axis, label in (*run.entry.axes.items(), *run.variant))
    values = {"matrix": run.matrix, "columns": run.columns, "final_norm": run.final_norm, "points": run.points}
    return f"  {labels}, {stages[run.stage]}, at {run.step}: {as_yaml(compact(values))}"


@pytest.mark.parametrize("title", golden_cases("curves"))
def test_what_is_drawn_of_recorded_curves_is_that_of_the_golden_file(factors: dict[str, float], title: str) -> None:
    case = golden_cases("curves")[title]
    size = {"like": "71m", "layers": LAYERS}
    cells = [entry(**{"size": size, "axes": {"size": "small"}, **one}) for one in case["cells"]]
    stages = {stage.key: stage.kind for one in cells for stage in one.cell.stages}
    factors.update(zip(stages, case.get("factors", itertools.repeat(1.0)), strict=False))
    lines = []
    for selected in case["drawn"]:
        what = {**selected, "at": tuple(selected.get("at", ()))}
        found = curves(object(), cells, Selection(quantity(what.pop("what")), **what))
        found = ratios(found, case["against"]) if "against" in case else found
        lines += [f"{selected}: {', '.join(one.title for one in make_series(found))}\n"]
        lines += [run_text(one, stages) for one in found]
    compare("curves", title, "".join(lines))


def test_nothing_is_drawn_before_anything_has_run() -> None:
    assert curves(None, [entry()], Selection(quantity("loss"))) == []


def test_labels_are_those_of_the_grid_or_of_the_papers() -> None:
    renamed = entry("pre", {"activation": "tanh"}, axes={"gate": "mine"})
    assert has_labels(renamed, {"gate": "mine", "norm": ["lns", "pre"]})
    assert has_labels(renamed, {"gate": "activation=tanh"})
    assert not has_labels(renamed, {"gate": "gpas"})
    assert not has_labels(renamed, {"absent": 1})


def test_losses_of_a_stage_that_does_not_train_are_no_curve_over_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = entry("pre", "none", importance={"eval_tokens": 1000})
    pretraining, importance = measured.cell.stages
    stored = {pretraining.key: (["lr"], []), importance.key: (["loss"], ["importance"])}

    def names(engine: object, keys: list[str]) -> tuple[list[str], list[str]]:
        return [name for key in keys for name in stored[key][0]], [name for key in keys for name in stored[key][1]]

    monkeypatch.setattr("gpas_cli.report.query.curve_names", names)
    assert recorded_quantities(object(), [measured]) == ["lr", "importance"]
