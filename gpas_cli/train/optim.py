"""Construct the optimizer (Adam, Muon or Adafactor), set its learning rate, and clip in the reference's order: all
gradients, then the gates.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gpas_cli.model.dtensors import first_row, is_shard, joint_norm, local, sharded_as, sum_of_shards, whole
from gpas_cli.model.llama import Llama
from gpas_cli.spec.model import Model
from gpas_cli.spec.optim import ADAFACTOR, MATRIX, VECTOR, AdafactorSettings, MuonSettings, Optim, StateTensor, role
from gpas_cli.words import grouped

# The key of a parameter group that has a factor of the learning rate.
_RATE_FACTOR = "rate_factor"
# Elements of the matrices that are orthogonalised at once: 40 MB in bfloat16, 200 MB with what the products need. At
# 71M all matrices of one shape are one batch; a larger matrix is a batch of its own.
_STACKED = 20_000_000
_SMALLEST = 1e-30  # of a squared gradient: epsilon 1 of the paper


class _Optimizer(torch.optim.Optimizer):
    """torch's base class without the decorators of its methods. They import the compiler, to keep it from tracing these
    methods, which takes every job a second and a half."""

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)


class _AdamW(_Optimizer, torch.optim.AdamW):
    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))


def make_optimizer(network: Llama, spec: Optim) -> torch.optim.Optimizer:
    """Return the optimizer that the recipe names, over every trainable parameter of `network`, gates included."""
    optimizer: torch.optim.Optimizer = pkgutil.resolve_name(spec.kind.constructor)(network, spec)
    return optimizer


def make_adam(network: Llama, spec: Optim) -> torch.optim.Optimizer:
    """Return Adam with decoupled weight decay for every trainable parameter, gates included, with the same settings
    unless the parametrisation has others."""
    return _adam_of({name: p for name, p in network.named_parameters() if p.requires_grad}, network.spec, spec)


def _adam_of(trainable: Mapping[str, nn.Parameter], model: Model, spec: Optim) -> torch.optim.Optimizer:
    """Return Adam with decoupled weight decay, that is AdamW, for these parameters of a network of `model`.

    Bfloat16 weights (`pure_bf16`) get the reference's kernel, which rounds after each operation. The fused kernel
    computes in float32 and rounds once, and arrives at other second moments.
    """
    in_bfloat16 = any(p.dtype == torch.bfloat16 for p in trainable.values())
    kernel = {"foreach": True} if in_bfloat16 else {"fused": True}
    # One call of the fused kernel takes either shards or whole tensors.
    groups = grouped(((is_shard(p), model.adam_factors(name, tuple(p.shape))), p) for name, p in trainable.items())
    parameters = [
        {
            "params": group,
            "eps": spec.eps * own.eps,
            "weight_decay": spec.weight_decay * own.weight_decay,
            _RATE_FACTOR: own.rate,
        }
        for (_, own), group in sorted(groups.items(), key=lambda item: item[0][0])
    ]
    betas = (spec.beta1, spec.beta2)
    return _AdamW(parameters, lr=0.0, betas=betas, eps=spec.eps, weight_decay=spec.weight_decay, **kernel)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of every parameter group, times its own factor if it has one."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group[_RATE_FACTOR] if _RATE_FACTOR in group else rate


def _gradient_norm(parameters: Iterable[Tensor]) -> Tensor:
    """Return the joint l2 norm of the gradients, shape ()."""
    return joint_norm(p.grad for p in parameters if p.grad is not None)[0]


def clip(parameters: Sequence[Tensor], gates: Sequence[Tensor], spec: Optim) -> tuple[Tensor, Tensor]:
    """Clip the gradients of all `parameters` of a network in place; `gates`: the gates' parameters.

    Return the joint norm of all gradients before clipping, shape (), and the norm of each, as `joint_norm` does.
    """
    norm, norms = joint_norm(p.grad for p in parameters if p.grad is not None)
    if spec.clip > 0 and spec.clip_over == "all":
        _scale(parameters, spec.clip, norm)
    elif spec.clip > 0:
        others = [p for p in parameters if all(p is not gate for gate in gates)]
        _scale(others, spec.clip, _gradient_norm(others))
    if spec.clip_gates > 0:
        _scale(gates, spec.clip_gates, _gradient_norm(gates))
    return norm, norms


def unscale(parameters: Iterable[Tensor], scale: float) -> None:
    """Divide gradients by the scale of the loss in place; a power of two rounds nothing."""
    torch._foreach_div_([local(p.grad) for p in parameters if p.grad is not None], scale)


def _scale(parameters: Iterable[Tensor], bound: float, norm: Tensor) -> None:
    """Scale gradients of joint norm `norm` down to `bound`.

    As torch.nn.utils.clip_grads_with_norm_, which cannot scale shards together with whole tensors.
    """
    factor = torch.clamp(bound / (norm + 1e-6), max=1.0)
    if gradients := [local(p.grad) for p in parameters if p.grad is not None]:
        torch._foreach_mul_(gradients, factor)


def zeros(parameter: Tensor, state: StateTensor) -> Tensor:
    """Return the state tensor of a parameter, filled with zeros.

    A number for each row is sharded as the rows are; one for each column is whole in every process.
    """
    dtype = torch.float32 if state.wide else parameter.dtype
    if state.shape == "parameter":
        return torch.zeros_like(parameter, dtype=dtype)
    if state.shape == "columns":
        return torch.zeros(1, parameter.shape[-1], dtype=dtype, device=parameter.device)
    rows = torch.zeros(len(local(parameter)), 1, dtype=dtype, device=parameter.device)
    shape = torch.Size((parameter.shape[0], 1))
    return sharded_as(parameter, rows, shape, (1, 1)) if is_shard(parameter) else rows


def make_muon(network: Llama, spec: Optim) -> torch.optim.Optimizer:
    """Return Muon for the trainable matrices of the layers, and AdamW for the other parameters."""
    own = spec.optimizer_settings or MuonSettings()
    assert isinstance(own, MuonSettings)
    trainable = {name: p for name, p in network.named_parameters() if p.requires_grad}
    matrices = [p for name, p in trainable.items() if role(name, p.dim()) == MATRIX]
    others = {name: p for name, p in trainable.items() if role(name, p.dim()) != MATRIX}
    return _MuonAndAdam(matrices, own, spec.weight_decay, _adam_of(others, network.spec, spec))


class _MuonAndAdam(_Optimizer):
    """Muon and AdamW behind the interface of one optimizer. `step` is collective if a matrix is sharded.

    A matrix is updated as by torch.optim.Muon, which takes one matrix after the other: 84 at 71M, in 1,260
    products instead of 45. Without `nesterov` torch's also divides averages in bfloat16 by their norm; here they stay.
    """

    def __init__(
        self, matrices: Sequence[nn.Parameter], own: MuonSettings, weight_decay: float, adam: torch.optim.Optimizer
    ):
        self._own = own
        self._adam = adam
        super().__init__([*matrices, *(p for group in adam.param_groups for p in group["params"])], adam.defaults)
        group = {"params": [*matrices], "lr": 0.0, "weight_decay": weight_decay, _RATE_FACTOR: own.matrix_lr}
        self.param_groups = [group, *adam.param_groups]
        adam.state = self.state

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        assert closure is None
        group = self.param_groups[0]
        by_shape = grouped((matrix.shape, matrix) for matrix in group["params"] if matrix.grad is not None)
        for shape, matrices in by_shape.items():
            size = max(1, _STACKED // shape.numel())
            for start in range(0, len(matrices), size):
                self._update(matrices[start : start + size], group["lr"], group["weight_decay"])
        self._adam.step()

    def _update(self, matrices: list[Tensor], rate: float, weight_decay: float) -> None:
        """Update matrices of one shape. Every process orthogonalises whole matrices and keeps its part of them."""
        updates = orthogonalised(self._directions(matrices), self._own.newton_steps)
        rows, columns = matrices[0].shape
        adamw = self._own.matrix_scale == "adamw"
        scale = 0.2 * max(rows, columns) ** 0.5 if adamw else max(1, rows / columns) ** 0.5
        parts = [local(matrix) for matrix in matrices]
        firsts = [first_row(matrix) for matrix in matrices]
        own = [u[first : first + len(part)] for u, first, part in zip(updates, firsts, parts, strict=True)]
        torch._foreach_mul_(parts, 1 - rate * weight_decay)
        torch._foreach_add_(parts, own, alpha=-rate * scale)

    def _directions(self, matrices: list[Tensor]) -> Tensor:
        """Average the gradients; return whole averages, shape (matrices, rows, columns), in torch's bfloat16."""
        for matrix in matrices:
            if not self.state[matrix]:
                self.state[matrix]["momentum_buffer"] = torch.zeros_like(matrix)
        averages = [local(self.state[matrix]["momentum_buffer"]) for matrix in matrices]
        gradients = [local(matrix.grad) for matrix in matrices if matrix.grad is not None]
        torch._foreach_lerp_(averages, gradients, 1 - self._own.momentum)
        if self._own.nesterov:
            averages = list(torch._foreach_lerp(gradients, averages, self._own.momentum))
        pairs = zip(averages, matrices, strict=True)
        return torch.stack([whole(average.bfloat16(), matrix) for average, matrix in pairs])


