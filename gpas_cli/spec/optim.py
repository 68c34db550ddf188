"""The pretraining recipe: optimizer, learning-rate schedule (a pure function of the step), batch size, clipping."""

from __future__ import annotations

from dataclasses import dataclass

from gpas_cli.spec.optimizers import ADAM, OPTIMIZERS, OptimizerKind, optimizer_settings
from gpas_cli.spec.parse import setting, settings_of
from gpas_cli.spec.schedules import SCHEDULES, Schedule


@dataclass(frozen=True, kw_only=True)
class Optim:
    """An optimizer (Adam, unless `optimizer` names another) with warm-up and decay.

    `batch` is the number of sequences per update, over all devices and micro-batches.

    As in the reference, `clip` (0 = off) first bounds the joint norm of the gradients, then `clip_gates` (0 = off) that
    of the gates. `clip_over`: whether `clip` includes the gates (`all`, as in the reference) or not (`others`, as in
    GPAS Appendix A for 7B: "0.01 on gates and 1.0 on other parameters").
    `mean_rows`: 0 weighs all tokens of an update equally; n averages the means over each n consecutive rows, as the
    reference does with the rows of a micro-batch (256 at 71M and 130M, 128 at 250M and 350M, 32 at 1B, 4 at 7B). The
    number of rows on a device at once has no effect.
    `stop`: the update after which training ends, with the final evaluation, although the schedule ends at `steps`; 0
    trains to the end of the schedule. GPAS Appendix A reports 7B after 40,000 of 150,000 updates. The batches are those
    of the whole schedule, so the updates are, bit for bit, the first ones of a training to its end.
    `z_loss`: the weight of log^2 Z, where Z is the sum of the exponentials of a token's logits, in the loss that is
    minimised (1e-4 in PaLM); the loss that is reported is the cross entropy alone.
    `validation_rows`: the rows of a validation batch. Only the two averages over batches depend on it. 0 takes the
    reference's number for its sizes, and `batch` for others.
    """

    lr: float = setting(above=0, high=10)
    warmup: int = setting(low=0)
    steps: int = setting(low=1, high=100_000_000)
    batch: int = setting(512, low=1, high=1_000_000)
    schedule: str = setting("cosine", choices=SCHEDULES)
    min_ratio: float = setting(0.1, low=0, high=1)
    beta1: float = setting(0.9, low=0, high=0.999999)
    beta2: float = setting(0.999, low=0, high=0.999999)
    eps: float = setting(1e-8, above=0, high=1)
    weight_decay: float = setting(0.0, low=0, high=10)
    clip: float = setting(0.0, low=0)
    clip_gates: float = setting(0.0, low=0)
    clip_over: str = setting("all", choices=("all", "others"), omit_default_from_key=True)
    mean_rows: int = setting(0, low=0, high=1_000_000, omit_default_from_key=True)
    stop: int = setting(0, low=0, high=100_000_000, omit_default_from_key=True)
    validation_rows: int = setting(0, low=0, high=1_000_000, omit_default_from_key=True)
    z_loss: float = setting(0.0, low=0, high=1, omit_default_from_key=True)
    optimizer: str = setting(ADAM.name, choices=OPTIMIZERS, omit_default_from_key=True)
    schedule_settings: Schedule | None = settings_of("schedule", lambda: SCHEDULES)
    optimizer_settings: object | None = settings_of("optimizer", optimizer_settings)

    @property
    def kind(self) -> OptimizerKind:
        """The registered optimizer."""
        return OPTIMIZERS[self.optimizer]

    @property
    def decay_of_rate(self) -> Schedule:
        """The registered schedule with its settings."""
        return self.schedule_settings or SCHEDULES[self.schedule]()

    @property
    def updates(self) -> int:
        """The number of updates that are done: all of the schedule, unless `stop` ends it earlier."""
        return self.stop or self.steps

    @property
    def rows(self) -> int:
        """The number of sequences in the whole schedule, from which those of every update are drawn."""
        return self.steps * self.batch

    @property
    def trained_rows(self) -> int:
        """The number of sequences that are trained on."""
        return self.updates * self.batch

    @property
    def rows_per_mean(self) -> int:
        """The number of rows in each mean of an update."""
        return self.mean_rows or self.batch

    def rows_of_mean(self, processes: int) -> int:
        """Return how many rows of a mean one process computes: all of them if every process can compute whole means."""
        means = self.batch // self.rows_per_mean
        return self.rows_per_mean if means % processes == 0 else self.rows_per_mean // processes

    def split_fault(self, processes: int) -> str:
        """Return why neither the means nor the rows of each can be split evenly among the processes, or ""."""
        rows = self.rows_per_mean
        if rows % processes == 0 or self.rows_of_mean(processes) == rows:
            return ""
        nearest = min((n for n in range(1, rows + 1) if rows % n == 0), key=lambda n: abs(n - processes))
        return f"{rows} rows cannot be shared evenly by {processes} processes; nearest: {nearest}"

    def learning_rate(self, update: int) -> float:
        """Return the learning rate of update `update` = 1, 2, ..., `steps`; with warm-up, that of update 1 is 0.

        The reference performs `steps` + 1 updates, the last one at 1e-7 of the rate.
        """
        k = update - 1
        if k >= self.steps:
            return self.lr * 1e-7
        if k < self.warmup:
            return self.lr * k / self.warmup
        return self.lr * self.decay_of_rate.ratio(k, self.warmup, self.steps, self.min_ratio)
