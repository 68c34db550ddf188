"""Construct the optimizer, set its learning rate, and clip in the reference's order: all gradients, then the gates."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from gpas_cli.model.dtensors import is_shard, joint_norm, local
from gpas_cli.model.llama import Llama
from gpas_cli.spec.optim import Optim

# The key of a parameter group that has a factor of the learning rate.
RATE_FACTOR = "rate_factor"


def make_optimizer(network: Llama, spec: Optim) -> torch.optim.Optimizer:
    """Return the optimizer that the recipe names, over every trainable parameter of `network`, gates included."""
    optimizer: torch.optim.Optimizer = pkgutil.resolve_name(spec.kind.constructor)(network, spec)
    return optimizer


def make_adam(network: Llama, spec: Optim) -> torch.optim.Optimizer:
    """Return Adam with decoupled weight decay, with the same settings for every trainable parameter, gates included."""
    return adam_of([p for p in network.parameters() if p.requires_grad], spec)


def adam_of(trainable: Sequence[nn.Parameter], spec: Optim) -> torch.optim.Optimizer:
    """Return Adam with decoupled weight decay, that is AdamW, for these parameters.

    Bfloat16 weights (`pure_bf16`) get the reference's kernel, which rounds after each operation. The fused kernel
    computes in float32 and rounds once, and arrives at other second moments.
    """
    in_bfloat16 = any(p.dtype == torch.bfloat16 for p in trainable)
    kernel = {"foreach": True} if in_bfloat16 else {"fused": True}
    # One call of the fused kernel takes either shards or whole tensors.
    groups = [[p for p in trainable if is_shard(p) == sharded] for sharded in (False, True)]
    parameters = [{"params": group} for group in groups if group]
    betas = (spec.beta1, spec.beta2)
    return torch.optim.AdamW(parameters, lr=0.0, betas=betas, eps=spec.eps, weight_decay=spec.weight_decay, **kernel)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of every parameter group, times its own factor if it has one."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group[RATE_FACTOR] if RATE_FACTOR in group else rate


def gradient_norm(parameters: Iterable[Tensor]) -> Tensor:
    """Return the joint l2 norm of the gradients, shape ()."""
    return joint_norm(p.grad for p in parameters if p.grad is not None)[0]


def clip(parameters: Sequence[Tensor], gates: Sequence[Tensor], spec: Optim) -> tuple[Tensor, Tensor]:
    """Clip the gradients of all `parameters` of a network in place; `gates` are those of its gates.

    Return the joint norm of all gradients before clipping, shape (), and that of each gradient, as `joint_norm`.
    """
    norm, norms = joint_norm(p.grad for p in parameters if p.grad is not None)
    if spec.clip > 0 and spec.clip_over == "all":
        _scale(parameters, spec.clip, norm)
    elif spec.clip > 0:
        others = [p for p in parameters if all(p is not gate for gate in gates)]
        _scale(others, spec.clip, gradient_norm(others))
    if spec.clip_gates > 0:
        _scale(gates, spec.clip_gates, gradient_norm(gates))
    return norm, norms


def _scale(parameters: Iterable[Tensor], bound: float, norm: Tensor) -> None:
    """Scale gradients of joint norm `norm` down to `bound`.

    As torch.nn.utils.clip_grads_with_norm_, which cannot scale shards together with whole tensors.
    """
    factor = torch.clamp(bound / (norm + 1e-6), max=1.0)
    if gradients := [local(p.grad) for p in parameters if p.grad is not None]:
        torch._foreach_mul_(gradients, factor)
