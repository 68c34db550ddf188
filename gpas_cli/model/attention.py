"""Causal multi-head self-attention, with rotary positions where the network has no others."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from gpas_cli.model.rope import rotate
from gpas_cli.spec.family import Family
from gpas_cli.spec.size import Size


@dataclass(frozen=True)
class Packing:
    """Rows without their padding, joined: token i of the stream stands at place `index[i]` of (rows * time).

    `index` has shape (n,), int64. Everything but attention works on the n tokens alone.
    """

    index: Tensor
    rows: int
    time: int

    def spread(self, x: Tensor) -> Tensor:
        """The stream x (1, n, d) as rows (rows, time, d), zero where there is no token."""
        table = x.new_zeros(self.rows * self.time, x.shape[-1])
        return table.index_copy(0, self.index, x[0]).view(self.rows, self.time, -1)

    def join(self, x: Tensor) -> Tensor:
        """Rows x (rows, time, d) as the stream (1, n, d)."""
        return x.flatten(0, 1).index_select(0, self.index)[None]


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
