"""Runs become series with mean, spread and a look of their own; published losses and ours over size become laws."""

import math
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from curve_database import stand_in
from named_papers import by_paper
from report_cells import OPTIM, entry, result
from shipped import cells_of

from gpas_cli.errors import GpasError
from gpas_cli.grid import Entry
from gpas_cli.report.figures.figure import Figure, with_growth
from gpas_cli.report.figures.scaling import Scaling, fit, scaling
from gpas_cli.report.figures.series import (
    CellCurve,
    Selection,
    Series,
    by_layer,
    curves,
    has_labels,
    make_series,
    over_updates,
    ratios,
)
from gpas_cli.report.quantities import quantity
from gpas_cli.report.recorded import Recorded, Result
from gpas_cli.spec.cost import flops_per_token, parameters


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


def test_one_gate_alone_is_drawn_solid() -> None:
    assert looks(make_series([run(entry(), 1.0), run(entry("mix"), 1.0)]))[0][2] == 0


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
    assert series.final_norm() is not None
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


TABLE2 = cells_of("table2")
SIZES = ("71m", "130m", "250m")


def exponents(made: Scaling, over: str) -> dict[tuple[str, str], float | None]:
    return {(law.source, law.method): law.law.exponent if law.law else None for law in made.laws if law.over == over}


def test_published_perplexities_of_table_2_are_fitted() -> None:
    made = scaling(TABLE2, Recorded(tuple(TABLE2)), by_paper({"gpas": "table2_perplexity"}))
    assert [panel.x for panel in made.panels] == ["parameters N", "training FLOPs C"]
    laws = {law.method: law for law in made.laws if law.over == "parameters"}
    assert len(laws) == 11
    # Post-LN diverged at 250M and 1B, DeepNorm at 1B.
    assert {name: law.sizes for name, law in laws.items() if law.sizes != 5} == {"Post-LN": 3, "DeepNorm": 4}
    pre = next(line for line in made.panels[0].lines if line.title == "Pre-LN")
    assert [round(math.exp(loss), 2) for _, loss in pre.points] == [34.23, 26.75, 21.77, 21.35, 16.92]
    x = [math.log(n) for n, _ in pre.points]
    y = [math.log(loss) for _, loss in pre.points]
    slope = sum((a - sum(x) / 5) * (b - sum(y) / 5) for a, b in zip(x, y, strict=True))
    slope /= sum((a - sum(x) / 5) ** 2 for a in x)
    assert laws["Pre-LN"].law is not None
    assert laws["Pre-LN"].law.exponent == pytest.approx(-slope)
    assert len(made.missing) == len(TABLE2)


def ours(sizes: tuple[str, ...] = SIZES) -> Scaling:
    """Two seeds of Pre-LN at each size: losses 100 N^-0.2, give or take one percent."""
    entries = [entry("pre", "none", seed, size) for size in sizes for seed in (1, 2)]
    results: dict[str, Result] = {}
    for one in entries:
        loss = 100 * parameters(one.cell) ** -0.2 * (1.01 if one.axes["seed"] == 1 else 0.99)
        (key, made), *_ = result(one).items()
        results[key] = Result(**{**vars(made), "metrics": {"loss": loss, "train_tokens": 1e9}})
    return scaling(entries, Recorded(tuple(entries), results=results), {})


def test_our_losses_are_means_over_seeds_at_the_recorded_tokens() -> None:
    made = ours()
    assert exponents(made, "parameters") == {("ours", "Pre-LN"): pytest.approx(0.2)}
    points, law = made.panels[1].lines
    assert (points.form, points.in_legend, law.title[:8]) == ("points", False, "Pre-LN: ")
    first = entry("pre", "none", 1, "71m").cell
    assert points.points[0][0] == pytest.approx(flops_per_token(first) * 1e9)
    assert len(law.band) > 10
    assert made.missing == ()


def test_schemes_of_ones_own_have_colours_of_their_own() -> None:
    entries = [entry("pre"), replace(entry("lns"), axes={**entry("lns").axes, "norm": "mine"})]
    results = {key: made for one in entries for key, made in result(one, metrics={"loss": 3.0}).items()}
    made = scaling(entries, Recorded(tuple(entries), results=results), {})
    assert len({line.colour for line in made.panels[0].lines}) == 2


def test_two_sizes_have_no_law_and_say_so() -> None:
    made = ours(("71m", "130m"))
    assert exponents(made, "flops") == {("ours", "Pre-LN"): None}
    assert made.laws[0].words == "2 sizes; a power law needs 3"
    assert [(line.form, line.in_legend) for line in made.panels[0].lines] == [("points", True)]
    assert made.panels[0].note == "no law: fewer than 3 sizes"


