"""Norm, attention and SwiGLU of narrow networks on a CPU, in few operations.

An update of a narrow network spends more time on calling operations and on moving activations than on products. Each
function here computes what the module of that name computes, equal up to rounding, and has its own backward pass. Its
method `plain` is the formula, which is also what is differentiated twice.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpas_cli.model.cpu_attention import later_keys
from gpas_cli.model.rope import rotate
from gpas_cli.model.second_order import by_autograd

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
            return (*by_autograd(NarrowRMSNorm.plain, (x, weight), d_y, ctx.eps), None)
        normed = x * inverse
        d_weight = (d_y * normed).flatten(0, -2).sum(0)
        d_normed = d_y * weight
        # Faster than the product of a matrix and a vector, which these numbers also are.
        sums = (d_normed * normed).sum(-1, keepdim=True)
        d_x = d_normed.addcmul_(normed, sums, value=-1 / x.shape[-1]).mul_(inverse)
        return d_x, d_weight, None


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
            return by_autograd(NarrowSwiGLU.plain, (x, gate, up, down), d_y)
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
    leaves q k^T as it is and makes the rotation of a pair one product of complex numbers. Each of q, k and v is
    (heads * rows, time, h), contiguous. The softmax is one of powers of 2, several times as fast as those of e.
    """

    @staticmethod
    def plain(x: Tensor, query: Tensor, key: Tensor, value: Tensor, heads: int, tables: Tables) -> Tensor:
        q, k, v = (_by_head(F.linear(x, w), heads) for w in (query, key, value))
        scores = rotate(q, tables) @ rotate(k, tables).transpose(-1, -2) / math.sqrt(q.shape[-1])
        return (torch.softmax(scores + later_keys(x.shape[1], x.dtype), -1) @ v).transpose(1, 2).flatten(2)

    @staticmethod
    def forward(ctx: Any, x: Tensor, query: Tensor, key: Tensor, value: Tensor, heads: int, tables: Tables) -> Tensor:
        rows, time, hidden = x.shape
        width = hidden // heads
        joined = torch.cat((_paired(query, heads), _paired(key, heads), value))
        projected = x.flatten(0, 1) @ joined.t()
        split = projected.view(-1, 3 * heads, width).transpose(0, 1).contiguous().view(3, heads * rows, time, width)
        _complex(split[:2]).mul_(_turns(*tables))
        q, k, v = split
        shares = torch.baddbmm(later_keys(time, x.dtype), q, k.transpose(1, 2))
        shares.sub_(shares.amax(-1, keepdim=True)).exp2_()
        shares.div_(shares.sum(-1, keepdim=True))
        ctx.save_for_backward(x, query, key, value, joined, split, shares)
        ctx.heads, ctx.tables = heads, tables
        return _side_by_side((shares @ v).view(heads, -1, width)).view(x.shape)

    @staticmethod
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor | None, ...]:
        x, query, key, value, joined, split, shares = ctx.saved_tensors
        heads = ctx.heads
        if torch.is_grad_enabled():
            weights = (x, query, key, value)
            return (*by_autograd(NarrowAttention.plain, weights, d_y, heads, ctx.tables), None, None)
        q, k, v = split
        d_heads = d_y.reshape(-1, heads, v.shape[-1]).transpose(0, 1).contiguous().view_as(v)
        d_shares = d_heads @ v.transpose(1, 2)
        d_scores = torch.ops.aten._softmax_backward_data(d_shares, shares, -1, x.dtype)
        d_split = torch.empty_like(split)
        torch.bmm(d_scores, k, out=d_split[0])
        torch.bmm(d_scores.transpose(1, 2), q, out=d_split[1])
        torch.bmm(shares.transpose(1, 2), d_heads, out=d_split[2])
        _complex(d_split[:2]).mul_(_turns(*ctx.tables).conj() * math.log(2))
        d_projected = _side_by_side(d_split.view(3 * heads, -1, v.shape[-1]))
        d_query, d_key, d_value = (d_projected.t() @ x.flatten(0, 1)).chunk(3)
        d_x = (d_projected @ joined).view(x.shape)
        return d_x, _unpaired(d_query, heads), _unpaired(d_key, heads), d_value, None, None


@functools.lru_cache(maxsize=4)
def _turns(cos: Tensor, sin: Tensor) -> Tensor:
    """Return the complex numbers that rotate q and k: (2, 1, time, h/2). Those of q are log2(e) / sqrt(h) times as
    long, which makes the scores exponents of 2."""
    width = cos.shape[1]
    turns = torch.complex(cos[:, : width // 2], sin[:, : width // 2])
    return torch.stack((turns / (math.log(2) * math.sqrt(width)), turns))[:, None]


def _side_by_side(x: Tensor) -> Tensor:
    """Return the parts of x, (parts, tokens, h), side by side: (tokens, parts * h). Faster than a permuted copy."""
    return torch.cat(x.unbind(), -1)


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
