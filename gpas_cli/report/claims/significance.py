"""Tests of whether the mean effect over seeds lies inside an open interval (low, high), or outside of it.

t          Student's t test against the nearest bound. `inside`: against every finite bound, the larger p counts, as
           in the two one-sided tests of equivalence. `outside`: beyond some bound, with a Bonferroni factor if there
           are two. p values are two-sided, so that p < 0.05 exactly if the 95 % interval is inside (or outside).
sign       the exact sign test, where a run diverged: its effect is infinite, so that only the side counts.
each-run   no test: the claim is about every run.

What equals a bound, or each other, up to rounding of the compared numbers is a tie; their largest is `scale`. NaN is no
evidence and is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpas_cli.statistics.stats import aggregate, mean_interval, same, two_sided_p

SIGN = "sign"


@dataclass(frozen=True)
class Assessed:
    """A test by name, two-sided p values for lying inside and outside the bounds (None without a test), the mean effect
    and its interval. `inside` and `outside` are at most 1 together with what speaks against them."""

    name: str
    inside: float | None = None
    outside: float | None = None
    mean: float | None = None
    interval: tuple[float, float] | None = None

    @property
    def p(self) -> float | None:
        """The p value of the side on which the effect is."""
        return None if self.inside is None or self.outside is None else min(self.inside, self.outside)


def t_test(effects: Sequence[float], low: float, high: float, level: float, scale: float = 0.0) -> Assessed:
    """Test finite effects. Without a spread (one effect, or equal ones) there is a mean but no p value."""
    known = [effect for effect in effects if not math.isnan(effect)]
    if not known:
        return Assessed("t")
    summary = aggregate(known, scale)
    covered = mean_interval(summary, level)
    if not summary.std:
        return Assessed("t", mean=summary.mean, interval=covered)
    above, below = 1.0, 1.0  # two-sided p values for the mean being above low, and below high
    beneath, beyond = 1.0, 1.0  # and for being below low, and above high
    bounds = [bound for bound in (low, high) if math.isfinite(bound)]
    for bound in bounds:
        t = (summary.mean - bound) / summary.std * math.sqrt(summary.n)
        p = two_sided_p(t, summary.n - 1)
        over, under = (p, 1.0) if t > 0 else (1.0, p)
        if bound == low:
            above, beneath = over, under
        else:
            below, beyond = under, over
    inside = max(p for p, bound in ((above, low), (below, high)) if math.isfinite(bound)) if bounds else 0.0
    return Assessed("t", inside, min(1.0, min(beneath, beyond) * len(bounds)), summary.mean, covered)


def sign_test(effects: Sequence[float], low: float, high: float, scale: float = 0.0) -> Assessed:
    """Test effects of which some are infinite, by the number that lies inside; ties with a bound are left out."""
    sides = [side for effect in effects if (side := is_inside(effect, low, high, scale)) is not None]
    inside, n = sum(sides), len(sides)
    return Assessed(SIGN, _two_sided(inside, n), _two_sided(n - inside, n))


def is_inside(effect: float, low: float, high: float, scale: float) -> bool | None:
    """Return whether an effect lies in (low, high), None for NaN and for a finite one that ties with a bound."""
    if math.isnan(effect) or (math.isfinite(effect) and (same(effect, low, scale) or same(effect, high, scale))):
        return None
    return low < effect < high or (math.isinf(effect) and effect in (low, high))


def _two_sided(successes: int, n: int) -> float:
    """Return the two-sided p of at least `successes` of `n` at probability 1/2."""
    tail = sum(math.comb(n, k) for k in range(successes, n + 1))
    return min(1.0, 2 * tail / float(2**n))
