"""Mean, standard deviation and paired differences over seeds, and their t tests.

Numbers that equal each other up to rounding have no spread, in all tests of this package: a difference of 1/3 between
percentages is off by 1e-14, which says nothing about seeds. What counts as rounding is relative to the numbers that
were compared, not to their differences.

The samples are small, so numpy is not used; sums are exact (`math.fsum`). scipy is not used either: its import takes
longer than most commands.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from functools import cache
from statistics import NormalDist, fmean, linear_regression
from typing import Annotated, cast

from gpas_cli.statistics.arrivals import Arrival, median, median_interval
from gpas_cli.structure import Frozen, Number

_GAUSSIAN = NormalDist()
_MOST_PAIRS = 10_000  # a test that needs more is said never to decide
_EFFECT_QUANTILE = _GAUSSIAN.inv_cdf(0.9)  # of the 80 % interval of the effect
ROUNDING = 1e-9  # numbers that differ by less, relative to the compared ones, are equal up to rounding
LEAST_POINTS = 4  # of a law, at different x: three have one degree of freedom left, too few to compare two laws
_PARAMETERS = 3


class Aggregate(Frozen):
    """The mean of n numbers; of arrivals, the median."""

    mean: Number
    std: Annotated[Number | None, "sample standard deviation (n - 1): 0 of equal numbers, null of a single one"]
    n: int


class Paired(Frozen):
    """The difference from the base: the mean over pairs of the same seed.

    `t` and `p` of the paired t test are None with fewer than two pairs, or when all differences are equal up to
    rounding or one is not a number. Of arrivals, `mean` is the median, its interval is by bootstrap, and there is no t
    test.
    """

    mean: Number
    std: Number | None
    n: Annotated[int, "pairs"]
    lower: Annotated[int, "pairs with a lower number than the base"]
    higher: Annotated[int, "pairs with a higher number than the base"]
    t: Annotated[Number | None, "Student's t of the paired differences"]
    p: Annotated[Number | None, "its two-sided p value"]
    interval: Annotated[
        tuple[float, float] | None, "both ends of the 95 % interval of the mean; null with fewer than two pairs"
    ]


def same(a: float, b: float, scale: float = 0.0) -> bool:
    """Return whether numbers are equal up to rounding. `scale`: the largest number of which they are differences."""
    return math.isclose(a, b, rel_tol=ROUNDING, abs_tol=ROUNDING * scale)


def unit(largest: float) -> float:
    """Return the power of two next to `largest`: dividing by it rounds nothing, and squares do not overflow."""
    return math.ldexp(1.0, math.frexp(largest)[1] - 1)


def aggregate(values: Sequence[float], scale: float = 0.0) -> Aggregate:
    """Return the mean and sample standard deviation; not finite if a value is not. Raises ValueError for no values.

    `scale`: if the values are differences, the largest of the numbers that were subtracted.
    """
    if not values:
        raise ValueError("no values")
    if isinstance(values[0], Arrival):
        return Aggregate(median(cast(Sequence[Arrival], values)), None, len(values))
    if not all(map(math.isfinite, values)):
        total = sum(values)
        return Aggregate(total, None if len(values) == 1 else math.nan, len(values))
    if len(values) == 1:
        return Aggregate(float(values[0]), None, 1)
    largest = max(map(abs, values))
    one = unit(largest)
    mean = math.fsum(v / one for v in values) / len(values)
    std = one * math.sqrt(math.fsum((v / one - mean) ** 2 for v in values) / (len(values) - 1))
    return Aggregate(mean * one, std if std > ROUNDING * max(largest, scale) else 0.0, len(values))


def paired(own: Mapping[Hashable, float], base: Mapping[Hashable, float]) -> Paired | None:
    """Return the paired differences of two methods by seed, None if no seed has both."""
    seeds = [seed for seed in own if seed in base]
    if not seeds:
        return None
    if isinstance(own[seeds[0]], Arrival):
        return _paired_arrivals([cast(tuple[Arrival, Arrival], (own[seed], base[seed])) for seed in seeds])
    differences = [own[seed] - base[seed] for seed in seeds]
    s = aggregate(differences, max(abs(values[seed]) for values in (own, base) for seed in seeds))
    t = s.mean / s.std * math.sqrt(s.n) if s.std and math.isfinite(s.std) else None
    unequal = [d for d, seed in zip(differences, seeds, strict=True) if not same(own[seed], base[seed])]
    return Paired(
        mean=s.mean,
        std=s.std,
        n=s.n,
        lower=sum(d < 0 for d in unequal),
        higher=sum(d > 0 for d in unequal),
        t=t,
        p=None if t is None else two_sided_p(t, s.n - 1),
        interval=mean_interval(s),
    )


def _paired_arrivals(pairs: Sequence[tuple[Arrival, Arrival]]) -> Paired:
    differences = [own.after(base) for own, base in pairs]
    one = float(differences[0].speed)  # the base is once as fast as itself
    ends = median_interval(differences)
    return Paired(
        mean=median(differences) - one,
        std=None,
        n=len(pairs),
        lower=sum(own < base for own, base in pairs),
        higher=sum(own > base for own, base in pairs),
        t=None,
        p=None,
        interval=(ends[0] - one, ends[1] - one) if ends else None,
    )


def mean_interval(summary: Aggregate, level: float = 0.95) -> tuple[float, float] | None:
    """Return the t interval of the mean: mean -+ t(n - 1) std / sqrt(n), which covers the true mean with `level`.

    None without a spread to estimate: a single number, equal numbers, or numbers (or ends) not finite. Assumes that the
    numbers are independent and Gaussian. That of paired differences leaves out 0 exactly if their p < 1 - level. Raises
    ValueError if `level` is not between 0 and 1.
    """
    mean, std, n = summary.mean, summary.std, summary.n
    if not 0 < level < 1:
        raise ValueError("level must be between 0 and 1")
    if not std or not math.isfinite(std) or not math.isfinite(mean):
        return None
    half = two_sided_t(1 - level, n - 1) * std / math.sqrt(n)
    ends = mean - half, mean + half
    return ends if all(map(math.isfinite, ends)) else None


@cache
def two_sided_t(p: float, freedom: int) -> float:
    """Return the t with P(|T| >= t) = p of Student's t: the inverse of `two_sided_p`, for 0 < p < 1.

    Newton's method on a convex function of t: its steps from below never overshoot. It starts with two terms of the
    expansion around the Gaussian quantile (Abramowitz and Stegun, 26.7.5). The relative error is that of `two_sided_p`
    divided by p.
    """
    log_peak = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - 0.5 * math.log(freedom * math.pi)
    z = -_GAUSSIAN.inv_cdf(p / 2)
    t = z + (z**3 + z) / (4 * freedom)
    while True:
        density = 2 * math.exp(log_peak - (freedom + 1) / 2 * math.log1p(t * t / freedom))
        step = (two_sided_p(t, freedom) - p) / density
        t += step
        if step <= 1e-14 * t:
            return t


def two_sided_p(t: float, freedom: int) -> float:
    """Return P(|T| >= |t|) of Student's t with `freedom` >= 1 degrees of freedom.

    Uses the finite series for integer degrees (Abramowitz and Stegun, 26.7.3 and 26.7.4). The absolute error grows with
    them: at most 1e-15 up to 40 degrees of freedom, and 2e-12 up to 10,000. Smaller values are not meaningful.
    """
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


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """Return Holm's adjusted p values (Holm 1979, "A simple sequentially rejective multiple test procedure").

    To call those at most `level` significant makes one false statement or more with a probability of at most `level`,
    whatever the dependence of the tests. None is a test without a result yet: it stays None and counts as one of the
    family, so that a result that arrives later never makes another p value larger than Holm's with all of them.
    """
    known = sorted((p, place) for place, p in enumerate(ps) if p is not None)
    adjusted: list[float | None] = [None] * len(ps)
    largest = 0.0
    for rank, (p, place) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(ps) - rank)))
        adjusted[place] = largest
    return adjusted


class Needed(Frozen):
    """Further pairs for a paired t test to reach its power: 0 for enough, None if more than _MOST_PAIRS are needed.

    fewest, most: the same if the true standardised effect is at the upper or the lower end of its 80 % confidence
    interval. The interval is wide for few pairs: from three, "2 to more than 10,000" is usual.
    """

    further: int | None
    fewest: int | None
    most: int | None


def needed(
    differences: Sequence[float], level: float = 0.05, power: float = 0.8, margin: float = 0.0, scale: float = 0.0
) -> Needed | None:
    """Return how many further pairs a two-sided t test of mean = margin needs to have `power` at `level`.

    The true mean and standard deviation are taken to be those of `differences`. None with fewer than two differences
    or without a finite spread. `scale`: as for `aggregate`.

    The numbers are normal approximations (Guenther 1981). At the usual level and power `further` is the exact number,
    or in a tenth of the cases one less. The ends of the effect's interval, effect -+ 1.28 sqrt(1 / n + effect^2 / 2
    (n - 1)), are up to 16 % too wide with two pairs, 8 % with three, and 4 % with five.
    """
    if len(differences) < 2:
        return None
    summary = aggregate(differences, scale)
    if not summary.std or not math.isfinite(summary.std):
        return None
    size = abs(summary.mean - margin) / summary.std
    error = _EFFECT_QUANTILE * math.sqrt(1 / summary.n + size * size / (2 * (summary.n - 1)))
    return Needed(*(_further(each, summary.n, level, power) for each in (size, size + error, size - error)))


def _further(size: float, pairs: int, level: float, power: float) -> int | None:
    """Return the pairs beyond `pairs` that a two-sided t test of a standardised effect `size` needs."""
    quantile = -_GAUSSIAN.inv_cdf(level / 2)
    both = quantile + _GAUSSIAN.inv_cdf(power)
    if size <= both / math.sqrt(_MOST_PAIRS):
        return None
    return max(0, math.ceil((both / size) ** 2 + quantile**2 / 2) - pairs)


class Growth(Frozen):
    """How a quantity grows over depth, as a fitted law.

    Both laws are lines in log y, fitted by least squares, and have as many parameters, so that their AIC can be
    compared: for n points with the residual sum of squares S it is n ln(S / n) + 6, with three parameters (c, b and the
    variance of log y).
    """

    exponential: bool  # c e^(bx), otherwise c x^b
    factor: float
    rate: float  # b
    r_squared: float  # of log y
    aic: float

    def at(self, x: float) -> float:
        """Return y at x."""
        return self.factor * (math.exp(self.rate * x) if self.exponential else math.pow(x, self.rate))

    @property
    def words(self) -> str:
        """The law in a legend: "exponential, x 1.12 per layer" or "power law, exponent 1.4", with R^2."""
        law = f"exponential, \N{MULTIPLICATION SIGN} {math.exp(self.rate):.3g} per layer"
        return f"{law if self.exponential else f'power law, exponent {self.rate:.3g}'}, R² {self.r_squared:.2f}"


def growth(points: Sequence[tuple[float, float]]) -> tuple[Growth, Growth] | None:
    """Return the power law and the exponential through the points (x, y).

    None if there are fewer than LEAST_POINTS different x. Raises ValueError unless all x and y are positive and finite.
    """
    if not all(math.isfinite(value) and value > 0 for point in points for value in point):
        raise ValueError("growth needs positive and finite numbers")
    if len({x for x, _ in points}) < LEAST_POINTS:
        return None
    power = _fit([math.log(x) for x, _ in points], points, exponential=False)
    return power, _fit([x for x, _ in points], points, exponential=True)


def better(points: Sequence[tuple[float, float]]) -> Growth | None:
    """Return the law with the lower AIC, None where `growth` is."""
    found = growth(points)
    return min(found, key=lambda law: law.aic) if found else None


def exponential_evidence(points: Sequence[tuple[float, float]]) -> float | None:
    """Return the AIC of the power law minus the exponential's: positive if the exponential fits better."""
    found = growth(points)
    return found[0].aic - found[1].aic if found else None


def _fit(xs: Sequence[float], points: Sequence[tuple[float, float]], *, exponential: bool) -> Growth:
    ys = [math.log(y) for _, y in points]
    rate, intercept = linear_regression(xs, ys)
    height = fmean(ys)
    left = math.fsum((y - intercept - rate * x) ** 2 for x, y in zip(xs, ys, strict=True))
    total = math.fsum((y - height) ** 2 for y in ys)
    rounding = len(ys) * ROUNDING**2  # of logarithms; the AIC of a perfect fit is finite, and equal y prefer no law
    return Growth(
        exponential=exponential,
        factor=math.exp(intercept),
        rate=rate,
        r_squared=1 - left / total if total > rounding else 1.0,
        aic=len(ys) * math.log(max(left, rounding) / len(ys)) + 2 * _PARAMETERS,
    )
