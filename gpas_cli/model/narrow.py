"""Norm, attention and SwiGLU of narrow networks on a CPU, in few operations.

An update of a narrow network spends more time on calling operations and on moving activations than on products. Each
function here computes what the module of that name computes, equal up to rounding, and has its own backward pass. Its
method `plain` is the formula, which is also what is differentiated twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpas_cli.model.rope import rotate

WIDEST = 256  # hidden; wider networks spend their time in products
LONGEST = 128  # tokens in a row, whose attention probabilities are kept for the backward pass

Tables = tuple[Tensor, Tensor]


def suits(x: Tensor, *weights: Tensor | None) -> bool:
    """Return whether these functions can take x, (..., hidden), with these weights: eagerly, on a CPU, in one dtype."""
    if torch.compiler.is_compiling() or x.device.type != "cpu" or x.shape[-1] > WIDEST:
        return False
    if x.dtype not in (torch.float32, torch.float64) or torch.is_autocast_enabled("cpu"):
        return False
    return all(type(weight) in (Tensor, nn.Parameter) and weight.dtype == x.dtype for weight in weights)  # type: ignore[union-attr]


class NarrowRMSNorm(torch.autograd.Function):
    """weight * n with n = x / rms(x). x: (..., hidden).

    The gradient of x is (g - n mean(g n)) / rms(x), where g is weight times the gradient of the output.
    """

    @staticmethod
    def plain(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        inverse = length.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, inverse)
        ctx.eps = eps
        return (x * inverse).mul_(weight)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, inverse = ctx.saved_tensors
        if torch.is_grad_enabled():
            return (*_by_autograd(NarrowRMSNorm.plain, (x, weight), d_y, ctx.eps), None)
        normed = x * inverse
        products = d_y * normed
        means = (products @ weight).unsqueeze(-1)
        d_x = (d_y * weight).addcmul_(normed, means, value=-1 / x.shape[-1]).mul_(inverse)
        return d_x, products.flatten(0, -2).sum(0), None


class NarrowSwiGLU(torch.autograd.Function):
    """down( silu(gate x) * (up x) ). x: (..., hidden); gate, up: (ffn, hidden); down: (hidden, ffn)."""

    @staticmethod
    def plain(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
        return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)

    @staticmethod
    def forward(ctx: Any, x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        gated = rows @ gate.t()
        raised = rows @ up.t()
        ctx.save_for_backward(x, gate, up, down, gated, raised)
        return (F.silu(gated).mul_(raised) @ down.t()).view(x.shape)

    @staticmethod
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor | None, ...]:
        x, gate, up, down, gated, raised = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _by_autograd(NarrowSwiGLU.plain, (x, gate, up, down), d_y)
        rows = x.flatten(0, -2)
        d_rows = d_y.flatten(0, -2)
        opened = F.silu(gated)
        d_down = d_rows.t() @ (opened * raised)
        d_product = d_rows @ down
        d_raised = opened.mul_(d_product)
        d_gated = torch.ops.aten.silu_backward(d_product.mul_(raised), gated)
        d_x = (d_gated @ gate).addmm_(d_raised, up)
        return d_x.view(x.shape), d_gated.t() @ rows, d_raised.t() @ rows, d_down


class NarrowAttention(torch.autograd.Function):
    """softmax(q k^T / sqrt(h) + causal mask) v, where q, k, v = W x, and q and k are rotated by position.

    x: (rows, time, hidden); W: (hidden, hidden) each; tables: cos and sin of `Rope`, (time, h). The result is shaped as
    x is. The rotation pairs the coordinates j and j + h/2 of a head. They are put side by side, in q and in k, which
    leaves q k^T as it is and makes the rotation of a pair one product of complex numbers.
    """

    @staticmethod
    def plain(x: Tensor, query: Tensor, key: Tensor, value: Tensor, heads: int, tables: Tables) -> Tensor:
        q, k, v = (_by_head(F.linear(x, w), heads) for w in (query, key, value))
        scores = rotate(q, tables) @ rotate(k, tables).transpose(-1, -2) / math.sqrt(q.shape[-1])
        return (torch.softmax(scores + _mask(x), -1) @ v).transpose(1, 2).flatten(2)

    @staticmethod
    def forward(ctx: Any, x: Tensor, query: Tensor, key: Tensor, value: Tensor, heads: int, tables: Tables) -> Tensor:
        half = x.shape[-1] // heads // 2
        turns = torch.complex(tables[0][:, :half], tables[1][:, :half])[:, None, None]
        joined = torch.cat((_paired(query, heads), _paired(key, heads), value))
        projected = F.linear(x, joined).view(*x.shape[:2], 3, heads, 2 * half)
        split = _turned(projected, turns)
        q, k, v = split.flatten(1, 2)
        scores = torch.baddbmm(_mask(x), q, k.transpose(1, 2), alpha=1 / math.sqrt(2 * half))
        shares = torch.softmax(scores, -1)
        ctx.save_for_backward(x, query, key, value, joined, turns, split, shares)
        ctx.heads, ctx.tables = heads, tables
        return (shares @ v).view(split.shape[1:]).transpose(1, 2).flatten(2)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor | None, ...]:
        x, query, key, value, joined, turns, split, shares = ctx.saved_tensors
        heads = ctx.heads
        if torch.is_grad_enabled():
            weights = (x, query, key, value)
            return (*_by_autograd(NarrowAttention.plain, weights, d_y, heads, ctx.tables), None, None)
        q, k, v = split.flatten(1, 2)
        scale = 1 / math.sqrt(q.shape[-1])
        d_split = torch.empty_like(split)
        d_q, d_k, d_v = d_split.flatten(1, 2)
        d_heads = _by_head(d_y, heads).flatten(0, 1)
        d_shares = d_heads @ v.transpose(1, 2)
        d_scores = torch.ops.aten._softmax_backward_data(d_shares, shares, -1, x.dtype).mul_(scale)
        torch.bmm(d_scores, k, out=d_q)
        torch.bmm(d_scores.transpose(1, 2), q, out=d_k)
        torch.bmm(shares.transpose(1, 2), d_heads, out=d_v)
        d_projected = _turned_back(d_split, turns).flatten(2)
        d_joined = d_projected.flatten(0, 1).t() @ x.flatten(0, 1)
        d_query, d_key, d_value = d_joined.chunk(3)
        return d_projected @ joined, _unpaired(d_query, heads), _unpaired(d_key, heads), d_value, None, None


def _turned(projected: Tensor, turns: Tensor) -> Tensor:
    """Return q and k, multiplied by `turns`, and v, each contiguous: (rows, time, 3, heads, h) -> (3, rows, heads,
    time, h)."""
    rows, time, _, heads, width = projected.shape
    split = projected.new_empty(3, rows, heads, time, width)
    there = split.permute(1, 3, 0, 2, 4)
    torch.mul(_complex(projected[:, :, :2]), turns, out=_complex(there[:, :, :2]))
    there[:, :, 2] = projected[:, :, 2]
    return split


def _turned_back(d_split: Tensor, turns: Tensor) -> Tensor:
    """Return the gradient of the argument of `_turned` from that of its result."""
    _, rows, heads, time, width = d_split.shape
    d_projected = d_split.new_empty(rows, time, 3, heads, width)
    here = d_split.permute(1, 3, 0, 2, 4)
    torch.mul(_complex(here[:, :, :2]), turns.conj_physical(), out=_complex(d_projected[:, :, :2]))
    d_projected[:, :, 2] = here[:, :, 2]
    return d_projected


def _by_head(x: Tensor, heads: int) -> Tensor:
    """Return x, (rows, time, hidden), as (rows, heads, time, h)."""
    return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)


def _complex(x: Tensor) -> Tensor:
    """Return x, (..., h) of pairs side by side, as complex numbers (..., h/2) in the same memory."""
    return torch.view_as_complex(x.view(*x.shape[:-1], -1, 2))


def _paired(weight: Tensor, heads: int) -> Tensor:
    """Return the rows of `weight` in the order that puts j and j + h/2 of every head side by side."""
    return weight.view(heads, 2, -1, weight.shape[1]).transpose(1, 2).flatten(0, 2)


def _unpaired(weight: Tensor, heads: int) -> Tensor:
    """Undo `_paired`."""
    return weight.view(heads, -1, 2, weight.shape[1]).transpose(1, 2).flatten(0, 2)


def _mask(x: Tensor) -> Tensor:
    """Return 0 where a token of x, (rows, time, hidden), sees another and -inf elsewhere: (time, time)."""
    time = x.shape[1]
    return x.new_full((time, time), -math.inf).triu_(1)


def _by_autograd(
    plain: Callable[..., Tensor], inputs: Sequence[Tensor], d_y: Tensor, *more: Any
) -> tuple[Tensor | None, ...]:
    """Return the gradients of `plain` at `inputs`, as differentiable functions of them."""
    wanted = [x for x in inputs if x.requires_grad]
    found = iter(torch.autograd.grad(plain(*inputs, *more), wanted, d_y, create_graph=True))
    return tuple(next(found) if x.requires_grad else None for x in inputs)
