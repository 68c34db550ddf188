"""Means, spreads, paired differences, adjusted p values and the seeds that a test needs, against published numbers."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import nctdtr, stdtrit

from gpas_cli.statistics.stats import (
    aggregate,
    better,
    exponential_evidence,
    growth,
    holm,
    mean_interval,
    needed,
    paired,
    same,
    two_sided_p,
    two_sided_t,
)

finite = st.floats(-1e6, 1e6)


def test_mean_and_sample_deviation() -> None:
    found = aggregate([2.0, 4.0, 9.0])
    assert (found.mean, found.n) == (5.0, 3)
    assert found.std == pytest.approx(math.sqrt(13))  # (9 + 1 + 16) / 2
    assert (aggregate([7.25]).mean, aggregate([7.25]).std) == (7.25, None)
    with pytest.raises(ValueError, match="no values"):
        aggregate([])


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_nonfinite_numbers_stay_visible(bad: float) -> None:
    found = aggregate([1.0, bad])
    assert not math.isfinite(found.mean)
    assert found.std is not None
    assert math.isnan(found.std)


@given(st.floats(-1e6, 1e6), st.integers(2, 7))
def test_equal_numbers_have_no_spread(value: float, n: int) -> None:
    assert aggregate([value] * n).std == 0


def test_numbers_that_are_equal_up_to_rounding_have_no_spread() -> None:
    percentages = {seed: 100 * correct / 300 for seed, correct in ((1, 151), (2, 152), (3, 163))}
    more = {seed: 100 * correct / 300 for seed, correct in ((1, 152), (2, 153), (3, 164))}
    found = paired(more, percentages)
    assert len({more[seed] - percentages[seed] for seed in more}) > 1
    assert (found.std, found.t, found.p, mean_interval(found)) == (0, None, None, None)
    assert mean_interval(aggregate([0.1 + 0.2, 0.3])) is None


def test_a_difference_within_rounding_is_a_tie() -> None:
    found = paired({1: 0.1 + 0.2, 2: 50.0, 3: math.inf}, {1: 0.3, 2: 51.0, 3: 1.0})
    assert (found.lower, found.higher) == (1, 1)
    assert same(1e-15, 0.0, 50.0)
    assert not same(1e-15, 0.0)
    assert not same(1e300, math.inf, 1e308)


@pytest.mark.parametrize("size", [1e-320, 1e-200, 1.0, 1e200, 4e307])
def test_squares_neither_overflow_nor_vanish(size: float) -> None:
    found = aggregate([size, 2 * size, 3 * size])
    assert (found.mean, found.std) == pytest.approx((2 * size, size), rel=1e-3)
    assert mean_interval(aggregate([-1e308, 1.5e308])) is None  # the ends are not finite


@given(st.lists(finite, min_size=2, max_size=8), st.randoms())
def test_the_order_of_seeds_does_not_matter(values: list[float], order: random.Random) -> None:
    shuffled = list(values)
    order.shuffle(shuffled)
    assert aggregate(shuffled) == aggregate(values)


def test_pairs_are_made_by_seed_not_by_position() -> None:
    # Unpaired, the means are 12 and 11; seeds 1 and 2 in common give -1 and -3.
    found = paired({1: 10.0, 2: 8.0, 7: 18.0}, {2: 11.0, 1: 11.0, 3: 11.0})
    assert (found.mean, found.n, found.lower, found.higher) == (-2.0, 2, 2, 0)
    assert found.std == pytest.approx(math.sqrt(2))
    assert found.t == pytest.approx(-2.0)  # -2 / (sqrt(2) / sqrt(2))
    assert found.p == pytest.approx(1 - 2 * math.atan(2) / math.pi)  # one degree of freedom: Cauchy
    assert paired({1: 1.0}, {2: 1.0}) is None


def test_a_single_pair_or_equal_differences_allow_no_test() -> None:
    for own, base in (({1: 2.0}, {1: 1.5}), ({1: 2.0, 2: 3.0}, {1: 1.0, 2: 2.0})):
        found = paired(own, base)
        assert found.t is None
        assert found.p is None


@pytest.mark.parametrize(("freedom", "error"), [(1, 1e-15), (2, 1e-15), (9, 1e-15), (40, 1e-15), (9_999, 2e-12)])
def test_the_error_of_p_is_that_of_its_docstring(freedom: int, error: float) -> None:
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(30):
        for t in (0.01, 0.3, 0.8, 1.1, 1.5, 2.0, 2.3, 3.0, 5.0, 12.0):
            share = freedom / (freedom + mpmath.mpf(t) ** 2)
            exact = mpmath.betainc(mpmath.mpf(freedom) / 2, 0.5, 0, share, regularized=True)
            assert abs(two_sided_p(t, freedom) - exact) < error


def test_the_interval_of_darwins_maize() -> None:
    """Heights of 15 pairs of plants (Darwin 1876); Fisher's Design of Experiments (1935), section 19, has t = 2.148."""
    differences = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]
    found = paired(dict(enumerate(map(float, differences))), dict.fromkeys(range(15), 0.0))
    assert found.t == pytest.approx(2.148, abs=5e-4)
    # 20.93 -+ 2.145 (the printed quantile of t with 14 degrees of freedom) * 37.74 / sqrt(15)
    assert mean_interval(found) == pytest.approx((0.03, 41.84), abs=0.01)
    assert mean_interval(found, level=0.99) == pytest.approx((20.933 - 2.977 * 9.746, 20.933 + 2.977 * 9.746), abs=0.02)


