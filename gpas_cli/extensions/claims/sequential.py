"""Evidence about a mean effect over seeds that holds however the number of seeds is chosen.

A fixed-sample p value is wrong once seeds are added until it is small. Here the seeds may be added, and stopped, in any
way that looks at the results, because the probability of an error is bounded over all numbers of seeds at once.

The effects x_1, x_2, ... of the seeds are assumed independent and Gaussian with one unknown mean and one unknown
variance. For each candidate m of the mean,

    E_n(m) = sqrt(c^2 / (n + c^2)) * ((n + c^2) Q / ((n + c^2) Q - S^2)) ^ (n / 2)

with S the sum and Q the sum of squares of x_i - m, and c = 1 / EFFECT_SCALE, is a martingale with mean 1 if m is the
true mean (Wang and Ramdas, "Anytime-valid t-tests and confidence sequences for Gaussian means with unknown variance",
Sequential Analysis 2025, Theorem 4.9): the likelihood ratio of the scale-invariant statistics, mixed over
standardised effects ~ N(0, EFFECT_SCALE^2). By Ville's inequality, E_n(m) ever reaches 1 / level with a probability of
at most `level`. The candidates that it has not ruled out form a confidence sequence: an interval for each n, and all of
them contain the true mean with a probability of at least 1 - level.

All decisions are read off this one interval. A claim that the mean lies in (low, high) is supported when the interval
lies in it, and contradicted when the interval lies outside. Both kinds of error are then the same event, the interval
missing the true mean, so that the level is not divided between them. E_n(m) grows with the distance of m from the
sample mean; therefore a one-sided claim needs no worse candidate than its bound.

The argument is about the event that E_n(m) ever reaches 1 / level. It does not depend on why seeds were added,
in which order parts of a claim got theirs, or which information was used, as long as the next seed's effect is
independent of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpas_cli.statistics.stats import ROUNDING, aggregate, holm, unit
from gpas_cli.structure import Frozen

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]

SUPPORTED = "supported"
CONTRADICTED = "contradicted"
UNDECIDED = "undecided"

EFFECT_SCALE = 2.0  # standard deviations; chosen for effects of 1 to 3 of them and about eight seeds


class Evidence(Frozen):
    """What `n` finite effects say about the claim that their mean lies in an open interval.

    inside, outside: e-values, the factors by which the effects speak for a mean inside and beyond the bounds; at most
    1 / level means undecided at `level`.
    """

    n: int
    inside: float = 1.0
    outside: float = 1.0
    interval: tuple[float, float] | None = None  # the confidence sequence at its n, None while it is unbounded

    @property
    def p_inside(self) -> float:
        """The p value, valid at every number of seeds, of the null hypothesis that the mean is not inside."""
        return min(1.0, 1 / self.inside)

    @property
    def p_outside(self) -> float:
        """The p value, valid at every number of seeds, of the null hypothesis that the mean is inside."""
        return min(1.0, 1 / self.outside)


def evidence(
    effects: Sequence[float], low: float = -math.inf, high: float = math.inf, level: float = 0.05, scale: float = 0.0
) -> Evidence:
    """Return the evidence of `effects`, in the order of the seeds, for a mean in (low, high).

    The effect of a run that diverged is infinite. It has no place in a mean and is left out, and it rules out a
    decision for the other side: with an effect of +inf, the mean is never said to be below a bound. This makes
    decisions rarer and errors no more likely. NaN is left out. `scale`: as for `stats.aggregate`.
    """
    import numpy as np

    finite = [each for each in effects if math.isfinite(each)]
    if not finite:
        return Evidence(0)
    one = unit(max(map(abs, filter(math.isfinite, (*finite, low, high, scale)))))
    inside, outside = log_evidence(np.array(finite) / one, low / one, high / one, scale / one)
    can_support, can_contradict = possible(effects, low, high)
    return Evidence(
        n=len(finite),
        inside=_exp(inside[-1]) if can_support else 1.0,
        outside=_exp(outside[-1]) if can_contradict else 1.0,
        interval=interval(finite, level, scale),
    )


def possible(effects: Sequence[float], low: float, high: float) -> tuple[bool, bool]:
    """Return whether the mean may be said to be inside (low, high), and outside, in view of infinite effects."""
    above = -math.inf not in effects  # whether it may be said to be above a bound
    below = math.inf not in effects
    inside = (above or low == -math.inf) and (below or high == math.inf)
    outside = (below and low != -math.inf) or (above and high != math.inf)
    return inside, outside


def decide(parts: Sequence[Evidence], level: float = 0.05) -> tuple[str, tuple[str, ...]]:
    """Return the verdict on a claim and on each of its parts: "supported", "contradicted" or "undecided".

    The claim says that every part holds. It is supported when each part is, at `level` each (an intersection-union
    test: for a false claim to be supported, its false part must be). It is contradicted when one part is, by Holm's
    procedure over the p values of all parts, so that a true claim is contradicted with a probability of at most
    `level`. Holm's procedure takes the largest e-values so far, which keeps its guarantee when parts have different
    numbers of seeds; an average of e-values would not (Tavyrikov, Goeman and de Heide 2025, "Carefree multiple testing
    with e-processes").
    """
    contradicted = [p is not None and p <= level for p in holm([part.p_outside for part in parts])]
    verdicts = tuple(
        CONTRADICTED if outside else SUPPORTED if part.p_inside <= level else UNDECIDED
        for part, outside in zip(parts, contradicted, strict=True)
    )
    if CONTRADICTED in verdicts:
        return CONTRADICTED, verdicts
    return (SUPPORTED if verdicts and set(verdicts) == {SUPPORTED} else UNDECIDED), verdicts


def log_evidence(numbers: Numbers, low: float, high: float, scale: float = 0.0) -> tuple[Numbers, Numbers]:
    """Return the logarithms of the largest e-values so far for a mean inside and beyond (low, high), at least 0.

    `numbers` has shape (..., n), with the seeds along the last axis; so have both results. `scale`: as in `log_e`.
    """
    import numpy as np

    scales = np.maximum(np.maximum.accumulate(np.abs(numbers), axis=-1), scale)
    means = np.cumsum(numbers, axis=-1) / np.arange(1, numbers.shape[-1] + 1)
    inside = np.full(numbers.shape, math.inf)
    outside = np.zeros(numbers.shape)
    for bound, sign in ((low, 1), (high, -1)):
        if math.isfinite(bound):
            ruled_out = log_e(numbers - bound, scales)
            is_inside = sign * (means - bound) > 0
            inside = np.minimum(inside, _largest(np.where(is_inside, ruled_out, 0.0)))
            outside = np.maximum(outside, _largest(np.where(is_inside, 0.0, ruled_out)))
    return inside, outside


def log_e(numbers: Numbers, scale: Numbers | float = 0.0) -> Numbers:
    """Return log E_n(0) after each of `numbers`, shape (..., n). Equal numbers are no evidence: they have no spread.

    `scale`: for each of them or for all, as for `stats.aggregate`.
    """
    import numpy as np

    n = np.arange(1, numbers.shape[-1] + 1)
    precision = EFFECT_SCALE**-2
    total = np.cumsum(numbers, axis=-1)
    squares = np.cumsum(numbers * numbers, axis=-1)
    from_first = numbers - numbers[..., :1]  # so that the spread is not the small difference of large sums
    spread = np.cumsum(from_first * from_first, axis=-1) - np.cumsum(from_first, axis=-1) ** 2 / n
    usable = spread > (n - 1) * (ROUNDING * np.maximum(np.maximum.accumulate(np.abs(numbers), axis=-1), scale)) ** 2
    share = np.where(usable, total * total / ((n + precision) * np.where(usable, squares, 1.0)), 0.0)
    found = 0.5 * np.log(precision / (n + precision)) - n / 2 * np.log1p(-share)
    return np.where(usable, found, 0.0)


def interval(numbers: Sequence[float], level: float = 0.05, scale: float = 0.0) -> tuple[float, float] | None:
    """Return the confidence sequence of the mean at its last number: the intersection of the intervals so far.

    None while every interval is unbounded, which with few seeds is usual, or if the intersection is empty.
    """
    low, high = -math.inf, math.inf
    for n in range(2, len(numbers) + 1):
        mean, half = _candidates(numbers[:n], level, scale)
        low = max(low, mean - half)
        high = min(high, mean + half)
    return (low, high) if math.isfinite(low) and low <= high else None


def fewest(level: float) -> int:
    """Return the smallest number of seeds with which a decision at `level` is possible, at best."""
    precision = EFFECT_SCALE**-2
    n = 2
    while 0.5 * math.log(precision / (n + precision)) + n / 2 * math.log1p(n / precision) < -math.log(level):
        n += 1
    return n


def _candidates(numbers: Sequence[float], level: float, scale: float) -> tuple[float, float]:
    """Return the mean and half the width of {m: E_n(m) < 1 / level}."""
    summary = aggregate(numbers, scale)
    n = summary.n
    precision = EFFECT_SCALE**-2
    # E_n(m) < 1 / level  <=>  S^2 < share * Q, where S = n (mean - m) and Q = (n - 1) std^2 + n (mean - m)^2
    share = (n + precision) * (1 - (level**2 * precision / (n + precision)) ** (1 / n))
    if share >= n or not summary.std:
        return summary.mean, math.inf
    return summary.mean, summary.std * math.sqrt((n - 1) * share / (n * (n - share)))


def _largest(logs: Numbers) -> Numbers:
    import numpy as np

    return np.maximum(np.maximum.accumulate(logs, axis=-1), 0.0)


def _exp(log: float) -> float:
    """Return e^log, at most 1e300 so that it remains a number in JSON."""
    return math.exp(min(float(log), math.log(1e300)))
