"""Causal multi-head self-attention, with rotary positions where the network has no others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpas_cli.model.rope import rotate
from gpas_cli.spec.family import Family
from gpas_cli.spec.size import Size


@dataclass(frozen=True)
class Packing:
    """Rows without their padding, joined: token i of the stream stands at place `index[i]` of (rows * time).

    `index` has shape (n,), int64; `token`, (rows * time,), int64, is its inverse: which token stands at a place, or,
    where none does, one that does no harm there; `holds`, (rows * time, 1), bool: whether one does. Everything but
    attention works on the n tokens alone. Both ways only read by index, forward and backward: that fuses with what is
    around it, and is deterministic without the sorting that GPUs need for writing by index.
    """

    index: Tensor
    token: Tensor
    holds: Tensor
    rows: int
    time: int

    def spread(self, x: Tensor) -> Tensor:
        """The stream x (1, n, d) as rows (rows, time, d), for what lets no token see what stands behind it."""
        return _Spread.apply(x[0], self.index, self.token).view(self.rows, self.time, -1)  # type: ignore[no-any-return, no-untyped-call]

    def join(self, x: Tensor) -> Tensor:
        """Rows x (rows, time, d) as the stream (1, n, d)."""
        return _Join.apply(x.flatten(0, 1), self.index, self.token, self.holds)[None]  # type: ignore[no-any-return, no-untyped-call]


class _Spread(torch.autograd.Function):
    """x (n, d) -> (rows * time, d). Gradients of places without a token are zero (`_Join`), and not read."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, token: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        return x.index_select(0, token)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (index,) = ctx.saved_tensors
        return gradient.index_select(0, index), None, None


class _Join(torch.autograd.Function):
    """x (rows * time, d) -> (n, d)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, token: Tensor, holds: Tensor) -> Tensor:
        ctx.save_for_backward(token, holds)
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        token, holds = ctx.saved_tensors
        return gradient.index_select(0, token) * holds, None, None, None


@dataclass(frozen=True)
class Places:
    """Where the stream's tokens stand. `tables`: of `Rope`, None without rotary positions; `packing`: None where the
    stream is whole rows (batch, time, hidden)."""

    tables: tuple[Tensor, Tensor] | None = None
    packing: Packing | None = None


class Attention(nn.Module):
    """softmax(q k^T / sqrt(h) + causal) v. Padding sits on the right, where no real token sees it: no mask."""

    def __init__(self, size: Size, family: Family):
        super().__init__()
        self.heads, self.head_dim = size.heads, size.head_dim
        self.q_proj = nn.Linear(size.hidden, size.hidden, bias=family.bias)
        self.k_proj = nn.Linear(size.hidden, size.hidden, bias=family.bias)
        self.v_proj = nn.Linear(size.hidden, size.hidden, bias=family.bias)
        self.o_proj = nn.Linear(size.hidden, size.hidden, bias=family.bias)

    def forward(self, x: Tensor, places: Places) -> Tensor:
        """x: (batch, time, hidden), or (1, n, hidden) with a packing -> same shape."""
        q, k, v = (self._heads(proj(x), places.packing) for proj in (self.q_proj, self.k_proj, self.v_proj))
        if places.tables is not None:
            q, k = rotate(q, places.tables), rotate(k, places.tables)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return self.o_proj(places.packing.join(y) if places.packing else y)  # type: ignore[no-any-return]

    def _heads(self, x: Tensor, packing: Packing | None) -> Tensor:
        x = packing.spread(x) if packing else x
        return x.view(*x.shape[:2], self.heads, self.head_dim).transpose(1, 2)
