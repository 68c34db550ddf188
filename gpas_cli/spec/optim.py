"""The pretraining recipe: optimizer, learning-rate schedule (a pure function of the update), batch size, clipping.

To add an optimizer, write its constructor and add an `OptimizerKind` to `OPTIMIZERS`: parsing, cell keys, memory
estimates, sharding and checkpoints follow from the entry; the trainer imports the constructor by its name.
To add a schedule, write a dataclass with `ratio` and add it to `SCHEDULES`: parsing, cell keys and the manual follow.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from gpas_cli.errors import Problem
from gpas_cli.spec.parse import setting, settings_of
from gpas_cli.structure import Frozen

MATRIX, TABLE, VECTOR = "matrix", "table", "vector"
_ROLES = (MATRIX, TABLE, VECTOR)
_LAST_STAGE = "last-stage"  # a decay as long as the last stage of `depth`


def role(name: str, dimensions: int) -> str:
    """Return what a parameter is: a `matrix` of a layer, a `table` (embedding, head, positions), or a `vector` (norms,
    gates, biases)."""
    if dimensions < 2:
        return VECTOR
    return MATRIX if name.endswith("_proj.weight") else TABLE


class StateTensor(Frozen):
    """A state tensor that an optimizer keeps for each parameter of some roles.

    shape: the `parameter`'s; `rows`, a number for each row, (rows, 1); or `columns`, (1, columns). It has the
    dtype of its parameter, or float32 if `wide`.
    """

    name: str
    roles: tuple[str, ...] = _ROLES
    shape: str = "parameter"
    wide: bool = False

    def numbers(self, shape: Sequence[int]) -> int:
        """Return how many numbers it has for a parameter of `shape`."""
        return {"parameter": math.prod(shape), "rows": shape[0], "columns": shape[-1]}[self.shape]


@dataclass(frozen=True, kw_only=True)
class OptimizerKind:
    """What the package knows about an optimizer.

    A checkpoint holds both kinds of state, `tensors` and `counters`, as `<name>/<state>/<parameter>`.
    """

    name: str
    constructor: str
    """Where it is, "module:function"; the function takes the network and the recipe (`Optim`) and returns a
    torch.optim.Optimizer over every trainable parameter."""
    settings: tuple[str, ...] = ()
    """The fields of `Optim` that it reads and not every other optimizer does. Settings that only other optimizers read
    cannot change the result: cells are keyed with their defaults."""
    parameters: type | None = None  # the dataclass of its own settings, which a recipe has only with this optimizer
    tensors: tuple[StateTensor, ...]  # its state tensors, e.g. running averages
    counters: tuple[str, ...] = ()  # the names of its float32 scalars, e.g. the number of steps

    def tensors_of(self, parameter: str) -> dict[str, StateTensor]:
        """Return the state tensors of the parameters of a role, by name."""
        return {tensor.name: tensor for tensor in self.tensors if parameter in tensor.roles}

    def state_bytes(self, parameter: str, shape: Sequence[int], weight_bytes: int) -> int:
        """Return the bytes of state of a parameter of role `parameter`, if a weight takes `weight_bytes`."""
        tensors = self.tensors_of(parameter).values()
        return sum(tensor.numbers(shape) * (4 if tensor.wide else weight_bytes) for tensor in tensors)

    @property
    def prefix(self) -> str:
        """What the names of its tensors in a checkpoint start with."""
        return f"{self.name}/"


class AdafactorSettings(Frozen, kw_only=True):
    """Adafactor (Shazeer and Stern 2018, algorithms 4 and 5), with the rate of the schedule.

    The update of a parameter is the rate times its root mean square, at least `min_scale`: a gate, which starts at 0,
    moves by at most rate * min_scale * update_clip. beta2_exponent: the second moments have the decay
    1 - step^beta2_exponent. update_clip: the largest root mean square of an update before it is scaled.
    """

    beta2_exponent: float = setting(-0.8, low=-1, high=-0.01)
    update_clip: float = setting(1.0, above=0, high=1e6)
    min_scale: float = setting(1e-3, above=0, high=1)


class MuonSettings(Frozen, kw_only=True):
    """Muon (Jordan 2024) for the matrices of the layers, and AdamW, with beta1, beta2 and eps, for everything else.

    momentum, nesterov: the momentum of the gradients, which `newton_steps` Newton-Schulz iterations orthogonalise.
    matrix_scale: `adamw` multiplies the rate by 0.2 sqrt(max(rows, columns)), with which a matrix moves as far as with
    AdamW (Liu et al. 2025); `original` by sqrt(max(1, rows / columns)). matrix_lr: a further factor of the rate of
    matrices.
    """

    momentum: float = setting(0.95, low=0, high=0.999999)
    nesterov: bool = setting(True)
    newton_steps: int = setting(5, low=1, high=99)
    matrix_scale: str = setting("adamw", choices=("adamw", "original"))
    matrix_lr: float = setting(1.0, above=0, high=1e6)


ADAM = OptimizerKind(
    name="adam",
    constructor="gpas_cli.train.optim:make_adam",
    settings=("beta1", "beta2", "eps"),
    tensors=(StateTensor("exp_avg"), StateTensor("exp_avg_sq")),
    counters=("step",),
)
ADAFACTOR = OptimizerKind(
    name="adafactor",
    constructor="gpas_cli.train.optim:make_adafactor",
    parameters=AdafactorSettings,
    tensors=(
        StateTensor("row_var", roles=(MATRIX, TABLE), shape="rows", wide=True),
        StateTensor("col_var", roles=(MATRIX, TABLE), shape="columns", wide=True),
        StateTensor("variance", roles=(VECTOR,), wide=True),
    ),
    counters=("step",),
)
_MUON = OptimizerKind(
    name="muon",
    constructor="gpas_cli.train.optim:make_muon",
    settings=("beta1", "beta2", "eps"),
    parameters=MuonSettings,
    tensors=(
        StateTensor("momentum_buffer", roles=(MATRIX,)),
        StateTensor("exp_avg", roles=(TABLE, VECTOR)),
        StateTensor("exp_avg_sq", roles=(TABLE, VECTOR)),
    ),
    counters=("step",),
)

# `adamw` is another name of `adam`, whose weight decay is decoupled (Loshchilov and Hutter 2019).
OPTIMIZERS: dict[str, OptimizerKind] = {"adam": ADAM, "adamw": ADAM, "adafactor": ADAFACTOR, "muon": _MUON}


def optimizer_settings() -> dict[str, type]:
    """Return the dataclass of an optimizer's own settings by its name, of those that have some."""
    return {name: kind.parameters for name, kind in OPTIMIZERS.items() if kind.parameters}


