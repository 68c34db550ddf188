"""Attention on rows of different lengths in one stream, by FlashAttention's kernel for GPUs."""

from __future__ import annotations

import functools
import inspect
import warnings

import torch
import torch.nn.functional as F
from torch import Tensor

from gpas_cli.errors import first_line

# Rows of different lengths in one stream, by FlashAttention's kernel for GPUs.
_HALF = (torch.bfloat16, torch.float16)
_CAUSAL_WINDOW = (-1, 0)
# Relative to the largest value: a few roundings to bfloat16. Attention to the wrong tokens errs by far more.
TOLERANCE = 5e-2


def ragged_attention(q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, longest: int) -> Tensor:
    """Return softmax(q k^T / sqrt(h)) v, where each token sees the tokens of its row up to itself: (n, heads, h).

    q, k, v: (n, heads, h), in bfloat16 or float16; bounds: (rows + 1,), int32, where each row begins and the last ends;
    longest: tokens in a row, at most.
    """
    kernel = torch.nn.attention.varlen.varlen_attn
    return kernel(q, k, v, bounds, bounds, longest, longest, window_size=_CAUSAL_WINDOW)  # type: ignore[return-value]


def suits_ragged(x: Tensor, head_dim: int) -> bool:
    """Return whether the kernel takes heads of this width, on x's device and in the dtype in which x is multiplied."""
    half = x.dtype in _HALF or torch.is_autocast_enabled(x.device.type)
    return x.is_cuda and half and head_dim % 8 == 0 and head_dim <= 256


@functools.cache
def has_ragged(device: torch.device) -> bool:
    """Return whether `device` is a GPU whose kernel equals attention on separate rows, gradients included.

    With deterministic algorithms, its backward pass is deterministic as well. Warns if torch has the kernel and it does
    not work here.
    """
    if device.type != "cuda" or not _in_torch():
        return False
    try:
        worst = _error(device)
    except Exception as error:  # its class depends on what is missing
        warnings.warn(f"packed rows are spread for attention, which is slower: {first_line(error)}", stacklevel=2)
        return False
    if not worst <= TOLERANCE:  # true for NaN, too
        warnings.warn(f"packed rows are spread for attention: the kernel's result is off by {worst:.2g}", stacklevel=2)
        return False
    return True


def _in_torch() -> bool:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return False
    # torch 2.10 has another argument for causal attention.
    return "window_size" in inspect.signature(varlen_attn).parameters


@torch.enable_grad()  # the first packed rows of a process may belong to an evaluation
def _error(device: torch.device) -> float:
    """Return the largest difference between the kernel's outputs and gradients and attention on each row alone; NaN
    if one of them is NaN."""
    lengths = (5, 64, 19)
    generator = torch.Generator().manual_seed(0)
    shape = (3, sum(lengths), 2, 64)
    stream = torch.randn(shape, generator=generator).to(device, torch.bfloat16).requires_grad_()
    bounds = torch.tensor((0, 5, 69, 88), dtype=torch.int32, device=device)
    ours = ragged_attention(stream[0], stream[1], stream[2], bounds, max(lengths))
    parts = []
    for part in torch.split(stream, list(lengths), 1):
        q, k, v = part.transpose(1, 2)[:, None]
        parts.append(F.scaled_dot_product_attention(q, k, v, is_causal=True)[0].transpose(0, 1))
    theirs = torch.cat(parts)
    gradients = [torch.autograd.grad(y.float().mean(), stream)[0] for y in (ours, theirs)]
    pairs = [(ours.detach(), theirs.detach()), *zip(*gradients, strict=True)]
    return float(torch.stack([(a - b).abs().max() / b.abs().max() for a, b in pairs]).max())
