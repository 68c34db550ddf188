"""Means, spreads and paired differences against numbers made by hand and printed tables of Student's t."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtrit

from gpas_cli.statistics.stats import aggregate, interval, mean_interval, paired, same, two_sided_p, two_sided_t

finite = st.floats(-1e6, 1e6)


def test_mean_and_sample_deviation() -> None:
    found = aggregate([2.0, 4.0, 9.0])
    assert (found.mean, found.n) == (5.0, 3)
    assert found.std == pytest.approx(math.sqrt(13))  # (9 + 1 + 16) / 2


def test_one_number_has_no_spread() -> None:
    assert aggregate([7.25]).std is None
    assert aggregate([7.25]).mean == 7.25


def test_nothing_has_no_mean() -> None:
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
    assert found is not None
    assert len({more[seed] - percentages[seed] for seed in more}) > 1
    assert (found.std, found.t, found.p, interval(found)) == (0, None, None, None)
    assert mean_interval(aggregate([0.1 + 0.2, 0.3])) is None


def test_a_difference_within_rounding_is_a_tie() -> None:
    found = paired({1: 0.1 + 0.2, 2: 50.0, 3: math.inf}, {1: 0.3, 2: 51.0, 3: 1.0})
    assert found is not None
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
def test_the_order_of_seeds_does_not_matter(values: list[float], random: object) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert aggregate(shuffled) == aggregate(values)


def test_pairs_are_made_by_seed_not_by_position() -> None:
    # Unpaired, the means are 12 and 11; seeds 1 and 2 in common give -1 and -3.
    found = paired({1: 10.0, 2: 8.0, 7: 18.0}, {2: 11.0, 1: 11.0, 3: 11.0})
    assert found is not None
    assert (found.mean, found.n, found.lower, found.higher) == (-2.0, 2, 2, 0)
    assert found.std == pytest.approx(math.sqrt(2))
    assert found.t == pytest.approx(-2.0)  # -2 / (sqrt(2) / sqrt(2))
    assert found.p == pytest.approx(1 - 2 * math.atan(2) / math.pi)  # one degree of freedom: Cauchy


def test_no_seed_in_common() -> None:
    assert paired({1: 1.0}, {2: 1.0}) is None
    assert paired({}, {}) is None


def test_a_single_pair_or_equal_differences_allow_no_test() -> None:
    for own, base in (({1: 2.0}, {1: 1.5}), ({1: 2.0, 2: 3.0}, {1: 1.0, 2: 2.0})):
        found = paired(own, base)
        assert found is not None
        assert found.t is None
        assert found.p is None


@pytest.mark.parametrize(
    ("freedom", "t"),
    [(1, 12.7062), (2, 4.30265), (3, 3.18245), (4, 2.77645), (9, 2.26216), (10, 2.22814), (30, 2.04227)],
)
def test_printed_critical_values(freedom: int, t: float) -> None:
    assert two_sided_p(t, freedom) == pytest.approx(0.05, abs=1e-6)
    assert two_sided_p(-t, freedom) == two_sided_p(t, freedom)


@pytest.mark.parametrize(("freedom", "error"), [(1, 1e-15), (2, 1e-15), (9, 1e-15), (40, 1e-15), (9_999, 2e-12)])
def test_the_error_of_p_is_that_of_its_docstring(freedom: int, error: float) -> None:
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(30):
        for t in (0.01, 0.3, 0.8, 1.1, 1.5, 2.0, 2.3, 3.0, 5.0, 12.0):
            share = freedom / (freedom + mpmath.mpf(t) ** 2)
            exact = mpmath.betainc(mpmath.mpf(freedom) / 2, 0.5, 0, share, regularized=True)
            assert abs(two_sided_p(t, freedom) - exact) < error


@given(st.floats(0, 50), st.integers(1, 40))
def test_p_is_a_probability_that_falls_with_t(t: float, freedom: int) -> None:
    assert two_sided_p(0.0, freedom) == 1
    assert 0 <= two_sided_p(t + 0.5, freedom) <= two_sided_p(t, freedom) + 1e-12 <= 1 + 1e-12


def test_the_interval_of_darwins_maize() -> None:
    """Heights of 15 pairs of plants (Darwin 1876); Fisher's Design of Experiments (1935), section 19, has t = 2.148."""
    differences = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]
    found = paired(dict(enumerate(map(float, differences))), dict.fromkeys(range(15), 0.0))
    assert found is not None
    assert found.t == pytest.approx(2.148, abs=5e-4)
    # 20.93 -+ 2.145 (the printed quantile of t with 14 degrees of freedom) * 37.74 / sqrt(15)
    assert interval(found) == pytest.approx((0.03, 41.84), abs=0.01)
    assert interval(found, level=0.99) == pytest.approx((20.933 - 2.977 * 9.746, 20.933 + 2.977 * 9.746), abs=0.02)


def test_the_interval_of_two_numbers() -> None:
    assert mean_interval(aggregate([1.0, 3.0])) == pytest.approx((2 - 12.7062, 2 + 12.7062), abs=1e-4)


@pytest.mark.parametrize("values", [[4.0], [4.0, 4.0, 4.0], [4.0, math.inf]])
def test_no_interval_without_a_spread(values: list[float]) -> None:
    assert mean_interval(aggregate(values)) is None
    found = paired(dict(enumerate(values)), dict.fromkeys(range(len(values)), 0.0))
    assert found is not None
    assert interval(found) is None


def test_a_level_is_a_probability() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        mean_interval(aggregate([1.0, 2.0]), level=95)


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=6))
def test_the_interval_and_the_p_value_agree(values: list[float]) -> None:
    found = paired(dict(enumerate(values)), dict.fromkeys(range(len(values)), 0.0))
    assert found is not None
    limits = interval(found)
    if limits is None or found.p is None or abs(found.p - 0.05) < 1e-6:
        return
    assert (found.p < 0.05) == (limits[0] > 0 or limits[1] < 0)


@pytest.mark.parametrize("freedom", [*range(1, 40), 100, 999])
@pytest.mark.parametrize("p", [0.9, 0.5, 0.2, 0.05, 0.01, 1e-4])
def test_quantiles_of_students_t_are_those_of_scipy(freedom: int, p: float) -> None:
    assert two_sided_t(p, freedom) == pytest.approx(-stdtrit(freedom, p / 2), rel=1e-10)
    assert two_sided_p(two_sided_t(p, freedom), freedom) == pytest.approx(p, rel=1e-10)
