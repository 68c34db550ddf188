"""Tests of effects against a claimed interval agree with scipy's, with the interval, and with their error rates."""

from __future__ import annotations

import math
import random

import pytest
from scipy.stats import binomtest, ttest_1samp

from gpas_cli.report.claims.evaluate import is_inside, sign_test, t_test

INF = math.inf
EFFECTS = [-0.62, -0.41, -0.55, -0.48]


@pytest.mark.parametrize("bound", [0.0, -0.4, -0.6])
def test_one_bound_is_the_two_sided_t_test(bound: float) -> None:
    p = float(ttest_1samp(EFFECTS, bound).pvalue)
    below = t_test(EFFECTS, -INF, bound, 0.95)
    above = t_test(EFFECTS, bound, INF, 0.95)
    assert below.p == above.p == pytest.approx(p)
    mean_is_below = sum(EFFECTS) / 4 < bound
    assert (below.inside, below.outside) == ((pytest.approx(p), 1) if mean_is_below else (1, pytest.approx(p)))
    assert (above.inside, above.outside) == (below.outside, below.inside)


@pytest.mark.parametrize(("low", "high"), [(-INF, 0.0), (-0.3, INF), (-0.7, -0.3), (-0.52, -0.5), (0.1, 0.2)])
def test_it_decides_exactly_where_the_interval_does(low: float, high: float) -> None:
    draw = random.Random(7)
    for _ in range(300):
        effects = [draw.gauss(-0.5, 0.2) for _ in range(draw.randint(2, 6))]
        tested = t_test(effects, low, high, 0.95)
        start, end = tested.interval
        assert (tested.inside < 0.05) == (low < start and end < high)
        if math.isinf(low) or math.isinf(high):
            assert (tested.outside < 0.05) == (end < low or high < start)
        elif tested.outside < 0.05:  # with a factor of two for the two bounds
            assert end < low or high < start


def test_without_a_spread_there_is_no_p_value() -> None:
    for effects in ([-1.0], [-1.0, -1.0, -1.0]):
        tested = t_test(effects, -INF, 0.0, 0.95)
        assert (tested.p, tested.mean, tested.interval) == (None, -1.0, None)


def test_rounding_is_no_spread() -> None:
    """One more correct answer of 300 for both seeds, in percent: the differences differ in their last digits."""
    tested = t_test([0.3333333333333357, 0.3333333333333286], 0.0, INF, 0.95)
    assert (tested.p, tested.interval) == (None, None)
    draw = random.Random(3)
    for _ in range(2000):
        pairs = [(100 * (k + 1) / 300, 100 * k / 300) for k in draw.sample(range(299), 2)]
        effects = [own - base for own, base in pairs]
        for low, high in ((0.0, INF), (-INF, 0.0), (0.0, 1.0)):
            assert t_test(effects, low, high, 0.95, scale=max(pairs[0])).p is None


def test_a_difference_that_is_rounding_ties_with_its_bound() -> None:
    tied = [7e-15] * 6
    assert sign_test([*tied, INF], 0.0, INF, scale=50.0) == sign_test([INF], 0.0, INF)
    assert is_inside(7e-15, 0.0, INF, 50.0) is None
    assert is_inside(7e-15, 0.0, INF, 1e-14) is True
    assert (is_inside(INF, 0.0, INF, 50.0), is_inside(-INF, 0.0, INF, 50.0)) == (True, False)


def test_nan_is_no_evidence() -> None:
    nan = math.nan
    assert (sign_test([nan] * 6, -INF, 0.0).inside, sign_test([nan] * 6, -INF, 0.0).outside) == (1, 1)
    assert sign_test([nan, -INF, -1.0], -INF, 0.0) == sign_test([-INF, -1.0], -INF, 0.0)
    assert t_test([nan, *EFFECTS], -INF, 0.0, 0.95) == t_test(EFFECTS, -INF, 0.0, 0.95)
    assert t_test([nan], -INF, 0.0, 0.95).p is None


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_effects_of_any_size_are_tested(size: float) -> None:
    tested = t_test([size * effect for effect in EFFECTS], -INF, 0.0, 0.95)
    assert tested.p == pytest.approx(t_test(EFFECTS, -INF, 0.0, 0.95).p)


@pytest.mark.parametrize(("effects", "k"), [([-INF] * 6, 6), ([-INF, -1, -1, -2, 1], 4), ([INF, 1, 1], 0)])
def test_diverged_runs_are_counted_by_sign(effects: list[float], k: int) -> None:
    tested = sign_test(effects, -INF, 0.0)
    n = len(effects)
    assert tested.inside == pytest.approx(min(1, 2 * binomtest(k, n, alternative="greater").pvalue))
    assert tested.outside == pytest.approx(min(1, 2 * binomtest(n - k, n, alternative="greater").pvalue))


def test_a_tie_with_the_bound_is_left_out_of_the_sign_test() -> None:
    assert sign_test([0.0, -INF, -1], -INF, 0.0) == sign_test([-INF, -1], -INF, 0.0)


@pytest.mark.parametrize(("low", "high", "mean"), [(-INF, 0.0, 0.0), (-0.5, 0.5, 0.5), (-0.5, 0.5, -0.5)])
def test_a_true_null_is_rejected_in_either_direction_no_more_often_than_said(
    low: float, high: float, mean: float
) -> None:
    draw = random.Random(11)
    runs = 4000
    tested = [t_test([draw.gauss(mean, 1) for _ in range(3)], low, high, 0.95) for _ in range(runs)]
    slack = 3 * math.sqrt(0.025 * 0.975 / runs)
    assert sum(one.inside <= 0.05 for one in tested) / runs <= 0.025 + slack
    assert sum(one.outside <= 0.05 for one in tested) / runs <= 0.025 + slack
