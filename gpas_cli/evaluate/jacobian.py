"""What the bounds speak of, measured: standard deviations, spectral norms and gradients of a network's sub-layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpas_cli.errors import GpasError
from gpas_cli.evaluate.bounds import Attention, FeedForward, Surroundings
from gpas_cli.model.gate import Gate
from gpas_cli.model.llama import Block, Llama, SubLayer
from gpas_cli.model.probe import observed_inputs
from gpas_cli.spec.size import Size

LANCZOS_STEPS = 24


def spectral_norm(f: Callable[[Tensor], Tensor], x: Tensor, steps: int = LANCZOS_STEPS) -> float:
    """The largest singular value of f's Jacobian at x, by Lanczos on J^T J: from below, and exact once `steps` reaches
    the number of elements of x. Stop-gradients count as autograd counts them."""
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
    """Lanczos with full reorthogonalisation for a symmetric operator on tensors shaped like `like`."""
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
def seen_by(modules: list[nn.Module]) -> Iterator[dict[nn.Module, Tensor]]:
    """The input of each of `modules` in the forward pass inside the context."""
    seen: dict[nn.Module, Tensor] = {}
    with observed_inputs(modules, seen.__setitem__):
        yield seen


def deviation(x: Tensor) -> float:
    """Standard deviation around 0, as Assumption 1 has it, over all tokens and features together."""
    return x.square().mean().sqrt().item()


@dataclass(frozen=True)
class Reading:
    """What stands around a module, and s, the standard deviation of what the module receives."""

    around: Surroundings
    s: float


def readings(sublayer: SubLayer, x: Tensor) -> tuple[Reading, Reading]:
    """The sub-layer's surroundings when the stream is `x`: with one sigma per place, over all tokens as the paper has
    it, and with the sigma of the worst token. A spectral norm over a sequence is no less than that of any token."""
    residual = sublayer.residual
    norms = (residual.in_norm, residual.branch_norm, residual.out_norm)
    with torch.no_grad(), seen_by([*norms, sublayer.module]) as seen:
        sublayer.apply(x)
    gates = tuple((slot, _gate_factor(gate)) for slot, gate in residual.gates.items() if isinstance(gate, Gate))

    def around(least: Callable[[Tensor], Tensor]) -> Surroundings:
        inside, branch, out = (_norm_factor(norm, least(seen[norm].square().mean(-1))) for norm in norms)
        return Surroundings(inside, branch, out, residual.skip, gates)

    squares = seen[sublayer.module].square().mean(-1)
    mean = Reading(around(torch.mean), squares.mean().sqrt().item())
    return mean, Reading(around(torch.min), squares.max().sqrt().item())


def _norm_factor(norm: nn.Module, square: Tensor) -> float:
    """Largest gain over the deviation of the norm's input, given its square; 1 where there is no norm."""
    if isinstance(norm, nn.Identity):
        return 1.0
    gain = norm.get_parameter("weight").abs().max().item() * getattr(norm, "scale", 1.0)
    return float(gain / (square.item() + norm.eps) ** 0.5)  # type: ignore[operator]


def _gate_factor(gate: Gate) -> float:
    return 1.0 if gate.stop_gradient else abs(1 - gate.value().item())


def attention_numbers(module: nn.Module, size: Size, length: int) -> Attention:
    """The measured standard deviations of an attention's matrices."""
    sigmas = [_sigma(module, f"{name}_proj") for name in ("q", "k", "v", "o")]
    return Attention(size.hidden, size.heads, length, *sigmas)


def feed_forward_numbers(module: nn.Module, size: Size) -> FeedForward:
    """The measured standard deviations of a feed-forward network's matrices; W_1 of a SwiGLU is its gate_proj."""
    names = {name for name, _ in module.named_children()}
    first, second = _sigma(module, "up_proj"), _sigma(module, "down_proj")
    if "gate_proj" not in names:
        return FeedForward(size.hidden, size.ffn, first, second)
    return FeedForward(size.hidden, size.ffn, _sigma(module, "gate_proj"), second, sigma_v=first)


def _sigma(module: nn.Module, name: str) -> float:
    return deviation(module.get_parameter(f"{name}.weight").detach())


def sublayer_inputs(network: Llama, tokens: Tensor) -> Iterator[tuple[SubLayer, SubLayer, Tensor, Tensor]]:
    """Per layer: attention, feed-forward network, and the stream (1, time, hidden) that enters each.

    tokens: (1, time). Raises GpasError for layers that are not their two sub-layers one after the other.
    """
    decoder = network.model
    with torch.no_grad(), seen_by([*decoder.layers, decoder.norm]) as seen:
        decoder(tokens)
        entering = [seen[place] for place in (*decoder.layers, decoder.norm)]
        positions = decoder.positions(entering[0])
    for layer, x, y in zip(decoder.layers, entering, entering[1:], strict=False):
        assert isinstance(layer, Block)
        attention, feed_forward = layer.sublayers(positions)
        with torch.no_grad():
            middle = attention.apply(x)
            if not torch.allclose(feed_forward.apply(middle), y):
                raise GpasError("the bounds know only layers that are attention and then a feed-forward network")
        yield attention, feed_forward, x, middle


def stream_gradients(network: Llama, tokens: Tensor, targets: Tensor) -> list[Tensor]:
    """The loss's gradient with respect to the stream entering every layer and the final norm: layers + 1 tensors of
    shape (1, time, hidden). tokens, targets: (1, time); the loss is the mean over all targets, in nats."""
    entering: list[Tensor] = []

    def keep(_module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        # A leaf in place of the embedding, so that frozen embeddings do not matter.
        x = args[0] if entering else args[0].detach().requires_grad_()
        entering.append(x)
        return (x, *args[1:])

    places = [*network.model.layers, network.model.norm]
    handles = [place.register_forward_pre_hook(keep) for place in places]
    try:
        loss = F.cross_entropy(network(tokens).flatten(0, 1), targets.flatten())
    finally:
        for handle in handles:
            handle.remove()
    return list(torch.autograd.grad(loss, entering))
