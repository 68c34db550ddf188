"""Curves are read as selected: at updates, of layers, from an update on, as maps and as ratios of two cells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from curve_database import stand_in
from report_cells import OPTIM, entry

from gpas_cli.errors import GpasError
from gpas_cli.grid import Entry
from gpas_cli.report.figures.curves import Selection, curves, has_labels, ratios
from gpas_cli.report.figures.series import make_series, quantity

LAYERS = 4
STEPS = (1, 1000, 2000, 5000, 10_000)


def cell(gate: str = "none", seed: int = 1, steps: int = 10_000) -> Entry:
    size = {"like": "71m", "layers": LAYERS}
    return entry("pre", gate, seed, size=size, axes={"size": "small"}, optim={**OPTIM, "steps": steps})  # type: ignore[arg-type]


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
    return curves(object(), cells, Selection(quantity(name), **selected))  # type: ignore[arg-type]


def test_a_quantity_by_layer_is_drawn_at_the_last_update_or_at_chosen_ones(recorded: dict[str, float]) -> None:
    (last,) = drawn(recorded, "activation_variance", cell())
    assert (last.step, last.points[0], last.points[-1], last.final_norm) == (10_000, (1, 10_000), (4, 10_003), 10_004)
    found = drawn(recorded, "activation_variance", cell(), at=(1000, 5200))
    assert [(run.step, run.variant) for run in found] == [(1000, (("update", 1000),)), (5000, (("update", 5000),))]
    assert [series.title for series in make_series(found)] == ["update 1000", "update 5000"]


def test_an_update_that_a_run_has_not_reached_is_not_drawn(recorded: dict[str, float]) -> None:
    assert drawn(recorded, "activation_variance", cell(), at=(50_000,)) == []


def test_updates_of_a_paper_are_scaled_to_a_shorter_training(recorded: dict[str, float]) -> None:
    (run,) = drawn(recorded, "activation_variance", cell(steps=2000), at=(5000,), planned=10_000)
    assert run.step == 1000


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


def test_a_cell_without_its_divisor_is_left_out(recorded: dict[str, float]) -> None:
    assert ratios(drawn(recorded, "weight_norm", cell("gpas", 1), cell("none", 2)), {"gate": "none"}) == []


@pytest.mark.parametrize("selected", [{"at": (1,)}, {"layers": ()}, {"map": True}])
def test_what_is_not_recorded_by_layer_has_no_layers(selected: dict[str, Any]) -> None:
    with pytest.raises(GpasError, match="'loss' is not recorded by layer"):
        Selection(quantity("loss"), **selected)


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
