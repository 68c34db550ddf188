"""Growth over depth: both laws are recovered, and neither is fitted to too few points."""

from __future__ import annotations

import math

import pytest

from gpas_cli.statistics.growth import better, exponential_evidence, growth

DEPTH = range(1, 13)


def wobble(x: int) -> float:
    return math.exp(0.05 * math.sin(7 * x))


@pytest.mark.parametrize("rate", [0.3, 0.05, -0.2])
def test_an_exponential_is_recovered(rate: float) -> None:
    points = [(x, 0.7 * math.exp(rate * x)) for x in DEPTH]
    law = better(points)
    assert law is not None
    assert (law.exponential, law.rate, law.factor, law.r_squared) == (True, *map(pytest.approx, (rate, 0.7, 1.0)))
    assert [law.at(x) for x, _ in points] == pytest.approx([y for _, y in points])
    assert exponential_evidence(points) > 0
    assert law.words == f"exponential, \N{MULTIPLICATION SIGN} {math.exp(rate):.3g} per layer, R² 1.00"


@pytest.mark.parametrize("rate", [0.5, 1.0, 2.0])
def test_a_power_law_is_recovered(rate: float) -> None:
    points = [(x, 0.7 * x**rate * wobble(x)) for x in DEPTH]
    law = better(points)
    assert law is not None
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