def unread_settings(kind: OptimizerKind) -> set[str]:
    """Return the settings of a recipe that only other optimizers read."""
    return {name for other in OPTIMIZERS.values() for name in other.settings} - set(kind.settings)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The rate after warm-up. Its fields are settings of a recipe beside `schedule`.

    reads_min_ratio: whether `min_ratio` has an effect. `k` counts the updates from 0; update k is after the warm-up.
    """

    reads_min_ratio: ClassVar[bool] = True

    def ratio(self, k: int, warmup: int, steps: int, floor: float) -> float:
        """Return the rate of update `k` over the peak rate. `floor`: the ratio at the end, `min_ratio`."""
        raise NotImplementedError

    def stable(self, warmup: int, steps: int) -> int:
        """Return how many first updates have the rates of the schedule `constant`, 0 if the peak does not last."""
        return 0

    def canonical(self, warmup: int, steps: int, last_stage: int | None = None) -> Schedule:
        """Return the canonical spelling. `last_stage`: the updates of the depth's last stage, None if it has none."""
        return self

    def problems(self, warmup: int, steps: int | None, floor: float) -> Iterator[Problem]:
        """Yield what is wrong with the canonical settings in a recipe; `steps` is None where it is not known yet."""
        yield from ()


@dataclass(frozen=True, kw_only=True)
class _Cosine(Schedule):
    """Half a cosine from the peak to `min_ratio` of it."""

    def ratio(self, k: int, warmup: int, steps: int, floor: float) -> float:
        return floor + (1 - floor) * (0.5 * (1 + math.cos(math.pi * _progress(k, warmup, steps))))


@dataclass(frozen=True, kw_only=True)
class _Linear(Schedule):
    """A straight line from the peak to `min_ratio` of it."""

    def ratio(self, k: int, warmup: int, steps: int, floor: float) -> float:
        return floor + (1 - floor) * (1 - _progress(k, warmup, steps))