@pytest.mark.parametrize("values", [[4.0], [4.0, 4.0, 4.0], [4.0, math.inf]])
def test_no_interval_without_a_spread(values: list[float]) -> None:
    assert mean_interval(aggregate(values)) is None
    found = paired(dict(enumerate(values)), dict.fromkeys(range(len(values)), 0.0))
    assert found is not None
    assert found.interval is None


def test_the_interval_of_two_numbers() -> None:
    assert mean_interval(aggregate([1.0, 3.0])) == pytest.approx((2 - 12.7062, 2 + 12.7062), abs=1e-4)
    with pytest.raises(ValueError, match="between 0 and 1"):
        mean_interval(aggregate([1.0, 2.0]), level=95)


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=6))
def test_the_interval_and_the_p_value_agree(values: list[float]) -> None:
    found = paired(dict(enumerate(values)), dict.fromkeys(range(len(values)), 0.0))
    limits = found.interval
    if limits is None or found.p is None or abs(found.p - 0.05) < 1e-6:
        return
    assert (found.p < 0.05) == (limits[0] > 0 or limits[1] < 0)


@pytest.mark.parametrize("freedom", [*range(1, 40), 100, 999])
@pytest.mark.parametrize("p", [0.9, 0.5, 0.2, 0.05, 0.01, 1e-4])
def test_quantiles_of_students_t_are_those_of_scipy(freedom: int, p: float) -> None:
    assert two_sided_t(p, freedom) == pytest.approx(-stdtrit(freedom, p / 2), rel=1e-10)
    assert two_sided_p(two_sided_t(p, freedom), freedom) == pytest.approx(p, rel=1e-10)


MOST = 10_000


def t_power(size: float, pairs: int, level: float = 0.05) -> float:
    """Return the exact power of the two-sided paired t test in the direction of a standardised effect."""
    t = float(stdtrit(pairs - 1, 1 - level / 2))
    return 1 - float(nctdtr(pairs - 1, size * math.sqrt(pairs), t))


def pairs_needed(size: float) -> int:
    """Return the smallest number of pairs with a power of 0.8."""
    return next(n for n in range(2, MOST) if t_power(size, n) >= 0.8)


def seeds_needed(differences: list[float], **changes: float) -> int | None:
    found = needed(differences, **changes)
    return found.further


def _with_effect(size: float, pairs: int) -> list[float]:
    """Return numbers with standard deviation 1 and mean `size`."""
    raw = np.arange(pairs, dtype=float)
    return list((raw - raw.mean()) / raw.std(ddof=1) + size)


@pytest.mark.parametrize("sign", [1, -1])
def test_further_seeds(sign: int) -> None:
    """34 pairs are Cohen's number for a medium effect, as by G*Power."""
    differences = [sign * x for x in _with_effect(0.5, 4)]
    assert seeds_needed(differences) == 34 - 4
    assert seeds_needed([x + 3 for x in differences], margin=3.0) == 34 - 4
    assert seeds_needed(_with_effect(0.5, 40)) == 0


def test_a_higher_power_or_a_stricter_level_needs_more() -> None:
    differences = _with_effect(0.7, 4)
    usual = seeds_needed(differences) or 0
    assert usual < min(seeds_needed(differences, level=0.01) or 0, seeds_needed(differences, power=0.95) or 0)


@pytest.mark.parametrize("differences", [[], [1.0], [1.0, 1.0], [1.0, math.inf], [1.0, math.nan], [1.0, 1.0 + 1e-15]])
def test_nothing_to_judge_by(differences: list[float]) -> None:
    assert needed(differences) is None
    assert needed([0.0, 1e-14], scale=50.0) is None


