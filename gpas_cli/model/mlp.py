"""The SwiGLU feed-forward network (Shazeer 2020), no biases."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from gpas_cli.spec.size import Size


class MLP(nn.Module):
    """down( silu(gate x) * (up x) )."""

    def __init__(self, size: Size):
        super().__init__()
        self.gate_proj = nn.Linear(size.hidden, size.ffn, bias=False)
        self.up_proj = nn.Linear(size.hidden, size.ffn, bias=False)
        self.down_proj = nn.Linear(size.ffn, size.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, time, hidden) -> same shape."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]
