"""Runs become series with mean, spread and a look of their own."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from curve_database import stand_in
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


def run(of: Entry, *values: float, **more: object) -> CellCurve:
    return CellCurve(of, "seed", tuple((10.0 * i, y) for i, y in enumerate(values, 1)), **more)


def looks(series: tuple[Series, ...]) -> list[tuple[str, int, int]]:
    return [(one.title, one.colour, one.style) for one in series]


def test_seeds_become_a_mean_with_its_spread() -> None:
    (series,) = make_series([run(entry(seed=1), 4.0, 2.0), run(entry(seed=2), 6.0, 3.0)])
    assert series.title == "Pre-LN"
    assert [(x, s.mean, s.std, s.n) for x, s in series.mean()] == [
        (10, 5.0, pytest.approx(math.sqrt(2)), 2),
        (20, 2.5, pytest.approx(math.sqrt(0.5)), 2),
    ]
    assert series.tails() == []


def test_the_mean_ends_with_the_shortest_run() -> None:
    (series,) = make_series([run(entry(seed=1), 4.0, 2.0), run(entry(seed=2), 6.0, 3.0, 2.0, 1.0)])
    assert [x for x, _ in series.mean()] == [10, 20]
    assert series.tails() == [((20, 3.0), (30, 2.0), (40, 1.0))]


def test_runs_that_share_no_update_are_drawn_by_themselves() -> None:
    odd = CellCurve(entry(seed=2), "seed", ((5.0, 1.0),))
    (series,) = make_series([run(entry(seed=1), 4.0), odd])
    assert series.mean() == []
    assert series.tails() == [((10, 4.0),), ((5, 1.0),)]


def test_base_and_gpas_of_a_scheme_share_a_colour_which_is_the_schemes_own() -> None:
    every = [run(entry(norm, gate), 1.0) for norm in ("lns", "pre") for gate in ("none", "gpas")]
    lns, pre = looks(make_series(every))[:2], looks(make_series(every))[2:]
    assert [title for title, _, _ in lns + pre] == ["LNS", "LNS + GPAS", "Pre-LN", "Pre-LN + GPAS"]
    assert [style for _, _, style in lns + pre] == [1, 0, 1, 0]
    assert lns[0][1] == lns[1][1] != pre[0][1] == pre[1][1]
    only_pre = make_series([*every[2:], run(entry("mix"), 1.0)])
    assert only_pre[0].colour == pre[0][1]


@pytest.mark.parametrize(
    ("cells", "found"),
    [
        ((entry("pre", "none"), entry("pre", "gpas")), [("Pre-LN", 1, 1), ("Pre-LN + GPAS", 0, 0)]),
        ((entry("pre"), entry("mix")), [("Pre-LN", 0, 0), ("Mix-LN", 4, 0)]),
    ],
)
def test_gates_of_one_scheme_have_own_colours_and_one_gate_is_solid(cells: Any, found: list[Any]) -> None:
    assert looks(make_series([run(one, 1.0) for one in cells])) == found


def test_many_gates_have_colours_of_their_own() -> None:
    gates = ["none", "gpas", "tanh", "relu", "identity"]
    runs = [run(entry(gate={"init": 0.1 * i}, axes={"gate": gate}), 1.0) for i, gate in enumerate(gates)]
    series = make_series(runs)
    assert [one.colour for one in series] == [0, 1, 2, 3, 4]
    assert {one.style for one in series} == {0}
    assert [one.title for one in series][2:] == ["Pre-LN + tanh", "Pre-LN + relu", "Pre-LN + identity"]


def test_numbers_are_shaded_in_their_order_and_named() -> None:
    def sweep(rate: float, gate: str) -> CellCurve:
        return run(entry(gate=gate, optim={"lr": rate, "warmup": 1, "steps": 10}, axes={"optim.lr": rate}), 1.0)

    series = make_series([sweep(rate, gate) for rate in (0.003, 0.001, 0.002) for gate in ("none", "gpas")])
    assert [one.shade for one in series] == [1.0, 1.0, 0.0, 0.0, 0.5, 0.5]
    assert series[1].title == "Pre-LN + GPAS, optim.lr 0.003"


def test_a_cell_of_two_grids_counts_once_and_equal_titles_name_their_grid() -> None:
    one = entry()
    other = replace(entry(optim={"lr": 5e-4, "warmup": 1, "steps": 10}), grid="other")
    shared = replace(one, grid="other")
    series = make_series([run(one, 1.0), run(shared, 1.0), run(other, 2.0)])
    assert [(s.title, len(s.runs)) for s in series] == [("Pre-LN (demo)", 1), ("Pre-LN (other)", 1)]
    assert series[0].colour != series[1].colour


def test_a_setting_that_only_one_grid_names_is_in_titles_where_it_differs() -> None:
    named = replace(entry("lns", axes={"precision": "pure_bf16"}), grid="other")
    assert [one.title for one in make_series([run(entry(), 1.0), run(named, 2.0)])] == ["Pre-LN", "LNS"]
    other = entry(precision="fp32")
    titles = [one.title for one in make_series([run(other, 1.0), run(named, 2.0)])]
    assert titles == ["Pre-LN, precision fp32", "LNS, precision pure_bf16"]


def test_a_training_that_cells_with_other_stages_share_is_one_run() -> None:
    scored = replace(entry(downstream={"tasks": ["piqa"]}), axes=entry().axes)
    (series,) = make_series([run(one, 1.0, stage=one.cell.stages[0].key) for one in (entry(), scored)])
    assert len(series.runs) == 1


def test_a_title_is_printable() -> None:
    (series,) = make_series([run(entry(axes={"norm": "a\x1b[31m\nb"}), 1.0)])
    assert series.title == "a\\x1b[31m b"


def test_nonfinite_values_are_left_out_and_units_are_scaled() -> None:
    assert over_updates([(1, 5.0), (2, math.nan), (3, math.inf), (4, 3.0)], 0.5) == ((1, 2.5), (4, 1.5))


def test_layers_are_numbered_from_one_without_the_final_norm() -> None:
    of = entry(size={"like": "71m", "layers": 2}, axes={"size": "71m"})
    assert by_layer(of, {0: 1.0, 1: 2.0, 2: 9.0}) == (((1, 1.0), (2, 2.0)), 9.0)
    assert by_layer(of, {0: 1.0, 1: math.nan}) == (((1, 1.0),), None)
    assert by_layer(of, {0: 1.0, 1: 2.0, 2: math.inf})[1] is None
    # two gates a layer
    assert by_layer(of, dict(enumerate((0.1, 0.2, 0.3, 0.4)))) == (((1, 0.1), (1.5, 0.2), (2, 0.3), (2.5, 0.4)), None)


def test_the_final_norm_has_a_mean_only_if_all_runs_have_it() -> None:
    runs = [run(entry(seed=1), 1.0, final_norm=2.0), run(entry(seed=2), 1.0, final_norm=4.0)]
    (series,) = make_series(runs)
    assert series.final_norm().mean == 3.0
    (series,) = make_series([runs[0], replace(runs[1], final_norm=None)])
    assert series.final_norm() is None


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