@dataclass(frozen=True, kw_only=True)
class _Constant(Schedule):
    """Constant at the peak rate."""

    reads_min_ratio = False

    def ratio(self, k: int, warmup: int, steps: int, floor: float) -> float:
        return 1.0

    def stable(self, warmup: int, steps: int) -> int:
        return steps


@dataclass(frozen=True, kw_only=True)
class InverseSqrt(Schedule):
    """sqrt(timescale / k) of the peak rate (Vaswani et al. 2017; T5 and UL2 with Adafactor).

    timescale: the update until which the rate is at its peak and after which it falls; 0: the end of the warm-up.
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

    decay: float | str = setting(0.2, choices=(_LAST_STAGE,), above=0, high=100_000_000)
    decay_shape: str = setting("linear", choices=("linear", "cosine", "sqrt", "exponential"))

    def ratio(self, k: int, warmup: int, steps: int, floor: float) -> float:
        start = self.stable(warmup, steps)
        if k <= start:
            return 1.0
        p = _progress(k, start, steps)
        if self.decay_shape == "exponential":
            return float(floor**p)
        shape = {"linear": 1 - p, "cosine": 0.5 * (1 + math.cos(math.pi * p)), "sqrt": 1 - math.sqrt(p)}
        return floor + (1 - floor) * shape[self.decay_shape]

    def stable(self, warmup: int, steps: int) -> int:
        return max(warmup, steps - self._updates(steps))

    def canonical(self, warmup: int, steps: int, last_stage: int | None = None) -> Schedule:
        if self.decay == _LAST_STAGE and last_stage is None:
            return self
        updates = last_stage if self.decay == _LAST_STAGE and last_stage else self._updates(steps)
        return replace(self, decay=updates / steps) if updates < steps else replace(self, decay=float(updates))

    def problems(self, warmup: int, steps: int | None, floor: float) -> Iterator[Problem]:
        if self.decay == _LAST_STAGE:
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
    "cosine": _Cosine,
    "linear": _Linear,
    "constant": _Constant,
    "inverse-sqrt": InverseSqrt,
    "wsd": WarmupStableDecay,
}


class Optim(Frozen, kw_only=True):
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
    `horizon`: the updates whose rows are in one random order, 0 for `steps`. It matters for texts of which a run reads
    only a part (c4, hf-files): trainings of several lengths draw the same batches if they have the same horizon.
    `z_loss`: the weight of log^2 Z, where Z is the sum of the exponentials of a token's logits, in the loss that is
    minimised (1e-4 in PaLM); the loss that is reported is the cross entropy alone.
    `label_smoothing`: the share of the target's probability that is spread evenly over the vocabulary in the loss that
    is minimised (Szegedy et al. 2016); not in the loss that is reported.
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
    horizon: int = setting(0, low=0, high=100_000_000, omit_default_from_key=True)
    validation_rows: int = setting(0, low=0, high=1_000_000, omit_default_from_key=True)
    z_loss: float = setting(0.0, low=0, high=1, omit_default_from_key=True)
    label_smoothing: float = setting(0.0, low=0, high=0.99, omit_default_from_key=True)
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
    def stable_updates(self) -> int:
        """The number of first updates that a training at the constant rate does too, 0 if there is none."""
        return min(self.updates, self.decay_of_rate.stable(self.warmup, self.steps))

    @property
    def rows(self) -> int:
        """The number of sequences from which every update draws its own, usually those of the whole schedule."""
        return (self.horizon or self.steps) * self.batch

    @property
    def trained_rows(self) -> int:
        """The number of sequences that are trained on."""
        return self.updates * self.batch

    @property
    def rows_per_mean(self) -> int:
        """The number of rows in each mean of an update."""
        return self.mean_rows or self.batch

    def share(self, processes: int) -> int:
        """Return how many rows of an update each of so many processes computes."""
        return max(1, self.batch // processes)

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
        """Return the learning rate of update `update` = 1, 2, ..., `steps`; with warm-up, update 1 has 0.

        The reference performs `steps` + 1 updates, the last one at 1e-7 of the rate.
        """
        k = update - 1
        if k >= self.steps:
            return self.lr * 1e-7
        if k < self.warmup:
            return self.lr * k / self.warmup
        return self.lr * self.decay_of_rate.ratio(k, self.warmup, self.steps, self.min_ratio)
