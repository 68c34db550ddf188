"""Power laws through a few points: y = A x^-b by least squares of logarithms, and y = E + A x^-b by least squares."""

import math
from collections.abc import Sequence
from statistics import fmean, linear_regression
from typing import Annotated

from gpas_cli.statistics.stats import two_sided_t
from gpas_cli.structure import Frozen

LEAST_POINTS = 3  # at different x: fewer leave nothing to estimate the scatter from
_LEVEL = 0.95
_EXPONENTS = [0.01 * 1.03**step for step in range(220)]  # from 0.01 to 6.5


class PowerLaw(Frozen):
    """A fitted law y = factor x^-exponent."""

    factor: float
    exponent: float
    interval: Annotated[tuple[float, float], "95 % interval of the exponent"]
    points: int
    centre: Annotated[float, "mean of log x"]
    sum_squares: Annotated[float, "sum of squares of log x around its mean"]
    scatter: Annotated[float, "standard deviation of log y around the law"]

    def at(self, x: float) -> float:
        """Return y at x."""
        return self.factor * math.pow(x, -self.exponent)

    def band(self, x: float, level: float = _LEVEL) -> tuple[float, float]:
        """Return the confidence interval of the law's y at x."""
        spread = self.scatter * math.sqrt(1 / self.points + (math.log(x) - self.centre) ** 2 / self.sum_squares)
        half = two_sided_t(1 - level, self.points - 2) * spread
        return self.at(x) * math.exp(-half), self.at(x) * math.exp(half)


def fit(points: Sequence[tuple[float, float]], level: float = _LEVEL) -> PowerLaw | None:
    """Return the power law through the points (x, y), None for fewer than LEAST_POINTS different x.

    Raises ValueError unless all x and y are positive and finite.
    """
    if not all(math.isfinite(value) and value > 0 for point in points for value in point):
        raise ValueError("a power law needs positive and finite numbers")
    if len({x for x, _ in points}) < LEAST_POINTS:
        return None
    xs = [math.log(x) for x, _ in points]
    ys = [math.log(y) for _, y in points]
    centre = fmean(xs)
    sum_squares = math.fsum((x - centre) ** 2 for x in xs)
    slope, intercept = linear_regression(xs, ys)
    residuals = [y - intercept - slope * x for x, y in zip(xs, ys, strict=True)]
    scatter = math.sqrt(math.fsum(r * r for r in residuals) / (len(points) - 2))
    half = two_sided_t(1 - level, len(points) - 2) * scatter / math.sqrt(sum_squares)
    return PowerLaw(
        factor=math.exp(intercept),
        exponent=-slope,
        interval=(-slope - half, -slope + half),
        points=len(points),
        centre=centre,
        sum_squares=sum_squares,
        scatter=scatter,
    )


def fit_offset(points: Sequence[tuple[float, float]]) -> float | None:
    """Return E of the law y = E + A x^-b through the points (x, y), None for fewer than LEAST_POINTS + 1 different x or
    if no b between the least and the largest of EXPONENTS fits best.

    For each b, E and A are those of a straight line over x^-b. Raises ValueError unless all x are positive.
    """
    if len({x for x, _ in points}) <= LEAST_POINTS:
        return None
    centre = fmean(math.log(x) for x, _ in points)
    ys = [y for _, y in points]

    def line(exponent: float) -> tuple[float, float]:
        """Return the sum of squares around the line, and E."""
        xs = [math.exp(exponent * (centre - math.log(x))) for x, _ in points]
        slope, offset = linear_regression(xs, ys)
        return math.fsum((y - offset - slope * x) ** 2 for x, y in zip(xs, ys, strict=True)), offset

    errors = [line(exponent)[0] for exponent in _EXPONENTS]
    best = errors.index(min(errors))
    if best in (0, len(errors) - 1):
        return None
    low, high = _EXPONENTS[best - 1], _EXPONENTS[best + 1]
    for _ in range(60):  # ternary search between the neighbours of the best one
        near, far = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, far) if line(near)[0] < line(far)[0] else (near, high)
    return line((low + high) / 2)[1]
