"""Mean, spread and paired differences over seeds. Few numbers, so no numpy; sums are exact (`math.fsum`)."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Aggregate:
    """`std` is the sample standard deviation (n - 1), None for a single number."""

    mean: float
    std: float | None
    n: int


@dataclass(frozen=True)
class Paired:
    """Differences own - base over the seeds that both have.

    `lower`: in how many seeds own is lower. `t` and the two-sided `p` of the paired t test are None with fewer than two
    pairs or when all differences are equal.
    """

    mean: float
    std: float | None
    n: int
    lower: int
    higher: int
    t: float | None
    p: float | None


def aggregate(values: Sequence[float]) -> Aggregate:
    """Mean and sample standard deviation. Raises ValueError for no values; not finite in, not finite out."""
    if not values:
        raise ValueError("no values")
    if not all(map(math.isfinite, values)):
        total = sum(values)
        return Aggregate(total, None if len(values) == 1 else math.nan, len(values))
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return Aggregate(mean, None, 1)
    # A mean of equal numbers may be off by one rounding; their spread is still nothing.
    squares = 0.0 if len(set(values)) == 1 else math.fsum((v - mean) ** 2 for v in values)
    return Aggregate(mean, math.sqrt(squares / (len(values) - 1)), len(values))


def paired(own: Mapping[Hashable, float], base: Mapping[Hashable, float]) -> Paired | None:
    """The paired differences of two methods by seed, None where no seed has both."""
    seeds = [seed for seed in own if seed in base]
    if not seeds:
        return None
    differences = [own[seed] - base[seed] for seed in seeds]
    s = aggregate(differences)
    t = s.mean / (s.std / math.sqrt(s.n)) if s.std and math.isfinite(s.std) else None
    return Paired(
        mean=s.mean,
        std=s.std,
        n=s.n,
        lower=sum(d < 0 for d in differences),
        higher=sum(d > 0 for d in differences),
        t=t,
        p=None if t is None else two_sided_p(t, s.n - 1),
    )


def two_sided_p(t: float, freedom: int) -> float:
    """P(|T| >= |t|) of Student's t with `freedom` >= 1 degrees of freedom: the finite series for whole degrees
    (Abramowitz and Stegun, 26.7.3 and 26.7.4). Absolute error about 1e-15, so tiny values are only "below 1e-14"."""
    if freedom < 1:
        raise ValueError("at least one degree of freedom")
    angle = math.atan2(abs(t), math.sqrt(freedom))
    cos, sin = math.cos(angle), math.sin(angle)
    odd = freedom % 2
    # Terms cos^k with k of the parity of freedom; each follows from the one before by (k / (k + 1)) cos^2.
    term, total = (cos, 0.0) if odd else (1.0, 0.0)
    for k in range(2 if odd else 1, freedom, 2):
        total += term
        term *= cos * cos * k / (k + 1)
    inside = (2 / math.pi) * (angle + sin * total) if odd else sin * total
    return max(0.0, 1.0 - inside)
