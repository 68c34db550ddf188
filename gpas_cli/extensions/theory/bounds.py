"""Upper bounds on the spectral norms of sub-layer Jacobians, from standard deviations (Spike No More, Takase et al.).

Symbols of the paper, and the corresponding parts of our networks:

    d, d_ffn, d_head, h, L   hidden size, feed-forward size, head size, heads, tokens in the sequence
    sigma_x, sigma_x'        standard deviation of the residual stream entering attention, the feed-forward network
    sigma_Q, K, V, O         of the attention's matrices q_proj, k_proj, v_proj, o_proj
    sigma_1, sigma_2         of the feed-forward network's W_1 and W_2: gate_proj and down_proj; without a gate_proj,
                             W_1 is up_proj
    sigma_V                  of SwiGLU's V: up_proj
    s                        of the module's own input: 1 after a norm of weight 1

Assumption 1 (section 3): matrices and stream are independent and normal with mean 0. A matrix of shape (n, m) then has
the spectral norm sigma (sqrt(n) + sqrt(m)) and a stream vector the length sigma_x sqrt(d), so a norm's Jacobian has the
spectral norm 1 / sigma_x (equations 14 and 22). These are estimates for wide networks rather than inequalities for
every draw, but the products of norms leave enough room for the bounds to hold. The paper drops z z^T / d from a norm's
Jacobian because its entries are small. Its spectral norm is 1, which is not small; but I - z z^T / d is a projection,
whose spectral norm is 1 as well, so the norm in (14) is right.

Where the paper leaves a choice:

- Equation (15) takes the identity as activation. Figure 2 plots it for networks with another activation. For SwiGLU we
  compute it with W_1 = gate_proj, for comparison with the figure. It is then not a bound; (44) is. With SiLU the bound
  is (29), with a factor of 1.1, the largest slope of SiLU. GELU, which the paper does not treat, has the largest slope
  1.13, and by steps (25) to (28) that factor. ReLU has no slope above 1, so (15) holds; the paper halves d_ffn in it
  (appendix E.1), for the half of the features that are cut off.
- (44) bounds two diagonal matrices by the expected maximum of d_ffn normal variables (37, 41): of one token, and
  without absolute values. log is the natural logarithm, and 2.1 = 1.1 (largest slope of SiLU) + 1.
- (20) refers to appendix G for ||J^Z||. Its equation (75) assumes that every token attends to all L equally (A = 1/L)
  and one sigma for Q, K and V. We measure each sigma: sigma^3 -> sigma_Q sigma_K sigma_V, sigma -> sigma_V. Our
  attention is causal: token t attends to t tokens, and averaging then has a norm of up to 2 instead of 1. The sum over
  heads and the products of norms leave more room than that factor.
- In (65) and (66) index l remains outside a sum over l, and the factor delta_kj of the last part is missing. Both only
  make the bound larger; the missing delta is why (75) grows with sqrt(L).
- (68) sums D_l v_l^T as if D_l and v_l were independent, although both are linear in x_l. This is adequate for L up to
  a few times d; for longer sequences the sum is larger than assumed and grows with L instead of sqrt(L).
- The weight of a norm, or the multiplier of LNS (1 in the paper), multiplies both 1 / sigma_x and s. (43) has s as a
  factor; in (75) it enters squared, through D_l v_l^T and E_k v_l^T.
- Layers other than x + f(N(x)) are bounded by the same reasoning, part by part (`Surroundings.bound`).

Measure the quantities in the bounds: standard deviations, spectral norms and gradients of sub-layers.

Compare the gradient of GPAS, which the stop-gradient preserves, with the gradient of naive scaling (GPAS, appendix B).

Naive scaling is the same gate without stop-gradient, equation (12): x_{l+1} = beta_l x'_{l+1}, with beta_l = 1 -
act(alpha_l). Appendix B: dL/dx_1 of naive scaling is GPAS's times the product of all beta_l.

Derivation for our residual formula. In the forward pass both gates compute x - act(alpha) x, so both networks have the
same stream, the same loss and, except for the gates, the same Jacobian of every part. The whole stream passes through a
gate in one of the slots ENTRY, SUM, OUT: its factor in the chain of Jacobians is beta I, or I with stop-gradient, and
scalars commute with everything. For all weights, norms and losses, exactly and element by element,

    dL/dx_l (naive)  =  dL/dx_l (GPAS)  *  product of beta over the gates from layer l to the last.

Differences from the appendix, and limits:

- The appendix has one sub-layer per layer. Ours has a gate at both: a factor beta_l^2 per layer with a shared gate, and
  beta_l,attention beta_l,feed-forward with two. The appendix's products end at L - 1, since its loss is a function of
  x_L.
- In the slots IN, BRANCH and SKIP only a part of the sum passes through the gate: I + beta f' is not a multiple of
  I + f', so no product of betas is exact. SKIP is the paper's placement for Post-LN and DeepNorm (equations 7 and 8),
  with N'(a beta I + f') instead of N'(a I + f'): the product is right only if f' is negligible compared with a I.
  Appendix B does not cover these slots; `naive_over_preserved` returns None.
- "Preserves" refers to naive scaling, not to the network without gates. The latter has another stream, and even with
  equal weights its dx'_{l+1}/dx_l = I + f' N'(x_l) differs: N'(x_l) ~ 1/sigma(x_l) grows as gates shrink x_l.
- The appendix assumes beta < 1. SiLU(alpha) can be as low as -0.278: a gate may also scale up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import field

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpas_cli.errors import GpasError
from gpas_cli.model.layers import GpasGate, LearnedFactor
from gpas_cli.model.llama import Block, Llama, SubLayer
from gpas_cli.model.stream import hooked, observed_inputs
from gpas_cli.spec.gate import activation
from gpas_cli.spec.model import Model, Size
from gpas_cli.structure import Frozen

_Map = Callable[[Tensor], Tensor]

# The largest slope of an activation, equations (27) and (29). That of GELU in the tanh form is at x = 1.42.
_SLOPES = {"silu": 1.1, "gelu": 1.13, "relu": 1.0}
_LANCZOS_STEPS = 24
NOT_COMPOSED = "the bounds apply only to layers of attention followed by a feed-forward network"
_IN_SERIES = {"entry", "sum", "out"}


class FeedForwardSigmas(Frozen):
    """Standard deviations and shape of a feed-forward network; `sigma_v` is None without a gate.

    slope: the largest slope of the activation, one of _SLOPES; 1 for the identity.
    """

    d: int
    d_ffn: int
    sigma_1: float
    sigma_2: float
    sigma_v: float | None = None
    slope: float = 1.0

    @property
    def c_ffn(self) -> float:
        """C_ffn = (sqrt(d) + sqrt(d_ffn))^2 of equation (15)."""
        return (math.sqrt(self.d) + math.sqrt(self.d_ffn)) ** 2

    def identity(self) -> float:
        """Return the bound of the Jacobian with the identity as activation, equation (11)."""
        return self.sigma_1 * self.sigma_2 * self.c_ffn

    def jacobian(self, s: float = 1.0) -> float:
        """Return the bound of the Jacobian: equation (43) for a SwiGLU, else (28), with the slope of the activation."""
        if self.sigma_v is None:
            return self.slope * self.identity()
        c_swiglu = (_SLOPES["silu"] + 1) * self.c_ffn * math.sqrt(2 * self.d * math.log(self.d_ffn))
        return s * self.sigma_v * self.sigma_1 * self.sigma_2 * c_swiglu


class AttentionSigmas(Frozen):
    """Standard deviations and shape of self-attention over `length` tokens."""

    d: int
    heads: int
    length: int
    sigma_q: float
    sigma_k: float
    sigma_v: float
    sigma_o: float

    def heads_jacobian(self, s: float = 1.0) -> float:
        """Return the bound of ||J^Z||, equation (75)."""
        d_head = self.d // self.heads
        root = math.sqrt(self.length)
        scores = (root + 2 + 1 / root) * self.sigma_q * self.sigma_k * self.sigma_v * math.sqrt(self.d**3 * d_head)
        values = self.sigma_v * (math.sqrt(self.d) + math.sqrt(d_head))
        return self.heads * (s**2 * scores + values)

    def jacobian(self, s: float = 1.0) -> float:
        """Return the bound of the attention's Jacobian, equation (19): sigma_O C_Attn."""
        return self.sigma_o * 2 * math.sqrt(self.d) * self.heads_jacobian(s)