def orthogonalised(matrices: Tensor, steps: int) -> Tensor:
    """Return the Newton-Schulz iterates of matrices, shape (matrices, rows, columns), in their dtype (Jordan 2024).

    The coefficients are torch.optim.Muon's. In bfloat16 on a CPU the bits are the same for one matrix as in a
    batch; a GPU may choose another kernel, but the batches depend only on which matrices have gradients.
    """
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        gram = torch.bmm(x, x.mT)
        polynomial = torch.baddbmm(gram, gram, gram, beta=-4.7750, alpha=2.0315)
        x = torch.baddbmm(x, polynomial, x, beta=3.4445)
    return x.mT if tall else x


def make_adafactor(network: Llama, spec: Optim) -> torch.optim.Optimizer:
    """Return Adafactor with decoupled weight decay, for every trainable parameter, gates included."""
    own = spec.optimizer_settings or AdafactorSettings()
    assert isinstance(own, AdafactorSettings)
    trainable = [p for p in network.parameters() if p.requires_grad]
    return Adafactor(trainable, own, spec.weight_decay)


class Adafactor(_Optimizer):
    """Adafactor without momentum: second moments of a matrix from those of its rows and columns, in float32 (Shazeer
    and Stern 2018). `step` is collective if a parameter is sharded.

    torch.optim.Adafactor bounds the rate by 1/sqrt(step), whatever the schedule is, and cannot train sharded networks
    with statistics of the whole matrix. Below that bound both compute the same.
    """

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
        second = self._second_moments(parameter, gradient.square().add_(_SMALLEST))
        update = gradient * second.clamp_(min=_SMALLEST).rsqrt_()
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
    return sum_of_shards(part, parameter) if is_shard(parameter) else part
