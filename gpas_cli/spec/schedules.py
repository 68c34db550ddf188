"""Learning-rate schedules as data: what happens to the rate after warm-up, as a pure function of the update.

To add a schedule, write a dataclass with `ratio` and add it to `SCHEDULES`: parsing, cell keys and the manual follow.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from gpas_cli.errors import Problem
from gpas_cli.spec.parse import setting

LAST_STAGE = "last-stage"  # a decay as long as the last stage of `depth`


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The rate after warm-up. Its fields are settings of a recipe beside `schedule`.

    reads_min_ratio: whether `min_ratio` has an effect. `k` counts the updates from 0; update k is after the warm-up.
    """

    reads_min_ratio: ClassVar[bool] = True

    def ratio(self, k: int, warmup: int, steps: int, floor: float) -> float:
        """Return the rate of update `k` over the peak rate. `floor`: the ratio at the end, `min_ratio`."""
        raise NotImplementedError

    def canonical(self, warmup: int, steps: int, last_stage: int | None = None) -> Schedule:
        """Return the canonical spelling. `last_stage`: the updates of the depth's last stage, None if it has none."""
        return self

    def problems(self, warmup: int, steps: int | None, floor: float) -> Iterator[Problem]:
        """Yield what is wrong with the canonical settings in a recipe; `steps` is None where it is not known yet."""
        yield from ()


@dataclass(frozen=True, kw_only=True)
class Cosine(Schedule):
    """Half a cosine from the peak to `min_ratio` of it."""

    def ratio(self, k: int, warmup: int, steps: int, floor: float) -> float:
        return floor + (1 - floor) * (0.5 * (1 + math.cos(math.pi * _progress(k, warmup, steps))))


@dataclass(frozen=True, kw_only=True)
class Linear(Schedule):
    """A straight line from the peak to `min_ratio` of it."""

    def ratio(self, k: int, warmup: int, steps: int, floor: float) -> float:
        return floor + (1 - floor) * (1 - _progress(k, warmup, steps))


@dataclass(frozen=True, kw_only=True)
class Constant(Schedule):
    """The peak rate to the end."""

    reads_min_ratio = False

    def ratio(self, k: int, warmup: int, steps: int, floor: float) -> float:
        return 1.0


@dataclass(frozen=True, kw_only=True)
class InverseSqrt(Schedule):
    """sqrt(timescale / k) of the peak rate (Vaswani et al. 2017; T5 and UL2 with Adafactor).

    timescale: the update until which the rate is at its peak and after which it falls; 0: that of the warm-up.
    """

    reads_min_ratio = False
    timescale: int = setting(0, low=0, high=100_000_000)

    def ratio(self, k: int, warmup: int, steps: int, floor: float) -> float:
        scale = self.timescale or warmup
        return math.sqrt(scale / max(scale, k))

    def canonical(self, warmup: int, steps: int, last_stage: int | None = None) -> Schedule:
        return replace(self, timescale=0) if self.timescale == warmup else self

    def problems(self, warmup: int, steps: int | None, floor: float) -> Iterator[Problem]:
        if not warmup and not self.timescale:
            yield Problem(("timescale",), "is required without warm-up; it is the update after which the rate falls")
        elif self.timescale and self.timescale < warmup:
            yield Problem(("timescale",), f"{self.timescale} is within the warm-up of {warmup} updates")


@dataclass(frozen=True, kw_only=True)
class WarmupStableDecay(Schedule):
    """The peak rate, then a decay to `min_ratio` of it (Hu et al. 2024; RaPTr, appendix B, in its last stage).

    decay: the length of the decay at the end of the schedule, a share of `steps` if below 1, else a number of updates;
    `last-stage`: as long as the last stage of `depth`. With p from 0 to 1 over the decay, decay_shape is `linear`,
    1 - p; `cosine`, (1 + cos(pi p)) / 2; `sqrt`, 1 - sqrt(p) (Haegele et al. 2024), each from the peak to `min_ratio`;
    or `exponential`, min_ratio^p.
    """

    decay: float | str = setting(0.2, choices=(LAST_STAGE,), above=0, high=100_000_000)
    decay_shape: str = setting("linear", choices=("linear", "cosine", "sqrt", "exponential"))

    def ratio(self, k: int, warmup: int, steps: int, floor: float) -> float:
        start = max(warmup, steps - self._updates(steps))
        if k <= start:
            return 1.0
        p = _progress(k, start, steps)
        if self.decay_shape == "exponential":
            return float(floor**p)
        shape = {"linear": 1 - p, "cosine": 0.5 * (1 + math.cos(math.pi * p)), "sqrt": 1 - math.sqrt(p)}
        return floor + (1 - floor) * shape[self.decay_shape]

    def canonical(self, warmup: int, steps: int, last_stage: int | None = None) -> Schedule:
        if self.decay == LAST_STAGE and last_stage is None:
            return self
        updates = last_stage if self.decay == LAST_STAGE and last_stage else self._updates(steps)
        return replace(self, decay=updates / steps) if updates < steps else replace(self, decay=float(updates))

    def problems(self, warmup: int, steps: int | None, floor: float) -> Iterator[Problem]:
        if self.decay == LAST_STAGE:
            yield Problem(("decay",), "last-stage needs a depth with stages; write a share of the steps, as in 0.25")
        elif steps is not None and steps - self._updates(steps) <= warmup:
            yield Problem(
                ("decay",),
                f"{self._updates(steps)} updates leave none at the peak between the warm-up of {warmup} and the end of "
                f"the {steps} steps; write schedule: linear or cosine",
            )
        if self.decay_shape == "exponential" and floor == 0:
            yield Problem(("decay_shape",), "exponential needs min_ratio above 0, the ratio at which it ends")

    def _updates(self, steps: int) -> int:
        """Return how many updates decay."""
        decay = self.decay
        assert isinstance(decay, float)
        return max(1, round(decay * steps)) if decay < 1 else round(decay)


def _progress(k: int, start: int, steps: int) -> float:
    return (k - start) / max(1, steps - start)


SCHEDULES: dict[str, type[Schedule]] = {
    "cosine": Cosine,
    "linear": Linear,
    "constant": Constant,
    "inverse-sqrt": InverseSqrt,
    "wsd": WarmupStableDecay,
}
