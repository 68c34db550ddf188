"""The optimizers that a recipe may name, one entry each. The trainer imports an entry's constructor by its name.

To add an optimizer, write its constructor and add an `OptimizerKind` to `OPTIMIZERS`: parsing, cell keys, memory
estimates, sharding and checkpoints follow from the entry.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class OptimizerKind:
    """What the package knows about an optimizer.

    constructor: "module:function"; the function takes the network and the recipe (`Optim`) and returns a
        torch.optim.Optimizer over every trainable parameter.
    settings: the fields of `Optim` that it reads, besides those that every optimizer reads. Settings that only other
        optimizers read cannot change the result: cells are keyed with their defaults.
    tensors: the names of its state tensors of the shape and dtype of their parameter, e.g. running averages.
    counters: the names of its float32 scalars, e.g. the number of steps.

    A checkpoint holds both kinds of state, as `<name>/<state>/<parameter>`.
    """

    name: str
    constructor: str
    settings: tuple[str, ...] = ()
    tensors: tuple[str, ...]
    counters: tuple[str, ...] = ()

    def state_bytes(self, weight_bytes: int) -> int:
        """Return the bytes of state per parameter, if a weight takes `weight_bytes`."""
        return len(self.tensors) * weight_bytes

    @property
    def prefix(self) -> str:
        """What the names of its tensors in a checkpoint start with."""
        return f"{self.name}/"


ADAM = OptimizerKind(
    name="adam",
    constructor="gpas_cli.train.optim:make_adam",
    settings=("beta1", "beta2", "eps"),
    tensors=("exp_avg", "exp_avg_sq"),
    counters=("step",),
)

OPTIMIZERS: dict[str, OptimizerKind] = {kind.name: kind for kind in (ADAM,)}
