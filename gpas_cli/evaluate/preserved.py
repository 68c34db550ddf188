"""Compare the gradient of GPAS, which the stop-gradient preserves, with that of naive scaling (GPAS, appendix B).

Naive scaling is the same gate without stop-gradient, equation (12): x_{l+1} = beta_l x'_{l+1}, with beta_l = 1 -
act(alpha_l). Appendix B: dL/dx_1 of naive scaling is that of GPAS times the product of all beta_l.

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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from gpas_cli.evaluate.jacobian import stream_gradients
from gpas_cli.model.llama import Llama
from gpas_cli.spec.gate import activation
from gpas_cli.spec.model import Model

IN_SERIES = ("entry", "sum", "out")


def naive_over_preserved(model: Model, alphas: Sequence[Sequence[float]]) -> list[float | None]:
    """Return dL/dx of naive scaling over dL/dx of GPAS for the stream entering layers 1, ..., L and the final norm.

    alphas: one row per layer, with one value for both sub-layers or one for each; shape (L, 1) or (L, 2).
    None if only a part of the stream passes through a later gate, so that no such number exists.
    """
    assert model.gate is not None
    assert len(alphas) == model.size.layers
    act = activation(model.gate.activation).value
    ratios: list[float | None] = [1.0]
    for layer in range(model.size.layers, 0, -1):
        row = alphas[layer - 1]
        betas = [1 - act(row[0]), 1 - act(row[-1])]
        later = ratios[0]
        # A gate with beta = 1 has no effect in any slot.
        factor = math.prod(betas) if model.gate_slot(layer) in IN_SERIES or betas == [1, 1] else None
        ratios.insert(0, later * factor if later is not None and factor is not None else None)
    return ratios


def gate_alphas(network: Llama) -> list[list[float]]:
    """Return alpha of every layer: one value, or attention's and the feed-forward network's."""
    alphas = [gate.alpha.item() for gate in network.gates()]
    per_layer = len(alphas) // network.spec.size.layers
    return [alphas[start : start + per_layer] for start in range(0, len(alphas), per_layer)]


@contextmanager
def gradients_through_gates(network: Llama, through: bool) -> Iterator[None]:
    """Use naive scaling (`through`) or stop-gradient in every gate inside the context."""
    before = [(gate, gate.stop_gradient) for gate in network.gates()]
    try:
        for gate, _ in before:
            gate.stop_gradient = not through
        yield
    finally:
        for gate, stop in before:
            gate.stop_gradient = stop


def both_gradients(network: Llama, tokens: Tensor, targets: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Return `stream_gradients` with naive scaling and with stop-gradient, by autograd."""
    with gradients_through_gates(network, True):
        naive = stream_gradients(network, tokens, targets)
    with gradients_through_gates(network, False):
        preserved = stream_gradients(network, tokens, targets)
    return naive, preserved
