"""The noncentral t distribution against scipy's."""

from __future__ import annotations

import math

import pytest
from scipy.special import nctdtr, stdtrit

from gpas_cli.statistics.noncentral_t import noncentrality_at, upper_tail
from gpas_cli.statistics.stats import two_sided_p

FREEDOMS = (1, 2, 3, 4, 7, 9, 20, 99, 1000, 9999)
SIZES = (0.0, 0.02, 0.3, 0.8, 1.4, 2.0, 3.0, 7.0, 50.0)  # in standard deviations


@pytest.mark.parametrize("freedom", FREEDOMS)
@pytest.mark.parametrize("level", [0.2, 0.05, 0.01, 0.001])
def test_the_tail_is_that_of_scipy(freedom: int, level: float) -> None:
    t = float(stdtrit(freedom, 1 - level / 2))
    for size in SIZES:
        shift = size * math.sqrt(freedom + 1)
        assert upper_tail(t, freedom, shift) == pytest.approx(1 - float(nctdtr(freedom, shift, t)), abs=1e-10)


@pytest.mark.parametrize("freedom", FREEDOMS)
@pytest.mark.parametrize("t", [0.0, 0.7, 2.0, 5.0])
def test_without_noncentrality_it_is_students_t(freedom: int, t: float) -> None:
    assert upper_tail(t, freedom, 0.0) == pytest.approx(two_sided_p(t, freedom) / 2, abs=1e-10)


@pytest.mark.parametrize("freedom", FREEDOMS)
@pytest.mark.parametrize("share", [0.005, 0.1, 0.5, 0.9, 0.995])
def test_the_noncentrality_has_the_tail(freedom: int, share: float) -> None:
    for size in SIZES:
        t = size * math.sqrt(freedom + 1)
        found = noncentrality_at(t, freedom, share)
        assert upper_tail(t, freedom, found) == pytest.approx(share, abs=1e-10)
