"""Power laws through a few points."""

import math
import random

import pytest
from cases import cases

from gpas_cli.statistics.power_law import fit, fit_offset

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


@cases("statistics/cases.yaml")
def test_an_exact_offset_is_found(offset: float, factor: float, exponent: float) -> None:
    found = fit_offset([(x, offset + factor * x**-exponent) for x in (1e1, 1e2, 1e3, 1e4, 1e5)])
    assert found == pytest.approx(offset, abs=1e-4)


def test_an_offset_is_that_of_a_general_optimiser() -> None:
    from scipy.optimize import curve_fit

    noise = random.Random(3)
    xs = [1e6, 3e6, 1e7, 3e7, 1e8, 3e8]
    ys = [2.0 + 40 * x**-0.25 + noise.gauss(0, 0.002) for x in xs]
    theirs, _ = curve_fit(lambda x, e, a, b: e + a * x**-b, xs, ys, p0=(2, 40, 0.25), maxfev=100_000)
    assert fit_offset(list(zip(xs, ys, strict=True))) == pytest.approx(theirs[0], abs=1e-3)


@cases("statistics/cases.yaml")
def test_three_points_and_what_is_no_such_law_have_no_offset(points: list[tuple[float, float]]) -> None:
    assert fit_offset(points) is None
