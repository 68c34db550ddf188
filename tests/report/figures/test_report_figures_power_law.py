"""Power laws: the exponent and its interval, against a closed form and by simulation."""

from __future__ import annotations

import math
import random

import pytest

from gpas_cli.report.figures.scaling import fit

XS = (1e6, 1e7, 1e8, 1e9)


def test_an_exact_law_is_found_without_uncertainty() -> None:
    law = fit([(x, 20 * x**-0.1) for x in XS])
    assert law is not None
    assert (law.factor, law.exponent) == (pytest.approx(20), pytest.approx(0.1))
    assert law.interval == (pytest.approx(0.1), pytest.approx(0.1))
    assert law.band(1e10) == (pytest.approx(2), pytest.approx(2))


def test_the_interval_is_that_of_simple_regression() -> None:
    """Three points at log x = 0, 1, 2 with one off by 3 e: the residuals are -e/2, e, -e/2 times 1."""
    error = 0.01
    law = fit([(1.0, 1.0), (math.e, math.exp(1.5 * error)), (math.e**2, 1.0)])
    assert law is not None
    assert law.exponent == pytest.approx(0)
    assert law.scatter == pytest.approx(error * math.sqrt(1.5))
    # t with one degree of freedom: 12.706; sum of squares of log x: 2.
    assert law.interval[1] == pytest.approx(12.706 * error * math.sqrt(1.5 / 2), rel=1e-4)


def test_intervals_contain_the_true_exponent_in_95_of_100_cases() -> None:
    noise = random.Random(7)
    inside = 0
    for _ in range(1000):
        law = fit([(x, 5 * x**-0.07 * math.exp(noise.gauss(0, 0.02))) for x in XS])
        assert law is not None
        inside += law.interval[0] <= 0.07 <= law.interval[1]
    assert 930 <= inside <= 970


def test_the_band_is_narrowest_in_the_middle() -> None:
    law = fit([(1e6, 3.0), (1e7, 2.4), (1e8, 2.1), (1e9, 1.7)])
    assert law is not None
    widths = [law.band(x)[1] / law.band(x)[0] for x in (1e6, 10**7.5, 1e9)]
    assert widths[1] < widths[0] == pytest.approx(widths[2])


@pytest.mark.parametrize("points", [[], [(1.0, 2.0)], [(1.0, 2.0), (2.0, 1.0)], [(1.0, 2.0), (2.0, 1.0), (2.0, 1.1)]])
def test_too_few_sizes_have_no_law(points: list[tuple[float, float]]) -> None:
    assert fit(points) is None


def test_numbers_that_have_no_logarithm_are_refused() -> None:
    with pytest.raises(ValueError, match="positive"):
        fit([(1.0, 2.0), (2.0, 0.0), (3.0, 1.0)])