def test_without_results_and_published_numbers_there_is_no_panel() -> None:
    entries = [entry()]
    made = scaling(entries, Recorded(tuple(entries)), {})
    assert (made.panels, made.laws, len(made.missing)) == ((), (), 1)


XS = (1e6, 1e7, 1e8, 1e9)


def test_an_exact_law_is_found_without_uncertainty() -> None:
    law = fit([(x, 20 * x**-0.1) for x in XS])
    assert (law.factor, law.exponent) == (pytest.approx(20), pytest.approx(0.1))
    assert law.interval == (pytest.approx(0.1), pytest.approx(0.1))
    assert law.band(1e10) == (pytest.approx(2), pytest.approx(2))


def test_the_interval_is_that_of_simple_regression() -> None:
    """Three points at log x = 0, 1, 2 with one off by 3 e: the residuals are -e/2, e, -e/2 times 1."""
    error = 0.01
    law = fit([(1.0, 1.0), (math.e, math.exp(1.5 * error)), (math.e**2, 1.0)])
    assert law.exponent == pytest.approx(0)
    assert law.scatter == pytest.approx(error * math.sqrt(1.5))
    # t with one degree of freedom: 12.706; sum of squares of log x: 2.
    assert law.interval[1] == pytest.approx(12.706 * error * math.sqrt(1.5 / 2), rel=1e-4)


def test_intervals_contain_the_true_exponent_in_95_of_100_cases() -> None:
    noise = random.Random(7)
    inside = 0
    for _ in range(1000):
        law = fit([(x, 5 * x**-0.07 * math.exp(noise.gauss(0, 0.02))) for x in XS])
        inside += law.interval[0] <= 0.07 <= law.interval[1]
    assert 930 <= inside <= 970


def test_the_band_is_narrowest_in_the_middle() -> None:
    law = fit([(1e6, 3.0), (1e7, 2.4), (1e8, 2.1), (1e9, 1.7)])
    widths = [law.band(x)[1] / law.band(x)[0] for x in (1e6, 10**7.5, 1e9)]
    assert widths[1] < widths[0] == pytest.approx(widths[2])


@pytest.mark.parametrize("points", [[], [(1.0, 2.0)], [(1.0, 2.0), (2.0, 1.0)], [(1.0, 2.0), (2.0, 1.0), (2.0, 1.1)]])
def test_too_few_sizes_have_no_law(points: list[tuple[float, float]]) -> None:
    assert fit(points) is None


def test_numbers_that_have_no_logarithm_are_refused() -> None:
    with pytest.raises(ValueError, match="positive"):
        fit([(1.0, 2.0), (2.0, 0.0), (3.0, 1.0)])


def figure(*values: list[float], layers: int = 6) -> Figure:
    """Return a figure with a series of two equal seeds for each list of values by layer."""
    schemes = ["pre", "lns", "post"]
    runs = [
        CellCurve(entry(scheme, seed=seed), "seed", tuple(enumerate(own, 1)))
        for scheme, own in zip(schemes, values, strict=False)
        for seed in (1, 2)
    ]
    return Figure("", "layer", "variance", make_series(runs), log=True, layers=layers)


def test_each_series_has_the_law_that_fits_it_better_in_its_colour() -> None:
    depth = range(1, 7)
    made = with_growth(figure([2 * math.exp(0.2 * n) for n in depth], [3 * n**1.5 for n in depth]))
    assert [line.title for line in made.lines] == [
        "Pre-LN: exponential, \N{MULTIPLICATION SIGN} 1.22 per layer, R² 1.00",
        "LNS: power law, exponent 1.5, R² 1.00",
    ]
    assert [line.colour for line in made.lines] == [series.colour for series in made.series]
    for line, series in zip(made.lines, made.series, strict=True):
        assert [y for _, y in line.points] == pytest.approx([y for _, y in series.runs[0].points])
    assert "lower AIC" in made.note


def test_values_without_a_law() -> None:
    made = with_growth(figure([1.0, 0.0, 1.0, 2.0, 3.0, 4.0]))
    assert made.lines == ()
    assert made.note.startswith("no law of growth")
    assert with_growth(figure([1.0, 2.0, 3.0])).lines == ()


def test_over_updates_there_is_no_depth() -> None:
    with pytest.raises(GpasError, match="--growth fits a law over layers"):
        with_growth(figure([1.0, 2.0, 3.0, 4.0], layers=0))
