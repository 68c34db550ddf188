"""Read activations inside a network by forward hooks, which exist, and cost time, only within a `with` block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from gpas_cli.model.llama import Llama


@contextmanager
def observed_inputs(modules: Iterable[nn.Module], observe: Callable[[nn.Module, Tensor], None]) -> Iterator[None]:
    """Call `observe` with each of `modules` and its detached input in every forward pass inside the context."""

    def hook(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        observe(module, args[0].detach())

    handles = [module.register_forward_pre_hook(hook) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def activation_variance(network: Llama, *, wanted: bool = True) -> Iterator[list[Tensor]]:
    """Collect the variance over features, averaged over tokens, of the residual stream entering every layer and the
    final norm: layers + 1 scalars for each forward pass inside the context. Without `wanted`, collect nothing."""
    seen: list[Tensor] = []
    modules = [*network.model.layers, network.model.norm] if wanted else []
    with observed_inputs(modules, lambda _, x: seen.append(x.float().var(-1, correction=0).mean())):
        yield seen
