"""Runs become series: one for each method, with mean and spread over seeds, and a look of its own."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from report_cells import entry

from gpas_cli.grid import Entry
from gpas_cli.report.figures.series import CellCurve, Series, by_layer, make_series, over_updates


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
    assert series.final_norm().mean == 3.0  # type: ignore[union-attr]
    (series,) = make_series([runs[0], replace(runs[1], final_norm=None)])
    assert series.final_norm() is None
