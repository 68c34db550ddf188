"""Adam, its learning rate, and the reference's order of clipping: all gradients together, then the gates'."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from gpas_cli.model.llama import Llama
from gpas_cli.spec.optim import Optim


def make_adam(network: Llama, spec: Optim) -> torch.optim.Optimizer:
    """Adam with decoupled weight decay over every trainable parameter, gates included, in one group."""
    trainable = [p for p in network.parameters() if p.requires_grad]
    betas = (spec.beta1, spec.beta2)
    return torch.optim.AdamW(trainable, lr=0.0, betas=betas, eps=spec.eps, weight_decay=spec.weight_decay, fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def gradient_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """The joint l2 norm of the gradients, shape ()."""
    return torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])


def clip(network: Llama, spec: Optim) -> Tensor:
    """Clip in place; the joint norm of all gradients before clipping, shape ()."""
    parameters, gates = list(network.parameters()), [gate.alpha for gate in network.gates()]
    norm = gradient_norm(parameters)
    if spec.clip > 0 and spec.clip_over == "all":
        torch.nn.utils.clip_grads_with_norm_(parameters, spec.clip, norm)
    elif spec.clip > 0:
        torch.nn.utils.clip_grad_norm_([p for p in parameters if all(p is not gate for gate in gates)], spec.clip)
    if spec.clip_gates > 0:
        torch.nn.utils.clip_grad_norm_(gates, spec.clip_gates)
    return norm
