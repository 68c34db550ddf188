"""The noncentral t distribution: T = (Z + d) / S with a Gaussian Z and S = sqrt(chi squared / degrees of freedom).

scipy is not used: its import takes longer than most commands. P(T > t) is the mean of Phi(d - t S) over S, here an
integral over x = ln S, whose density is proportional to exp(-freedom * (exp(2 x) / 2 - x)). The trapezoidal rule with
steps that are small against every width of this smooth function is accurate to about 1e-11.
"""

from __future__ import annotations

import math
from statistics import NormalDist

NEGLIGIBLE = 32.0  # minus the logarithm of the density, relative to its peak, where the integral ends
LARGEST_STEP = 0.12
STEP = 0.62  # in widths of the integrand
ACCURACY = 1e-11  # relative, of `noncentrality_at`
MOST_ITERATIONS = 100
ROOT_HALF = math.sqrt(0.5)

_GAUSSIAN = NormalDist()


def upper_tail(t: float, freedom: int, noncentrality: float) -> float:
    """Return P(T > t), for 0 <= t and `freedom` >= 1."""
    return _tail_and_slope(t, freedom, noncentrality)[0]


def noncentrality_at(t: float, freedom: int, share: float) -> float:
    """Return the noncentrality at which P(T > t) is `share`, for 0 <= t and 0 < share < 1.

    Newton's method on the probit of P(T > t), which is nearly linear in the noncentrality.
    """
    wanted = _GAUSSIAN.inv_cdf(share)
    found = max(t + wanted * math.sqrt(1 + t * t / (2 * freedom)), wanted)  # P(T > t) is at most Phi(noncentrality)
    for _ in range(MOST_ITERATIONS):
        tail, slope = _tail_and_slope(t, freedom, found)
        probit = _GAUSSIAN.inv_cdf(tail)
        step = (wanted - probit) * _GAUSSIAN.pdf(probit) / slope
        found += step
        if abs(step) <= ACCURACY * max(1.0, abs(found)):
            return found
    raise ArithmeticError(f"no noncentrality found for t = {t}, {freedom} degrees of freedom and a share of {share}")


def _tail_and_slope(t: float, freedom: int, noncentrality: float) -> tuple[float, float]:
    """Return P(T > t) and its derivative with respect to the noncentrality."""
    step = min(LARGEST_STEP, STEP / math.sqrt(2 * freedom + noncentrality**2))
    reach = NEGLIGIBLE / freedom
    # The exponent exp(2 x) / 2 - x - 1 / 2 is at least x^2 for x > 0, and at least x^2 / (1 - x) for x < 0.
    first = -int((reach + math.sqrt(reach * (reach + 4))) / 2 / step)
    last = int(math.sqrt(reach) / step)
    total = tail = slope = 0.0
    for i in range(first, last + 1):
        x = i * step
        s = math.exp(x)
        weight = math.exp(freedom * (x + (1 - s * s) / 2))
        z = noncentrality - t * s
        total += weight
        tail += weight * math.erfc(-z * ROOT_HALF)
        slope += weight * math.exp(-z * z / 2)
    return tail / total / 2, slope / total * ROOT_HALF / math.sqrt(math.pi)
