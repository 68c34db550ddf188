"""The number of further seeds after which a paired t test would decide, judged by the effect and spread so far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpas_cli.report.statistics.stats import aggregate

MOST_PAIRS = 10_000  # a test that needs more is said never to decide
CONFIDENCE = 0.8  # of the interval of `Needed`
LARGEST_EFFECT = 50.0  # standard deviations; two pairs show it, and scipy is slow for much larger ones


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
    differences: Sequence[float], level: float = 0.05, power: float = 0.8, margin: float = 0.0
) -> Needed | None:
    """Return how many further pairs a two-sided t test of mean = margin needs to have `power` at `level`.

    The true mean and standard deviation are taken to be those of `differences`. None with fewer than two differences
    or without a finite spread.
    """
    if len(differences) < 2:
        return None
    summary = aggregate(differences)
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
    from scipy.special import nctdtr, stdtrit

    critical = stdtrit(pairs - 1, 1 - level / 2)
    return 1 - float(nctdtr(pairs - 1, size * math.sqrt(pairs), critical))


def _further(size: float, pairs: int, level: float, power: float) -> int | None:
    """Return how many pairs are needed beyond `pairs`; the power grows with their number."""
    low, high = 2, 2
    while t_power(size, high, level) < power:
        low = high + 1
        high *= 2
        if low > MOST_PAIRS:
            return None
    while low < high:
        middle = (low + high) // 2
        if t_power(size, middle, level) < power:
            low = middle + 1
        else:
            high = middle
    return max(0, high - pairs) if high <= MOST_PAIRS else None


def _effect_limits(size: float, pairs: int) -> tuple[float, float]:
    """Return the ends of the confidence interval of the true standardised effect, at least 0.

    They are the effects at which the observed t is at the upper or the lower quantile of its noncentral distribution.
    """
    from scipy.special import nctdtrinc

    t = size * math.sqrt(pairs)
    tail = (1 - CONFIDENCE) / 2
    ends = [float(nctdtrinc(pairs - 1, share, t)) / math.sqrt(pairs) for share in (1 - tail, tail)]
    return max(0.0, ends[0]), ends[1]
