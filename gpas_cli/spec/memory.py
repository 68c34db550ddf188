"""Bytes that a training needs, estimated from the cell alone: what weights and activations take before any is made."""

from __future__ import annotations

from gpas_cli.spec.cell import Cell
from gpas_cli.spec.flops import parameters
from gpas_cli.spec.size import Size

# Bytes of weight, gradient and Adam's two averages, for each parameter.
STATE_BYTES = {"fp32": 16, "bf16": 16, "pure_bf16": 8}
_WIDTHS = {"fp32": 4, "bf16": 3, "pure_bf16": 2}


def state_bytes(cell: Cell) -> int:
    """Bytes of weights, gradients and Adam's averages, over all devices."""
    return STATE_BYTES[cell.precision] * parameters(cell)


def activation_bytes(size: Size, precision: str, *, recompute: bool = False) -> int:
    """Bytes that a forward pass keeps for the backward pass, for each token.

    Per layer: what enters and leaves its norms (Sandwich's four), q, k, v and the attention's output, as rows and
    joined, and the two halves of the feed-forward network; with `recompute` only what enters. Logits never exist for
    all tokens.
    """
    layer = _WIDTHS[precision] * (12 * size.hidden + 2 * size.ffn)
    return layer + size.layers * 4 * size.hidden if recompute else size.layers * layer
