"""Bounds that depend on the depth, from one network: those of The Curse of Depth (appendices A and B) on the gradient,
and the right-hand side of RaPTr's theorem 4.2 on the rise of the loss between two stages.

The Curse of Depth. Symbols as in `gpas_cli.extensions.theory.bounds`; a "layer" is attention and the feed-forward
network.

    sigma_x(l+1)^2 = sigma_x(l)^2 (1 + 1 / sigma_x(l))                                                  (6), Pre-LN
    sigma_x(l+1)^2 = sigma_x(l)^2 (1 + 1 / (sqrt(l) sigma_x(l)))                                        (40), LNS
    |dy_L/dx_1| <= product over l = 1, ..., L - 1 of
        (1 + sigma^2 / (sigma_x' (sqrt(d) + sqrt(d_ffn))^2))                                            (30)
      x (1 + 2 d h (sqrt(s) + 2 + 1/sqrt(s)) sigma^2/sigma_x (sigma^2 d sqrt(d_head) + 1 + sqrt(d_head/d)))
                                                                                          (25), repeated as (34)
    |dy_L/dx_1| <= product of 1 + A / sigma_x + B / sigma_x^2, A of (36), B of (37)                     (35)
    LNS: l sigma_x in place of sigma_x' and sigma_x                                                     (54), (55)

s is the number of tokens. The paper assumes one sigma for all matrices; each is measured here: sigma^2 is sigma_1
sigma_2 in the first factor, sigma_O sigma_V and sigma_Q sigma_K in the second, as in Spike No More, from which the
paper derives. With equal sigmas these are the printed equations. For SwiGLU, whose third matrix the derivation does not
have, W_1 is gate_proj.

Slips of the paper, computed as printed:

- (30) divides by (sqrt(d) + sqrt(d_ffn))^2, by which (29) and Spike No More's (15) multiply. The factor is thus nearly
  1 and does not bound the feed-forward network's Jacobian; the products hold only if attention's factor leaves room.
- (25) multiplies both of its summands by sqrt(s) + 2 + 1/sqrt(s), (33) only the first. And (33) has sigma_x where Spike
  No More's (75) has sigma. The first makes the bound larger, the second is undone in (34).
- (35) is not (34) multiplied out: A has d sqrt(d_head) without its sigma^2, and B, which should have the product of
  both factors' terms, has that summand once more. With sigma < 1, (35) is thus the larger.
- (52) and (53) begin with the norm's factor 1/sqrt(l), once; (54) divides by l.
- The products end at L - 1 and omit a layer, as Spike No More's (7).
- (6) and (40) have numerators "set to 1" (below 19), after (13) has the covariance once, where a sum has it twice, and
  (16) the variance of attention without d and 1/s: only their growth can be compared.

RaPTr. Theorem 4.2 bounds |L_2(F) - L_1(F)|, of the loss without a random layer and that of the whole network, by

    C / L  E_x[ sum_l Psi_l(x) / |F(x)| ]        Psi_l = |F_-l(x) - F(x)|, F the stream before the final norm

for "some constant C". In the proof (theorem G.1) C is mu_loss of condition (1), L(x + eta |x|) - L(x) <= mu_loss |eta|;
its discussion says that mu_loss depends on the norms of Phi and of the final norm's weight. This one satisfies (1),
with absolute values, which the theorem needs as well:

    C = 2 sqrt(2) sqrt(d) max|g| |Phi|_2

since the loss changes by at most sqrt(2) times the logits, logits by |Phi|_2 times the normalised stream, that by
sqrt(d) max|g| times the direction of the stream, and a direction by at most 2 |eta|. LayerNorm removes the mean, so |x|
in (1) becomes |x - mean|: C has their largest ratio as another factor. There is no such C for BERT's head, which
normalises what another matrix makes of the stream. In the appendix L_1 and L_2 are exchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import repeat

import torch
import torch.nn.functional as F
from torch import Tensor

from gpas_cli.extensions.theory.bounds import attention_numbers, feed_forward_numbers, inputs_of, mean_squares
from gpas_cli.model.attention import Positions
from gpas_cli.model.llama import Llama
from gpas_cli.spec.norm import LNS, Pre
from gpas_cli.structure import Frozen


class _DepthFactor(Frozen):
    """One layer."""

    layer: int
    stream_std: float  # sigma_x
    grown_std: float  # sigma_x by (6) or (40)
    middle_std: float  # sigma_x'
    feed_forward: float  # the feed-forward network's factor of (25) or (54)
    attention: float  # attention's factor of (25) or (54)
    a: float  # A of the paper
    b: float  # B of the paper
    joined: float  # the factor of (35) or (55)


class DepthBound(Frozen):
    """The bounds of The Curse of Depth.

    log10_bound, log10_joined: of the products over all layers but the last, as in the paper.
    """

    lns: bool  # whether the bounds are (54) and (55), for LNS, instead of (25) and (35)
    layers: tuple[_DepthFactor, ...]
    log10_bound: float
    log10_joined: float


def depth_bound(network: Llama, tokens: Tensor) -> DepthBound | None:
    """Return the bounds for the stream of one forward pass of a float64 network, tokens (1, time); None if the paper
    does not derive them for the network's scheme."""
    model = network.spec
    lns = type(model.norm) is LNS
    if not (lns or type(model.norm) is Pre) or (model.gate and not model.gate.stop_gradient):
        return None
    parts = [block.sublayers(Positions()) for block in network.model.blocks()]
    with torch.no_grad(), mean_squares([part for pair in parts for part in pair]) as seen:
        network.model(tokens)
    layers = list[_DepthFactor]()
    grown = 0.0
    for layer, pair in enumerate(parts, start=1):
        x, middle = (seen[part.residual.in_norm].mean().sqrt().item() for part in pair)
        attention = attention_numbers(pair[0].module, model.size, tokens.shape[1])
        ffn = feed_forward_numbers(pair[1].module, model)
        d, d_head, root = attention.d, model.size.head_width, math.sqrt(attention.length)
        depth = layer if lns else 1
        outer = 2 * d * attention.heads * (root + 2 + 1 / root) * attention.sigma_o * attention.sigma_v
        scores, scale = d * math.sqrt(d_head), attention.sigma_q * attention.sigma_k
        values = 1 + math.sqrt(d_head / d)
        first = ffn.sigma_1 * ffn.sigma_2 / ffn.c_ffn
        a, b = first + outer * (scores + values), outer * scale * scores
        grown = grown * math.sqrt(1 + 1 / (math.sqrt(layer - 1 if lns else 1) * grown)) if grown else x
        two = 1 + first / (depth * (x if lns else middle)), 1 + outer / (depth * x) * (scale * scores + values)
        joined = 1 + a / (depth * x) + b / (depth * x) ** 2
        layers.append(_DepthFactor(layer, x, grown, middle, *two, a, b, joined))
    product = sum(math.log10(one.feed_forward * one.attention) for one in layers[:-1])
    return DepthBound(lns, tuple(layers), product, sum(math.log10(one.joined) for one in layers[:-1]))