class Surroundings(Frozen):
    """The parts around a module in the residual formula, as factors of spectral norms.

    `in_norm`, `branch_norm`, `out_norm`: gain / sigma of the norm's input, equation (14); 1 for an absent norm.
    """

    in_norm: float = 1.0
    branch_norm: float = 1.0
    out_norm: float = 1.0
    skip: float = 1.0
    branch: float = 1.0
    gates: Mapping[str, float] = field(default_factory=dict)
    """1 for a gate with stop-gradient, else |1 - act(alpha)|, by slot."""
    s: float = 1.0  # s of the module's input

    def bound(self, module: float) -> float:
        """Return the bound of a sub-layer's Jacobian, given its module's, by sub-additivity and sub-multiplicativity.

        For x + f(N(x)) it is 1 + module / sigma_x: equation (9), (17), and thus (15), (20), (29), (44).
        """
        gate = self.gates
        branch = self.branch * gate.get("branch", 1.0) * self.branch_norm * module * gate.get("in", 1.0) * self.in_norm
        total = self.skip * gate.get("skip", 1.0) + branch
        return gate.get("out", 1.0) * self.out_norm * gate.get("sum", 1.0) * total * gate.get("entry", 1.0)


def spectral_norm(f: _Map, x: Tensor, steps: int = _LANCZOS_STEPS) -> float:
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


