"""The number of further seeds after which a paired t test would decide, judged by the effect and spread so far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from gpas_cli.statistics.noncentral_t import noncentrality_at, upper_tail
from gpas_cli.statistics.stats import aggregate, two_sided_t

MOST_PAIRS = 10_000  # a test that needs more is said never to decide
CONFIDENCE = 0.8  # of the interval of `Needed`
LARGEST_EFFECT = 50.0  # standard deviations; two pairs show it, and integrals for much larger ones take long


@dataclass(frozen=True)
class Needed:
    """Further pairs for a paired t test to reach its power: 0 for enough, None if more than MOST_PAIRS are needed.

    fewest, most: the same if the true standardised effect is at the upper or the lower end of its 80 % confidence
    interval. The interval is wide for few pairs: from three, "2 to more than 10,000" is usual.
    """

    further: int | None
    fewest: int | None
    most: int | None


def estimate(
    differences: Sequence[float], level: float = 0.05, power: float = 0.8, margin: float = 0.0, scale: float = 0.0
) -> Needed | None:
    """Return how many further pairs a two-sided t test of mean = margin needs to have `power` at `level`.

    The true mean and standard deviation are taken to be those of `differences`. None with fewer than two differences
    or without a finite spread. `scale` is that of `stats.aggregate`.
    """
    if len(differences) < 2:
        return None
    summary = aggregate(differences, scale)
    if not summary.std or not math.isfinite(summary.std):
        return None
    size = min(abs(summary.mean - margin) / summary.std, LARGEST_EFFECT)
    low, high = _effect_limits(size, summary.n)
    further = [_further(each, summary.n, level, power) for each in (size, high, low)]
    return Needed(*further)


def t_power(size: float, pairs: int, level: float = 0.05) -> float:
    """Return the power of the two-sided paired t test in the direction of a standardised effect `size` >= 0.

    It is P(T > t) of the noncentral t distribution with `pairs` - 1 degrees of freedom and noncentrality
    size * sqrt(pairs), where t is the quantile of the central one at 1 - level / 2 (Cohen 1988, chapter 2).
    """
    return upper_tail(two_sided_t(level, pairs - 1), pairs - 1, size * math.sqrt(pairs))


def _further(size: float, pairs: int, level: float, power: float) -> int | None:
    """Return how many pairs are needed beyond `pairs`; the power grows with their number."""
    if t_power(size, MOST_PAIRS, level) < power:
        return None
    low, high = _bracket(size, level, power)
    while low < high:
        middle = (low + high) // 2
        if t_power(size, middle, level) < power:
            low = middle + 1
        else:
            high = middle
    return max(0, high - pairs)


def _bracket(size: float, level: float, power: float) -> tuple[int, int]:
    """Return two numbers of pairs around the fewest that have `power`, close to those of a test of Gaussians.

    MOST_PAIRS have the power.
    """
    usual = NormalDist()
    quantile = -usual.inv_cdf(level / 2)
    near = ((quantile + usual.inv_cdf(power)) / size) ** 2 + quantile**2 / 2
    low = high = min(max(2, round(near)), MOST_PAIRS)
    width = 1
    while high < MOST_PAIRS and t_power(size, high, level) < power:
        low = high + 1
        high = min(high + width, MOST_PAIRS)
        width *= 2
    while low > 2 and t_power(size, low - 1, level) >= power:
        high = low - 1
        low = max(2, high - width)
        width *= 2
    return low, high


def _effect_limits(size: float, pairs: int) -> tuple[float, float]:
    """Return the ends of the confidence interval of the true standardised effect, at least 0.

    They are the effects at which the observed t is at the upper or the lower quantile of its noncentral distribution.
    """
    t = size * math.sqrt(pairs)
    tail = (1 - CONFIDENCE) / 2
    ends = [noncentrality_at(t, pairs - 1, share) / math.sqrt(pairs) for share in (tail, 1 - tail)]
    return max(0.0, ends[0]), ends[1]
