"""Runs become series with mean, spread and a look of their own."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from curve_database import stand_in
from goldens import as_yaml, compact, compare, golden_cases
from report_cells import OPTIM, entry

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
from gpas_cli.grid import Entry
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


def cell(gate: str = "none", seed: int = 1, steps: int = 10_000) -> Entry:
    size = {"like": "71m", "layers": LAYERS}
    return entry("pre", gate, seed, size=size, axes={"size": "small"}, optim={**OPTIM, "steps": steps})


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a stand-in for the database, in which every stage has the same curves, times its seed."""
    seeds: dict[str, float] = {}

    def layers(key: str, name: str) -> list[tuple[int, dict[int, float]]]:
        by_name: Mapping[str, int] = {"activation_variance": LAYERS + 1, "grad_norm": LAYERS, "weight_norm": LAYERS}
        return [(step, {i: seeds[key] * (step + i) for i in range(by_name.get(name, 0))}) for step in STEPS]

    def curve(key: str, name: str) -> list[tuple[int, float]]:
        return [(step, seeds[key] * step) for step in STEPS] if name == "loss" else []

    stand_in(monkeypatch, curve, layers)
    return seeds


def drawn(seeds: dict[str, float], name: str, *cells: Entry, **selected: Any) -> Any:
    for one in cells:
        seeds.setdefault(one.cell.key, 1.0)
    return curves(object(), cells, Selection(quantity(name), **selected))


def test_a_quantity_by_layer_is_drawn_at_the_last_update_or_at_chosen_ones(recorded: dict[str, float]) -> None:
    (last,) = drawn(recorded, "activation_variance", cell())
    assert (last.step, last.points[0], last.points[-1], last.final_norm) == (10_000, (1, 10_000), (4, 10_003), 10_004)
    found = drawn(recorded, "activation_variance", cell(), at=(1000, 5200))
    assert [(run.step, run.variant) for run in found] == [(1000, (("update", 1000),)), (5000, (("update", 5000),))]
    assert [series.title for series in make_series(found)] == ["update 1000", "update 5000"]
    assert drawn(recorded, "activation_variance", cell(), at=(50_000,)) == []  # not reached
    # Updates of a paper are scaled to a shorter training.
    (scaled,) = drawn(recorded, "activation_variance", cell(steps=2000), at=(5000,), planned=10_000)
    assert scaled.step == 1000


def test_figures_over_layers_prefer_the_last_stage_those_over_updates_a_training(recorded: dict[str, float]) -> None:
    measured = entry("pre", "none", size={"like": "71m", "layers": LAYERS}, optim=OPTIM, layers={})
    pretraining, layers = (stage.key for stage in measured.cell.stages)
    recorded |= {pretraining: 1.0, layers: 7.0}
    assert [run.stage for run in drawn(recorded, "activation_variance", measured)] == [layers]
    for selected in ({"at": (1000,)}, {"layers": ()}, {"map": True}):
        runs = drawn(recorded, "activation_variance", measured, **selected)
        assert {run.stage for run in runs} == {pretraining}


def test_layers_over_updates(recorded: dict[str, float]) -> None:
    found = drawn(recorded, "grad_norm", cell(), layers=(), every=2)
    assert [run.variant for run in found] == [(("layer", 1),), (("layer", 3),), (("layer", 4),)]
    assert found[1].points[0] == (1.0, 3.0)
    (one,) = drawn(recorded, "grad_norm", cell(), layers=(2.0,), start=0.2)
    assert [x for x, _ in one.points] == [2000, 5000, 10_000]


def test_output_variances_are_the_inputs_of_the_layers_after(recorded: dict[str, float]) -> None:
    (run,) = drawn(recorded, "output_variance", cell())
    assert run.points == tuple((n, 10_000 + n) for n in range(1, LAYERS + 1))
    assert run.final_norm is None


def test_a_map_has_a_row_for_each_layer_and_a_column_for_each_update(recorded: dict[str, float]) -> None:
    (run,) = drawn(recorded, "grad_norm", cell(), map=True)
    assert run.columns == STEPS
    assert [row[0] for row in run.matrix] == [1, 2, 3, 4]
    (series,) = make_series([run])
    assert series.columns() == STEPS


def test_ratios_pair_cells_that_differ_only_in_the_gate(recorded: dict[str, float]) -> None:
    cells = [cell(gate, seed) for gate in ("none", "gpas") for seed in (1, 2)]
    for one, factor in zip(cells, (1.0, 2.0, 3.0, 10.0), strict=True):
        recorded[one.cell.key] = factor
    found = ratios(drawn(recorded, "weight_norm", *cells), {"gate": "none"})
    assert [(run.entry.axes["gate"], run.entry.axes["seed"]) for run in found] == [("gpas", 1), ("gpas", 2)]
    assert [run.points[0][1] for run in found] == [3.0, 5.0]
    assert ratios(drawn(recorded, "weight_norm", cell("gpas", 1), cell("none", 2)), {"gate": "none"}) == []


def test_nothing_is_drawn_before_anything_has_run() -> None:
    assert curves(None, [cell()], Selection(quantity("loss"))) == []


def test_labels_are_those_of_the_grid_or_of_the_papers() -> None:
    renamed = entry("pre", {"activation": "tanh"}, axes={"gate": "mine"})
    assert has_labels(renamed, {"gate": "mine", "norm": ["lns", "pre"]})
    assert has_labels(renamed, {"gate": "activation=tanh"})
    assert not has_labels(renamed, {"gate": "gpas"})
    assert not has_labels(renamed, {"absent": 1})


def test_the_loss_over_updates_is_that_of_a_training_and_not_of_a_stage_after_it(recorded: dict[str, float]) -> None:
    """A measurement of importance records losses too, one for each layer that it removes."""
    measured = entry("pre", "none", importance={"eval_tokens": 1000})
    pretraining, importance = measured.cell.stages
    recorded |= {pretraining.key: 1.0, importance.key: 7.0}
    (run,) = drawn(recorded, "loss", measured)
    assert run.points[0] == (1.0, 1.0)


def test_losses_of_a_stage_that_does_not_train_are_no_curve_over_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = entry("pre", "none", importance={"eval_tokens": 1000})
    pretraining, importance = measured.cell.stages
    stored = {pretraining.key: (["lr"], []), importance.key: (["loss"], ["importance"])}

    def names(engine: object, keys: list[str]) -> tuple[list[str], list[str]]:
        return [name for key in keys for name in stored[key][0]], [name for key in keys for name in stored[key][1]]

    monkeypatch.setattr("gpas_cli.report.query.curve_names", names)
    assert recorded_quantities(object(), [measured]) == ["lr", "importance"]
