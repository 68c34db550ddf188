"""Measure the quantities in the bounds: standard deviations, spectral norms and gradients of sub-layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpas_cli.errors import GpasError
from gpas_cli.evaluate.bounds import SLOPES, AttentionSigmas, FeedForwardSigmas, Surroundings
from gpas_cli.model.gate import GpasGate
from gpas_cli.model.llama import Block, Llama, SubLayer
from gpas_cli.model.probe import observed_inputs
from gpas_cli.spec.model import Model, Size

LANCZOS_STEPS = 24
NOT_COMPOSED = "the bounds apply only to layers of attention followed by a feed-forward network"

Chosen = Callable[[Tensor], Tensor]


def spectral_norm(f: Callable[[Tensor], Tensor], x: Tensor, steps: int = LANCZOS_STEPS) -> float:
    """Return the largest singular value of f's Jacobian at x, by Lanczos on J^T J: a lower bound, exact once `steps`
    reaches the number of elements of x. Stop-gradients count as in autograd."""
    with sdpa_kernel(SDPBackend.MATH):  # the only attention kernel that can be differentiated twice
        x = x.detach().requires_grad_()
        y = f(x)
        # J^T u is linear in u; its derivative with respect to u, applied to v, is J v.
        u = torch.zeros_like(y, requires_grad=True)
        (pulled,) = torch.autograd.grad(y, x, u, create_graph=True)

        def normal(v: Tensor) -> Tensor:
            (pushed,) = torch.autograd.grad(pulled, u, v, retain_graph=True)
            return torch.autograd.grad(y, x, pushed, retain_graph=True)[0]

        return math.sqrt(_largest_eigenvalue(normal, x, steps))


def _largest_eigenvalue(apply: Callable[[Tensor], Tensor], like: Tensor, steps: int) -> float:
    """Return the largest eigenvalue of a symmetric operator on tensors shaped like `like`, by Lanczos."""
    steps = min(steps, like.numel())
    basis = like.new_zeros(steps + 1, like.numel())
    start = torch.randn(like.numel(), generator=torch.Generator().manual_seed(0), dtype=like.dtype)
    basis[0] = (start / start.norm()).to(like.device)
    matrix = torch.zeros(steps + 1, steps + 1, dtype=like.dtype)
    for k in range(steps):
        w = apply(basis[k].view_as(like)).flatten()
        matrix[k, k] = w @ basis[k]
        for _ in range(2):
            w = w - basis[: k + 1].T @ (basis[: k + 1] @ w)
        length = w.norm()
        if length <= 1e-12 * matrix[0, 0].abs():
            steps = k + 1
            break
        matrix[k, k + 1] = matrix[k + 1, k] = length
        basis[k + 1] = w / length
    return float(torch.linalg.eigvalsh(matrix[:steps, :steps])[-1])


@contextmanager
def module_inputs(modules: list[nn.Module]) -> Iterator[dict[nn.Module, Tensor]]:
    """Collect the input of each of `modules` in the forward pass inside the context."""
    seen: dict[nn.Module, Tensor] = {}
    with observed_inputs(modules, seen.__setitem__):
        yield seen


def deviation(x: Tensor) -> float:
    """Return the standard deviation around 0 (Assumption 1) over all tokens and features."""
    return x.square().mean().sqrt().item()


@dataclass(frozen=True)
class Reading:
    """The parts around a module, and s, the standard deviation of the module's input."""

    around: Surroundings
    s: float


def readings(sublayer: SubLayer, x: Tensor) -> tuple[Reading, Reading]:
    """Return the surroundings of a sub-layer for the stream `x`, with sigmas over all tokens, as in the paper, and
    with those of the worst token. A spectral norm over a sequence is at least that of any token."""
    with torch.no_grad(), mean_squares([sublayer]) as seen:
        sublayer.apply(x)
    return reading(sublayer, seen, torch.mean, torch.mean), reading(sublayer, seen, torch.min, torch.max)


@contextmanager
def mean_squares(sublayers: Iterable[SubLayer]) -> Iterator[dict[nn.Module, Tensor]]:
    """Collect the mean square over features, (1, time), of the input of each norm and module of `sublayers` in the
    forward pass inside the context."""
    seen: dict[nn.Module, Tensor] = {}
    modules = [part for one in sublayers for part in (*_norms(one), one.module)]
    with observed_inputs(modules, lambda module, x: seen.__setitem__(module, x.square().mean(-1))):
        yield seen


