"""Causal multi-head self-attention, with rotary positions where the network has no others."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from gpas_cli.model.rope import rotate
from gpas_cli.spec.family import Family
from gpas_cli.spec.size import Size


class Attention(nn.Module):
    """softmax(q k^T / sqrt(h) + causal) v. Padding sits on the right, where no real token sees it: no mask."""

    def __init__(self, size: Size, family: Family):
        super().__init__()
        self.heads, self.head_dim = size.heads, size.head_dim
        self.q_proj = nn.Linear(size.hidden, size.hidden, bias=family.bias)
        self.k_proj = nn.Linear(size.hidden, size.hidden, bias=family.bias)
        self.v_proj = nn.Linear(size.hidden, size.hidden, bias=family.bias)
        self.o_proj = nn.Linear(size.hidden, size.hidden, bias=family.bias)

    def forward(self, x: Tensor, tables: tuple[Tensor, Tensor] | None) -> Tensor:
        """x: (batch, time, hidden) -> same shape. `tables`: of `Rope`, None without rotary positions."""
        q, k, v = (self._heads(proj(x)) for proj in (self.q_proj, self.k_proj, self.v_proj))
        if tables is not None:
            q, k = rotate(q, tables), rotate(k, tables)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _heads(self, x: Tensor) -> Tensor:
        batch, time, _ = x.shape
        return x.view(batch, time, self.heads, self.head_dim).transpose(1, 2)