def test_never() -> None:
    found = needed([1.0, -1.0, 0.0])
    assert (found.further, found.most) == (None, None)
    assert found.fewest == pairs_needed(1.2816 / math.sqrt(3)) - 3
    assert seeds_needed(_with_effect(0.02, 4)) is None


@pytest.mark.parametrize("spread", [1e-3, 1e-8])
def test_a_huge_effect_needs_no_more_than_two(spread: float) -> None:
    found = needed([1.0, 1.0 + spread, 1.0 - spread])
    assert (found.further, found.fewest) == (0, 0)


def test_the_interval_of_the_needed_seeds_covers() -> None:
    """In at least about 80 % of samples, the number that the true effect needs is between `fewest` and `most`."""
    truth = pairs_needed(1.0) - 5
    covered = 0
    for numbers in np.random.default_rng(5).normal(1.0, 1.0, (500, 5)):
        found = needed(list(numbers))
        assert found.fewest is not None
        covered += found.fewest <= truth and (found.most is None or truth <= found.most)
    assert covered / 500 > 0.76


@pytest.mark.parametrize("size", np.geomspace(0.06, 30.0, 60))
def test_it_is_the_smallest_number_with_the_power_or_one_less(size: float) -> None:
    further = seeds_needed(_with_effect(size, 2))
    assert further is not None
    assert pairs_needed(size) - 2 - further in (0, 1)


def test_holm_by_a_published_example() -> None:
    # From the documentation of pingouin.holm.
    found = holm([0.50, 0.003, 0.32, 0.054, 0.0003])
    assert found == pytest.approx([0.64, 0.012, 0.64, 0.162, 0.0015])


def test_equal_and_missing_p_values() -> None:
    assert holm([]) == []
    assert holm([0.03]) == [0.03]
    assert holm([0.02, 0.02]) == [0.04, 0.04]
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([None, None]) == [None, None]


def test_a_missing_result_counts_as_a_test() -> None:
    adjusted = holm([0.01, None, 0.02])
    assert adjusted == [0.03, None, 0.04]
    for late in (0.001, 0.5, 1.0):
        complete = holm([0.01, late, 0.02])
        assert all(now is None or then <= now for now, then in zip(adjusted, complete, strict=True) if then is not None)


DEPTH = range(1, 13)


def wobble(x: int) -> float:
    return math.exp(0.05 * math.sin(7 * x))


@pytest.mark.parametrize("rate", [0.3, 0.05, -0.2])
def test_an_exponential_is_recovered(rate: float) -> None:
    points = [(x, 0.7 * math.exp(rate * x)) for x in DEPTH]
    law = better(points)
    assert (law.exponential, law.rate, law.factor, law.r_squared) == (True, *map(pytest.approx, (rate, 0.7, 1.0)))
    assert [law.at(x) for x, _ in points] == pytest.approx([y for _, y in points])
    assert exponential_evidence(points) > 0
    assert law.words == f"exponential, \N{MULTIPLICATION SIGN} {math.exp(rate):.3g} per layer, R² 1.00"


@pytest.mark.parametrize("rate", [0.5, 1.0, 2.0])
def test_a_power_law_is_recovered(rate: float) -> None:
    points = [(x, 0.7 * x**rate * wobble(x)) for x in DEPTH]
    law = better(points)
    assert not law.exponential
    assert law.rate == pytest.approx(rate, abs=0.05)
    assert exponential_evidence(points) < 0
    assert law.words.startswith("power law, exponent ")


def test_both_laws_have_the_aic_of_least_squares_by_hand() -> None:
    points = [(1, 1.0), (2, 3.0), (3, 4.0), (4, 9.0)]
    power, exponential = growth(points)
    for law in (power, exponential):
        left = sum((math.log(y) - math.log(law.at(x))) ** 2 for x, y in points)
        assert law.aic == pytest.approx(4 * math.log(left / 4) + 6)
        height = sum(math.log(y) for _, y in points) / 4
        assert law.r_squared == pytest.approx(1 - left / sum((math.log(y) - height) ** 2 for _, y in points))


def test_what_has_no_law() -> None:
    assert growth([(1, 1.0), (2, 2.0), (3, 4.0)]) is None
    assert better([]) is exponential_evidence([]) is None
    with pytest.raises(ValueError, match="positive"):
        growth([(1, 0.0), (2, 1.0), (3, 1.0), (4, 1.0)])
