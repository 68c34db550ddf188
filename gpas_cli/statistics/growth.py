"""How a quantity grows over depth: a power law c x^b and an exponential c e^(bx), compared by AIC.

Both are lines in log y, fitted by least squares, and have as many parameters, so that their AIC can be compared: for n
points with the residual sum of squares S it is n ln(S / n) + 6, with three parameters (c, b and the variance of log y).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from gpas_cli.statistics.stats import ROUNDING

LEAST_POINTS = 4  # at different x: three have one degree of freedom left, too few to compare two laws
_PARAMETERS = 3


@dataclass(frozen=True)
class Growth:
    """A fitted law. exponential: c e^(bx), otherwise c x^b. rate: b. r_squared: of log y."""

    exponential: bool
    factor: float
    rate: float
    r_squared: float
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
    """Return the AIC of the power law minus that of the exponential: positive if the exponential fits better."""
    found = growth(points)
    return found[0].aic - found[1].aic if found else None


def _fit(xs: Sequence[float], points: Sequence[tuple[float, float]], *, exponential: bool) -> Growth:
    ys = [math.log(y) for _, y in points]
    centre = fmean(xs)
    height = fmean(ys)
    spread = math.fsum((x - centre) ** 2 for x in xs)
    rate = math.fsum((x - centre) * (y - height) for x, y in zip(xs, ys, strict=True)) / spread
    left = math.fsum((y - height - rate * (x - centre)) ** 2 for x, y in zip(xs, ys, strict=True))
    total = math.fsum((y - height) ** 2 for y in ys)
    rounding = len(ys) * ROUNDING**2  # of logarithms; the AIC of a perfect fit is finite, and equal y prefer no law
    return Growth(
        exponential=exponential,
        factor=math.exp(height - rate * centre),
        rate=rate,
        r_squared=1 - left / total if total > rounding else 1.0,
        aic=len(ys) * math.log(max(left, rounding) / len(ys)) + 2 * _PARAMETERS,
    )
