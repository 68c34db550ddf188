"""Adafactor: second moments of a matrix from those of its rows and columns (Shazeer and Stern 2018).

torch.optim.Adafactor bounds the rate by 1/sqrt(step), whatever the schedule is, and cannot train sharded networks with
statistics of the whole matrix. Below that bound both compute the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gpas_cli.model.dtensors import is_shard, local
from gpas_cli.model.llama import Llama
from gpas_cli.spec.optim import ADAFACTOR, MATRIX, VECTOR, AdafactorSettings, Optim
from gpas_cli.train.optimizer_state import zeros

SMALLEST = 1e-30  # of a squared gradient: epsilon 1 of the paper


def make_adafactor(network: Llama, spec: Optim) -> torch.optim.Optimizer:
    """Return Adafactor with decoupled weight decay, for every trainable parameter, gates included."""
    own = spec.optimizer_settings or AdafactorSettings()
    assert isinstance(own, AdafactorSettings)
    trainable = [p for p in network.parameters() if p.requires_grad]
    return Adafactor(trainable, own, spec.weight_decay)


class Adafactor(torch.optim.Optimizer):
    """Adafactor without momentum; statistics in float32. `step` is collective if a parameter is sharded."""

    def __init__(self, parameters: list[torch.nn.Parameter], own: AdafactorSettings, weight_decay: float):
        super().__init__(parameters, {"lr": 0.0, "weight_decay": weight_decay})
        self.own = own

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group["lr"], group["weight_decay"])

    def _update(self, parameter: Tensor, rate: float, weight_decay: float) -> None:
        assert parameter.grad is not None
        weight, gradient = local(parameter), local(parameter.grad).float()
        second = self._second_moments(parameter, gradient.square().add_(SMALLEST))
        update = gradient * second.clamp_(min=SMALLEST).rsqrt_()
        squares = torch.stack([update.square().sum(), weight.float().square().sum()])
        of_update, of_weight = (_summed(parameter, squares) / parameter.numel()).sqrt()
        factor = rate * of_weight.clamp(min=self.own.min_scale) / (of_update / self.own.update_clip).clamp(min=1.0)
        weight.mul_(1 - rate * weight_decay).sub_(update.mul_(factor))

    def _second_moments(self, parameter: Tensor, squares: Tensor) -> Tensor:
        """Average the squared gradients of this process's part, and return its second moments, float32."""
        state = self._state_of(parameter)
        state["step"] += 1
        new = float(state["step"]) ** self.own.beta2_exponent
        if "variance" in state:
            return local(state["variance"]).lerp_(squares, new).clone()
        rows, columns = local(state["row_var"]), state["col_var"]
        height = parameter.shape[0]
        rows.lerp_(squares.mean(1, keepdim=True), new)
        columns.lerp_(_summed(parameter, squares.sum(0, keepdim=True)) / height, new)
        return (rows / (_summed(parameter, rows.sum()) / height)) * columns

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            own = ADAFACTOR.tensors_of(VECTOR if parameter.dim() < 2 else MATRIX)
            state.update({name: zeros(parameter, tensor) for name, tensor in own.items()})
            state["step"] = torch.zeros(())
        return state


def _summed(parameter: Tensor, part: Tensor) -> Tensor:
    """Return the sum of `part` over the processes that have shards of the parameter."""
    if is_shard(parameter):
        dist.all_reduce(part)
    return part