def _norms(sublayer: SubLayer) -> tuple[nn.Module, nn.Module, nn.Module]:
    return sublayer.residual.in_norm, sublayer.residual.branch_norm, sublayer.residual.out_norm


def reading(sublayer: SubLayer, seen: Mapping[nn.Module, Tensor], of_norms: Chosen, of_module: Chosen) -> Reading:
    """Return the surroundings of a sub-layer for the mean squares `seen`, each reduced to one number."""
    residual = sublayer.residual
    gates = tuple((slot, _gate_factor(gate)) for slot, gate in residual.gates.items() if isinstance(gate, GpasGate))
    inside, branch, out = (_norm_factor(norm, of_norms(seen[norm])) for norm in _norms(sublayer))
    around = Surroundings(inside, branch, out, residual.skip, gates)
    return Reading(around, of_module(seen[sublayer.module]).sqrt().item())


def _norm_factor(norm: nn.Module, square: Tensor) -> float:
    """Return the largest gain over the deviation of the norm's input, given its square; 1 without a norm."""
    if isinstance(norm, nn.Identity):
        return 1.0
    gain = norm.get_parameter("weight").abs().max().item() * getattr(norm, "scale", 1.0)
    return float(gain / (square.item() + norm.eps) ** 0.5)  # type: ignore[operator]


def _gate_factor(gate: GpasGate) -> float:
    return 1.0 if gate.stop_gradient else abs(1 - gate.value().item())


def attention_numbers(module: nn.Module, size: Size, length: int) -> AttentionSigmas:
    """Return the measured standard deviations of an attention's matrices."""
    sigmas = [_sigma(module, f"{name}_proj") for name in ("q", "k", "v", "o")]
    return AttentionSigmas(size.hidden, size.heads, length, *sigmas)


def feed_forward_numbers(
    module: nn.Module, model: Model, sigma: Callable[[Tensor], float] = deviation
) -> FeedForwardSigmas:
    """Return the standard deviations of a feed-forward network's matrices; SwiGLU's W_1 is gate_proj."""
    size = model.size
    names = {name for name, _ in module.named_children()}
    up, down = (sigma(module.get_parameter(f"{name}.weight")) for name in ("up_proj", "down_proj"))
    if "gate_proj" not in names:
        return FeedForwardSigmas(size.hidden, size.ffn, up, down, slope=SLOPES.get(model.family.ffn, 1.0))
    gate = sigma(module.get_parameter("gate_proj.weight"))
    return FeedForwardSigmas(size.hidden, size.ffn, gate, down, sigma_v=up)


def _sigma(module: nn.Module, name: str) -> float:
    return deviation(module.get_parameter(f"{name}.weight").detach())


def sublayer_inputs(network: Llama, tokens: Tensor) -> Iterator[tuple[SubLayer, SubLayer, Tensor, Tensor]]:
    """Yield attention, feed-forward network, and the input stream (1, time, hidden) of each, for every layer.

    tokens: (1, time). Raises GpasError for layers that are not the composition of their two sub-layers.
    """
    decoder = network.model
    with torch.no_grad(), module_inputs([*decoder.layers, decoder.norm]) as seen:
        decoder(tokens)
        entering = [seen[module] for module in (*decoder.layers, decoder.norm)]
        positions = decoder.positions(entering[0])
    for layer, x, y in zip(decoder.layers, entering, entering[1:], strict=False):
        assert isinstance(layer, Block)
        attention, feed_forward = layer.sublayers(positions)
        with torch.no_grad():
            middle = attention.apply(x)
            if not torch.allclose(feed_forward.apply(middle), y):
                raise GpasError(NOT_COMPOSED)
        yield attention, feed_forward, x, middle


def stream_gradients(network: Llama, tokens: Tensor, targets: Tensor) -> list[Tensor]:
    """Return the loss's gradient with respect to the stream entering every layer and the final norm: layers + 1 tensors
    of shape (1, time, hidden). tokens, targets: (1, time); the loss is the mean over all targets, in nats."""
    entering: list[Tensor] = []

    def keep(_module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        # A leaf instead of the embedding's output, so that gradients exist for frozen embeddings too.
        x = args[0] if entering else args[0].detach().requires_grad_()
        entering.append(x)
        return (x, *args[1:])

    modules = [*network.model.layers, network.model.norm]
    handles = [module.register_forward_pre_hook(keep) for module in modules]
    try:
        loss = F.cross_entropy(network(tokens).flatten(0, 1), targets.flatten())
    finally:
        for handle in handles:
            handle.remove()
    return list(torch.autograd.grad(loss, entering))
