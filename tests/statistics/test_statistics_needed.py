"""The number of further seeds against the noncentral t distribution, which it approximates."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import nctdtr, stdtrit

from gpas_cli.statistics.stats import needed

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
    assert found is not None
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
    assert found is not None
    assert (found.further, found.most) == (None, None)
    assert found.fewest == pairs_needed(1.2816 / math.sqrt(3)) - 3
    assert seeds_needed(_with_effect(0.02, 4)) is None


@pytest.mark.parametrize("spread", [1e-3, 1e-8])
def test_a_huge_effect_needs_no_more_than_two(spread: float) -> None:
    found = needed([1.0, 1.0 + spread, 1.0 - spread])
    assert found is not None
    assert (found.further, found.fewest) == (0, 0)


def test_the_interval_of_the_needed_seeds_covers() -> None:
    """In at least about 80 % of samples, the number that the true effect needs is between `fewest` and `most`."""
    truth = pairs_needed(1.0) - 5
    covered = 0
    for numbers in np.random.default_rng(5).normal(1.0, 1.0, (500, 5)):
        found = needed(list(numbers))
        assert found is not None
        assert found.fewest is not None
        covered += found.fewest <= truth and (found.most is None or truth <= found.most)
    assert covered / 500 > 0.76


@pytest.mark.parametrize("size", np.geomspace(0.06, 30.0, 60))
def test_it_is_the_smallest_number_with_the_power_or_one_less(size: float) -> None:
    further = seeds_needed(_with_effect(size, 2))
    assert further is not None
    assert pairs_needed(size) - 2 - further in (0, 1)
