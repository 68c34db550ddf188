"""The pretraining recipe: Adam, schedule, batch, clipping. Learning rates of updates are pure functions of the step."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpas_cli.spec.parse import setting


@dataclass(frozen=True, kw_only=True)
class Optim:
    """Adam with warm-up and decay. `batch` is sequences per update, over all devices and micro-batches.

    `clip` (0 = off) bounds a joint norm of the gradients, then `clip_gates` (0 = off) the gates' joint norm: the
    reference's order. `clip_over`: `clip` is over `all` gradients, the gates' included, as the reference does; or over
    the `others` alone, as GPAS Appendix A words it for 7B ("0.01 on gates and 1.0 on other parameters").
    `mean_rows`: 0 weighs every token of an update equally; n takes the mean over each n consecutive rows first and
    then the mean of those means, as the reference does with the rows of a micro-batch (256 at 71M). How many rows fit
    the device at once never matters.
    """

    lr: float = setting(above=0, high=10)
    warmup: int = setting(low=0)
    steps: int = setting(low=1, high=100_000_000)
    batch: int = setting(512, low=1, high=1_000_000)
    schedule: str = setting("cosine", choices=("cosine", "linear", "constant"))
    min_ratio: float = setting(0.1, low=0, high=1)
    beta1: float = setting(0.9, low=0, high=0.999999)
    beta2: float = setting(0.999, low=0, high=0.999999)
    eps: float = setting(1e-8, above=0, high=1)
    weight_decay: float = setting(0.0, low=0, high=10)
    clip: float = setting(0.0, low=0)
    clip_gates: float = setting(0.0, low=0)
    clip_over: str = setting("all", choices=("all", "others"), omit_default_from_key=True)
    mean_rows: int = setting(0, low=0, high=1_000_000, omit_default_from_key=True)

    @property
    def rows(self) -> int:
        """Sequences read over the whole training."""
        return self.steps * self.batch

    @property
    def rows_of_a_mean(self) -> int:
        """Over how many rows each mean of an update is taken: all of them unless `mean_rows` says otherwise."""
        return self.mean_rows or self.batch

    def shared(self, processes: int) -> str:
        """What is wrong with sharing the rows of each mean among so many processes, "" when nothing is."""
        rows = self.rows_of_a_mean
        if rows % processes == 0:
            return ""
        nearest = min((n for n in range(1, rows + 1) if rows % n == 0), key=lambda n: abs(n - processes))
        return f"{rows} rows cannot be shared evenly by {processes} processes; nearest: {nearest}"

    def learning_rate(self, update: int) -> float:
        """The learning rate of update `update` = 1, 2, ..., `steps`: update 1 has rate 0 when there is a warm-up.

        The reference does one update more than it was asked for, at 1e-7 of the rate.
        """
        k = update - 1
        if k >= self.steps:
            return self.lr * 1e-7
        if k < self.warmup:
            return self.lr * k / self.warmup
        progress = (k - self.warmup) / max(1, self.steps - self.warmup)
        shapes = {
            "cosine": 0.5 * (1 + math.cos(math.pi * progress)),
            "linear": 1 - progress,
            "constant": 1.0,
        }
        floor = 1.0 if self.schedule == "constant" else self.min_ratio
        return self.lr * (floor + (1 - floor) * shapes[self.schedule])