def _largest_eigenvalue(apply: _Map, like: Tensor, steps: int) -> float:
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
def inputs_of(modules: Iterable[nn.Module], reduce: _Map = lambda x: x) -> Iterator[dict[nn.Module, Tensor]]:
    """Collect the input of each of `modules`, reduced, in the forward pass inside the context."""
    seen: dict[nn.Module, Tensor] = {}
    with observed_inputs(modules, lambda module, x: seen.__setitem__(module, reduce(x))):
        yield seen


def deviation(x: Tensor) -> float:
    """Return the standard deviation around 0 (Assumption 1) over all tokens and features."""
    return x.detach().square().mean().sqrt().item()


def readings(sublayer: SubLayer, x: Tensor) -> tuple[Surroundings, Surroundings]:
    """Return the surroundings of a sub-layer for the stream `x`, with sigmas over all tokens, as in the paper, and
    with the sigmas of the worst token. A spectral norm over a sequence is at least any token's."""
    with torch.no_grad(), mean_squares([sublayer]) as seen:
        sublayer.apply(x)
    return reading(sublayer, seen, torch.mean, torch.mean), reading(sublayer, seen, torch.min, torch.max)


def mean_squares(sublayers: Iterable[SubLayer]) -> AbstractContextManager[dict[nn.Module, Tensor]]:
    """Collect the mean square over features, (1, time), of the input of each norm and module of `sublayers` in the
    forward pass inside the context."""
    modules = [part for one in sublayers for part in (*_norms(one), one.module)]
    return inputs_of(modules, lambda x: x.square().mean(-1))


def _norms(sublayer: SubLayer) -> tuple[nn.Module, nn.Module, nn.Module]:
    return sublayer.residual.in_norm, sublayer.residual.branch_norm, sublayer.residual.out_norm


def reading(sublayer: SubLayer, seen: Mapping[nn.Module, Tensor], of_norms: _Map, of_module: _Map) -> Surroundings:
    """Return the surroundings of a sub-layer for the mean squares `seen`, each reduced to one number."""
    residual = sublayer.residual
    gates = {slot: _gate_factor(gate) for slot, gate in residual.gates.items() if isinstance(gate, GpasGate)}
    inside, branch, out = (_norm_factor(norm, of_norms(seen[norm])) for norm in _norms(sublayer))
    factors = _magnitude(residual.skip), _magnitude(residual.branch)
    return Surroundings(inside, branch, out, *factors, gates, of_module(seen[sublayer.module]).sqrt().item())


def _magnitude(factor: float | LearnedFactor) -> float:
    """Return the spectral norm of a multiplication by a number or, element by element, a vector."""
    return factor.weight.abs().max().item() if isinstance(factor, LearnedFactor) else abs(factor)


