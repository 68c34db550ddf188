"""How long runs take to get somewhere, where some of them end before: medians and their bootstrap intervals.

The median is that of Kaplan and Meier 1958, "Nonparametric Estimation from Incomplete Observations".
"""

from __future__ import annotations

import random
from collections.abc import Sequence

_RESAMPLES = 1000
_ROUNDING = 1e-9


class Arrival(float):
    """How long a run took, or with `speed` the factor by which it was faster; infinite, or 0, if it never arrived.

    time: what it took, or what it had when it ended without arriving. A speed is 1 / time.
    """

    time: float
    arrived: bool
    speed: bool

    def __new__(cls, time: float, *, arrived: bool, speed: bool = False) -> Arrival:
        never = 0.0 if speed else float("inf")
        made = super().__new__(cls, (1 / time if speed else time) if arrived else never)
        made.time, made.arrived, made.speed = time, arrived, speed
        return made

    def after(self, base: Arrival) -> Arrival:
        """Return the difference of the times; a speed, which is relative to the base already, as it is."""
        return self if self.speed else Arrival(self.time - base.time, arrived=self.arrived)


def median(values: Sequence[Arrival]) -> float:
    """Return the time at which half of the runs have arrived, or its speed: infinite, or 0, if half never do.

    A run that ended before it arrived is at risk until its end. If exactly half have arrived at a time, the median is
    in the middle between it and the next arrival.
    """
    surviving, half = 1.0, None
    ordered = sorted(values, key=lambda one: (one.time, not one.arrived))
    for i, one in enumerate(ordered):
        if not one.arrived:
            continue
        surviving *= 1 - 1 / (len(ordered) - i)
        if surviving < 0.5 - _ROUNDING:
            found = one.time if half is None else (half + one.time) / 2
            return 1 / found if one.speed else found
        if half is None and surviving <= 0.5 + _ROUNDING:
            half = one.time
    return 0.0 if values[0].speed else float("inf")


def median_interval(values: Sequence[Arrival]) -> tuple[float, float] | None:
    """Return the 95 % interval of the median, between quantiles of its bootstrap; None for fewer than two runs."""
    if len(values) < 2:
        return None
    draw = random.Random(0)  # the same interval for the same numbers
    medians = sorted(median(draw.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    tail = _RESAMPLES // 40
    return medians[tail], medians[-1 - tail]
