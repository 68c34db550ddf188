"""Matrix products in the form that GPUs compute fastest: few of them, and no row that is not aligned.

On a GPU the linear maps of one input are one product with their joined weights, and the width of a feed-forward network
is padded with zeros to a multiple of ALIGNED_WIDTH. Zero rows and columns add nothing: silu, gelu and relu of 0 are 0.
Weights are joined and padded when they are used, which is fused with the cast of a compiled layer under autocast; the
parameters, their names and their gradients stay as they are. The head's matrix gets rows of zeros in the same way, for
vocabularies such as GPT-2's of 50,257. On a CPU none of this is worthwhile, so nothing changes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# A row of bfloat16 is then a multiple of 128 bytes. The fastest products need 16; the 1B of the papers has 5,461.
ALIGNED_WIDTH = 64
WIDEST_JOINED = 1024  # inputs; with more of them, several products are about as fast as a joined one


def prefers_wide(x: Tensor) -> bool:
    """Return whether the device of x computes one wide product faster than several narrow ones."""
    return x.is_cuda


def joins(x: Tensor, weight: Tensor) -> bool:
    """Return whether the product with joined weights is worth their copy, which is saved for the backward pass.

    Where autocast makes a copy anyway, it is. Other copies would keep most of what FSDP has gathered, 9 GB at 7B.
    """
    cast = weight.dtype == torch.float32 and torch.is_autocast_enabled(x.device.type)
    return cast or x.shape[-1] <= WIDEST_JOINED


def outputs(x: Tensor, maps: Sequence[nn.Linear], multiple: int = 1) -> Sequence[Tensor]:
    """Return the output of every map for the same x, (..., hidden) -> (..., width) each.

    Where wide products pay, widths are padded with zeros to a multiple of `multiple`.
    """
    if not prefers_wide(x):
        return [linear(x) for linear in maps]
    widths = [-(-linear.out_features // multiple) * multiple for linear in maps]
    weights = [_padded(linear.weight, width) for linear, width in zip(maps, widths, strict=True)]
    biases = [
        _padded(linear.bias, width) for linear, width in zip(maps, widths, strict=True) if linear.bias is not None
    ]
    if not joins(x, maps[0].weight):
        return [F.linear(x, *parts) for parts in (zip(weights, biases, strict=True) if biases else zip(weights))]
    y = F.linear(x, _joined(weights), _joined(biases) if biases else None)
    return torch.split(y, widths, -1)


def with_inputs(weight: Tensor, width: int) -> Tensor:
    """Return `weight`, (out, in), with zero columns for the inputs from `in` to `width`: (out, width)."""
    extra = width - weight.shape[1]
    return F.pad(weight, (0, extra)) if extra else weight


def aligned_rows(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `weight`, (out, in), in `dtype`; where that makes the products of its outputs faster, with rows of zeros
    up to a multiple of ALIGNED_WIDTH."""
    rows = -(-len(weight) // ALIGNED_WIDTH) * ALIGNED_WIDTH
    if rows == len(weight) or dtype.itemsize > 2 or not prefers_wide(weight):
        return weight.to(dtype)
    padded = weight.new_zeros(rows, weight.shape[1], dtype=dtype)
    padded[: len(weight)] = weight
    return padded


def _padded(tensor: Tensor, rows: int) -> Tensor:
    extra = rows - len(tensor)
    return F.pad(tensor, (0,) * (2 * tensor.dim() - 1) + (extra,)) if extra else tensor


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(tensors)) if len(tensors) > 1 else tensors[0]
