"""Fit y = factor * x ** -exponent by least squares of the logarithms, with the uncertainty of the fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated

from gpas_cli.statistics.stats import two_sided_t

LEAST_POINTS = 3  # at different x: fewer leave nothing to estimate the scatter from
LEVEL = 0.95


@dataclass(frozen=True)
class PowerLaw:
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

    def band(self, x: float, level: float = LEVEL) -> tuple[float, float]:
        """Return the confidence interval of the law's y at x."""
        spread = self.scatter * math.sqrt(1 / self.points + (math.log(x) - self.centre) ** 2 / self.sum_squares)
        half = two_sided_t(1 - level, self.points - 2) * spread
        return self.at(x) * math.exp(-half), self.at(x) * math.exp(half)


def fit(points: Sequence[tuple[float, float]], level: float = LEVEL) -> PowerLaw | None:
    """Return the power law through the points (x, y), None for fewer than LEAST_POINTS different x.

    Raises ValueError unless all x and y are positive and finite.
    """
    if not all(math.isfinite(value) and value > 0 for point in points for value in point):
        raise ValueError("a power law needs positive and finite numbers")
    if len({x for x, _ in points}) < LEAST_POINTS:
        return None
    xs = [math.log(x) for x, _ in points]
    ys = [math.log(y) for _, y in points]
    centre, height = fmean(xs), fmean(ys)
    sum_squares = math.fsum((x - centre) ** 2 for x in xs)
    slope = math.fsum((x - centre) * (y - height) for x, y in zip(xs, ys, strict=True)) / sum_squares
    residuals = [y - height - slope * (x - centre) for x, y in zip(xs, ys, strict=True)]
    scatter = math.sqrt(math.fsum(r * r for r in residuals) / (len(points) - 2))
    half = two_sided_t(1 - level, len(points) - 2) * scatter / math.sqrt(sum_squares)
    return PowerLaw(
        factor=math.exp(height - slope * centre),
        exponent=-slope,
        interval=(-slope - half, -slope + half),
        points=len(points),
        centre=centre,
        sum_squares=sum_squares,
        scatter=scatter,
    )