class StageGap(Frozen):
    """Theorem 4.2. Its means by layer are over tokens."""

    psi: tuple[float, ...]  # by layer, the mean of Psi_l
    relative: tuple[float, ...]  # by layer, the mean of Psi_l / |F|
    rise: tuple[float, ...]  # by layer, the mean of the loss without layer l minus that of the whole network
    gap: float  # |L_2 - L_1|
    stability: float  # (1/L) E[sum_l Psi_l / |F|]
    constant: float | None  # C, None if there is none
    bound: float | None  # the product of `stability` and `constant`


def stage_gap(
    network: Llama, tokens: Tensor, targets: Tensor, layers: Callable[[int], Iterator[None]] = lambda _: repeat(None)
) -> StageGap:
    """Return both sides of theorem 4.2 for a causal float64 network. tokens, targets: (1, time).

    layers: of their number makes an iterator, which is advanced before each layer.
    """
    decoder = network.model
    head = network.head

    def loss_of(x: Tensor) -> float:
        logits = F.linear(network.head_transform(decoder.norm(x)), head)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten()).item()

    rows = []
    blocks = decoder.blocks()
    steps = layers(len(blocks))
    with torch.no_grad():
        with inputs_of([*blocks, decoder.norm]) as seen:
            decoder(tokens)
        whole = seen[decoder.norm]
        loss = loss_of(whole)
        for number, block in enumerate(blocks, start=1):
            next(steps)
            x = seen[block]
            for later in blocks[number:]:
                x = later(x, decoder.positions(x))
            psi = (x - whole).norm(dim=-1)
            rows.append((psi.mean().item(), (psi / whole.norm(dim=-1)).mean().item(), loss_of(x) - loss))
    psis, relative, rise = zip(*rows, strict=True)
    stability = sum(relative) / len(rows)
    constant = _constant(network, whole)
    bound = None if constant is None else constant * stability
    return StageGap(psis, relative, rise, abs(sum(rise)) / len(rows), stability, constant, bound)


def _constant(network: Llama, x: Tensor) -> float | None:
    """Return C for the outputs x; None if the head has a norm of its own."""
    family = network.spec.family
    if family.head_transform:
        return None
    head = network.head.detach()
    gain = network.model.norm.get_parameter("weight").detach().abs().max()
    squares = x.var(-1, correction=0) if family.norm == "layernorm" else x.square().mean(-1)
    ratio = (x.square().mean(-1) / squares).max().sqrt()
    spectral = torch.linalg.eigvalsh(head.T @ head)[-1].sqrt()
    return float(2 * math.sqrt(2 * x.shape[-1]) * gain * spectral * ratio)
