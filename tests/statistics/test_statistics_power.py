"""The number of further seeds against published sample sizes and a simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gpas_cli.statistics.power import MOST_PAIRS, estimate, t_power
from gpas_cli.statistics.stats import interval, paired


@pytest.mark.parametrize(("size", "pairs"), [(0.2, 199), (0.5, 34), (0.8, 15)])
def test_published_sample_sizes(size: float, pairs: int) -> None:
    """The paired, two-sided t test at 0.05 with power 0.8 (Cohen's small, medium and large effect, as by G*Power)."""
    assert t_power(size, pairs) >= 0.8 > t_power(size, pairs - 1)


def seeds_needed(differences: list[float], **changes: float) -> int | None:
    found = estimate(differences, **changes)
    assert found is not None
    return found.further


def _with_effect(size: float, pairs: int) -> list[float]:
    """Return numbers with standard deviation 1 and mean `size`."""
    raw = np.arange(pairs, dtype=float)
    return list((raw - raw.mean()) / raw.std(ddof=1) + size)


@pytest.mark.parametrize("sign", [1, -1])
def test_further_seeds(sign: int) -> None:
    differences = [sign * x for x in _with_effect(0.5, 4)]
    assert seeds_needed(differences) == 34 - 4
    assert seeds_needed([x + 3 for x in differences], margin=3.0) == 34 - 4
    assert seeds_needed(_with_effect(0.5, 40)) == 0


def test_a_higher_power_or_a_stricter_level_needs_more() -> None:
    differences = _with_effect(0.7, 4)
    usual = seeds_needed(differences)
    strict = seeds_needed(differences, level=0.01)
    powerful = seeds_needed(differences, power=0.95)
    assert usual is not None
    assert strict is not None
    assert powerful is not None
    assert usual < min(strict, powerful)


@pytest.mark.parametrize("differences", [[], [1.0], [1.0, 1.0], [1.0, math.inf], [1.0, math.nan], [1.0, 1.0 + 1e-15]])
def test_nothing_to_judge_by(differences: list[float]) -> None:
    assert estimate(differences) is None
    assert estimate([0.0, 1e-14], scale=50.0) is None


def test_never() -> None:
    found = estimate([1.0, -1.0, 0.0])
    assert found is not None
    assert (found.further, found.most) == (None, None)
    # The noncentrality at which t = 0 is the upper decile is 1.2816, so that the effect may be 1.2816 / sqrt(3).
    assert found.fewest == 17 - 3
    assert t_power(1.2816 / math.sqrt(3), 17) > 0.8 > t_power(1.2816 / math.sqrt(3), 16)


@pytest.mark.parametrize("spread", [1e-3, 1e-6, 1e-8])
def test_a_huge_effect_needs_no_more_than_two(spread: float) -> None:
    found = estimate([1.0, 1.0 + spread, 1.0 - spread])
    assert found is not None
    assert found.further == 0
    assert found.fewest == 0


def test_the_power_is_the_share_of_intervals_that_leave_out_zero() -> None:
    random = np.random.default_rng(3)
    decided = 0
    for numbers in random.normal(1.0, 1.0, (2000, 8)):
        found = paired(dict(enumerate(numbers)), dict.fromkeys(range(8), 0.0))
        assert found is not None
        limits = interval(found)
        assert limits is not None
        decided += limits[0] > 0
    assert decided / 2000 == pytest.approx(t_power(1.0, 8), abs=0.03)


def test_the_interval_of_the_needed_seeds_covers() -> None:
    """In at least about 80 % of samples, the number that the true effect needs is between `fewest` and `most`."""
    size, pairs = 1.0, 5
    truth = next(n for n in range(2, MOST_PAIRS) if t_power(size, n) >= 0.8) - pairs
    random = np.random.default_rng(5)
    covered = 0
    for numbers in random.normal(size, 1.0, (500, pairs)):
        found = estimate(list(numbers))
        assert found is not None
        assert found.fewest is not None
        covered += found.fewest <= truth and (found.most is None or truth <= found.most)
    assert covered / 500 > 0.76


@pytest.mark.parametrize("level", [0.05, 0.01])
@pytest.mark.parametrize("power", [0.5, 0.8, 0.95])
@pytest.mark.parametrize("size", [0.03, 0.1, 0.37, 0.9, 1.7, 3.0, 9.0])
def test_it_is_the_smallest_number_with_the_power(size: float, level: float, power: float) -> None:
    further = seeds_needed(_with_effect(size, 2), level=level, power=power)
    if further is None:
        assert t_power(size, MOST_PAIRS, level) < power
    else:
        assert t_power(size, 2 + further, level) >= power
        assert further == 0 or t_power(size, 1 + further, level) < power
