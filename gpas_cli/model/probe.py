"""Per-layer statistics: what the paper plots. Nothing is registered, and nothing costs, while no probe is attached."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from gpas_cli.model.llama import Llama


@contextmanager
def activation_variance(network: Llama) -> Iterator[list[Tensor]]:
    """Collects, in each forward pass inside the context, the variance over features, averaged over tokens, of the
    residual stream entering every layer and the final norm: layers + 1 scalars."""
    seen: list[Tensor] = []

    def observe(_module: nn.Module, args: tuple[Tensor, ...]) -> None:
        seen.append(args[0].detach().float().var(-1, correction=0).mean())

    places = [*network.model.layers, network.model.norm]
    handles = [place.register_forward_pre_hook(observe) for place in places]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def gate_values(network: Llama) -> list[float]:
    """act(alpha) of every gate, first layer first; two per layer where sub-layers do not share."""
    return [gate.value().item() for gate in network.gates()]


def layer_gradient_norms(network: Llama) -> list[float]:
    """The l2 norm of each layer's gradients, first layer first."""
    norms = []
    for layer in network.model.layers:
        gradients = [p.grad for p in layer.parameters() if p.grad is not None]
        norms.append(torch.nn.utils.get_total_norm(gradients).item())
    return norms
