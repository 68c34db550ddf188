"""Tests of effects against a claimed interval agree with scipy's, with the interval, and with their error rates."""

from __future__ import annotations

import math
import random

import pytest
from scipy.stats import binomtest, ttest_1samp

from gpas_cli.report.claims.significance import sign_test, t_test

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
