"""Causal multi-head self-attention with rotary positions, no biases."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from gpas_cli.model.rope import rotate
from gpas_cli.spec.size import Size


class Attention(nn.Module):
    """softmax(q k^T / sqrt(h) + causal) v. Padding sits on the right, where no real token sees it: no mask."""

    def __init__(self, size: Size):
        super().__init__()
        self.heads, self.head_dim = size.heads, size.head_dim
        self.q_proj = nn.Linear(size.hidden, size.hidden, bias=False)
        self.k_proj = nn.Linear(size.hidden, size.hidden, bias=False)
        self.v_proj = nn.Linear(size.hidden, size.hidden, bias=False)
        self.o_proj = nn.Linear(size.hidden, size.hidden, bias=False)

    def forward(self, x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
        """x: (batch, time, hidden) -> same shape."""
        q, k, v = (self._heads(proj(x)) for proj in (self.q_proj, self.k_proj, self.v_proj))
        y = F.scaled_dot_product_attention(rotate(q, tables), rotate(k, tables), v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _heads(self, x: Tensor) -> Tensor:
        batch, time, _ = x.shape
        return x.view(batch, time, self.heads, self.head_dim).transpose(1, 2)