def _norm_factor(norm: nn.Module, square: Tensor) -> float:
    """Return the largest gain over the deviation of the norm's input, given its square; 1 without a norm."""
    if isinstance(norm, nn.Identity):
        return 1.0
    gain = norm.get_parameter("weight").abs().max().item() * getattr(norm, "scale", 1.0)
    return float(gain / (square.item() + norm.eps) ** 0.5)  # type: ignore[operator]


def _gate_factor(gate: GpasGate) -> float:
    return 1.0 if gate.stop_gradient else abs(1 - gate.value().item())


def attention_numbers(module: nn.Module, size: Size, length: int) -> AttentionSigmas:
    """Return the standard deviations of an attention's matrices."""
    sigmas = [deviation(module.get_parameter(f"{name}_proj.weight")) for name in ("q", "k", "v", "o")]
    return AttentionSigmas(size.hidden, size.heads, length, *sigmas)


def feed_forward_numbers(
    module: nn.Module, model: Model, sigma: Callable[[Tensor], float] = deviation
) -> FeedForwardSigmas:
    """Return the standard deviations of a feed-forward network's matrices; SwiGLU's W_1 is gate_proj."""
    size = model.size
    names = {name for name, _ in module.named_children()}
    up, down = (sigma(module.get_parameter(f"{name}.weight")) for name in ("up_proj", "down_proj"))
    if "gate_proj" not in names:
        return FeedForwardSigmas(size.hidden, size.ffn, up, down, slope=_SLOPES.get(model.family.ffn, 1.0))
    gate = sigma(module.get_parameter("gate_proj.weight"))
    return FeedForwardSigmas(size.hidden, size.ffn, gate, down, sigma_v=up)


def sublayer_inputs(network: Llama, tokens: Tensor) -> Iterator[tuple[SubLayer, SubLayer, Tensor, Tensor]]:
    """Yield attention, feed-forward network, and the input stream (1, time, hidden) of each, for every layer.

    tokens: (1, time). Raises GpasError for layers that are not the composition of their two sub-layers.
    """
    decoder = network.model
    with torch.no_grad(), inputs_of([*decoder.layers, decoder.norm]) as seen:
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

    with hooked([*network.model.layers, network.model.norm], keep):
        loss = F.cross_entropy(network(tokens).flatten(0, 1), targets.flatten())
    return list(torch.autograd.grad(loss, entering))


def naive_over_preserved(model: Model, alphas: Sequence[Sequence[float]]) -> list[float | None]:
    """Return dL/dx of naive scaling over dL/dx of GPAS for the stream entering layers 1, ..., L and the final norm.

    alphas: one row per layer, with one value for both sub-layers or one for each; shape (L, 1) or (L, 2).
    None if only a part of the stream passes through a later gate, so that no such number exists.
    """
    assert model.gate is not None
    assert len(alphas) == model.size.layers
    ratios: list[float | None] = [1.0]
    for layer in range(model.size.layers, 0, -1):
        row = alphas[layer - 1]
        betas = [1 - activation(model.gate.activation, alpha)[0] for alpha in (row[0], row[-1])]
        later = ratios[0]
        # A gate with beta = 1 has no effect in any slot.
        factor = math.prod(betas) if set(model.gate_slots(layer)) <= _IN_SERIES or betas == [1, 1] else None
        ratios.insert(0, later * factor if later is not None and factor is not None else None)
    return ratios


def gate_alphas(network: Llama) -> list[list[float]]:
    """Return alpha of every layer: one value, or attention's and the feed-forward network's."""
    alphas = [gate.alpha.item() for gate in network.gates()]
    per_layer = len(alphas) // network.spec.size.layers
    return [alphas[start : start + per_layer] for start in range(0, len(alphas), per_layer)]


def both_gradients(network: Llama, tokens: Tensor, targets: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Return `stream_gradients` with naive scaling and with stop-gradient, by autograd."""
    before = [(gate, gate.stop_gradient) for gate in network.gates()]
    found = []
    try:
        for stop in (False, True):
            for gate, _ in before:
                gate.stop_gradient = stop
            found.append(stream_gradients(network, tokens, targets))
    finally:
        for gate, stop in before:
            gate.stop_gradient = stop
    return found[0], found[1]
