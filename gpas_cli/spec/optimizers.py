"""The optimizers that a recipe may name, one entry each. The trainer imports an entry's constructor by its name.

To add an optimizer, write its constructor and add an `OptimizerKind` to `OPTIMIZERS`: parsing, cell keys, memory
estimates, sharding and checkpoints follow from the entry.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpas_cli.spec.parse import setting

MATRIX, TABLE, VECTOR = "matrix", "table", "vector"
ROLES = (MATRIX, TABLE, VECTOR)


def role(name: str, dimensions: int) -> str:
    """Return what a parameter is: a `matrix` of a layer, a `table` (embedding, head, positions), or a `vector` (norms,
    gates, biases)."""
    if dimensions < 2:
        return VECTOR
    return MATRIX if name.endswith("_proj.weight") else TABLE


@dataclass(frozen=True)
class StateTensor:
    """A state tensor that an optimizer keeps for each parameter of some roles.

    shape: that of the `parameter`; `rows`, a number for each row, (rows, 1); or `columns`, (1, columns). It has the
    dtype of its parameter, or float32 if `wide`.
    """

    name: str
    roles: tuple[str, ...] = ROLES
    shape: str = "parameter"
    wide: bool = False

    def numbers(self, shape: Sequence[int]) -> int:
        """Return how many numbers it has for a parameter of `shape`."""
        return {"parameter": math.prod(shape), "rows": shape[0], "columns": shape[-1]}[self.shape]


@dataclass(frozen=True, kw_only=True)
class OptimizerKind:
    """What the package knows about an optimizer.

    constructor: "module:function"; the function takes the network and the recipe (`Optim`) and returns a
        torch.optim.Optimizer over every trainable parameter.
    settings: the fields of `Optim` that it reads, besides those that every optimizer reads. Settings that only other
        optimizers read cannot change the result: cells are keyed with their defaults.
    parameters: the dataclass of its own settings, which a recipe has only with this optimizer.
    tensors: its state tensors, e.g. running averages.
    counters: the names of its float32 scalars, e.g. the number of steps.

    A checkpoint holds both kinds of state, as `<name>/<state>/<parameter>`.
    """

    name: str
    constructor: str
    settings: tuple[str, ...] = ()
    parameters: type | None = None
    tensors: tuple[StateTensor, ...]
    counters: tuple[str, ...] = ()

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


@dataclass(frozen=True, kw_only=True)
class AdafactorSettings:
    """Adafactor (Shazeer and Stern 2018, algorithms 4 and 5), with the rate of the schedule.

    The update of a parameter is the rate times its root mean square, at least `min_scale`: a gate, which starts at 0,
    moves by at most rate * min_scale * update_clip. beta2_exponent: the second moments have the decay
    1 - step^beta2_exponent. update_clip: the largest root mean square of an update before it is scaled.
    """

    beta2_exponent: float = setting(-0.8, low=-1, high=-0.01)
    update_clip: float = setting(1.0, above=0, high=1e6)
    min_scale: float = setting(1e-3, above=0, high=1)


@dataclass(frozen=True, kw_only=True)
class MuonSettings:
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
    constructor="gpas_cli.train.adafactor:make_adafactor",
    parameters=AdafactorSettings,
    tensors=(
        StateTensor("row_var", roles=(MATRIX, TABLE), shape="rows", wide=True),
        StateTensor("col_var", roles=(MATRIX, TABLE), shape="columns", wide=True),
        StateTensor("variance", roles=(VECTOR,), wide=True),
    ),
    counters=("step",),
)
MUON = OptimizerKind(
    name="muon",
    constructor="gpas_cli.train.muon:make_muon",
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
OPTIMIZERS: dict[str, OptimizerKind] = {"adam": ADAM, "adamw": ADAM, "adafactor": ADAFACTOR, "muon": MUON}


def optimizer_settings() -> dict[str, type]:
    """Return the dataclass of an optimizer's own settings by its name, of those that have some."""
    return {name: kind.parameters for name, kind in OPTIMIZERS.items() if kind.parameters}


def unread_settings(kind: OptimizerKind) -> set[str]:
    """Return the settings of a recipe that only other optimizers read."""
    return {name for other in OPTIMIZERS.values() for name in other.settings} - set(kind.settings)
