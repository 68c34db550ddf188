"""Rotary positions, half-split as in LLaMA (Su et al. 2021)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Rope(nn.Module):
    """cos and sin of t * theta^(-2j/h), for t < length and j < h/2, repeated over both halves: shape (length, h)."""

    def __init__(self, head_dim: int, theta: float):
        super().__init__()
        self.head_dim = head_dim
        self.theta = theta
        self._tables: dict[tuple[int, torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}

    def forward(self, length: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the two tables in `dtype`, cached for the last length."""
        key = (length, device, dtype)
        if key not in self._tables:
            self._tables = {key: self._make(length, device, dtype)}
        return self._tables[key]

    def _make(self, length: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        # Computed on the CPU in float64, so that every device and dtype rounds the same numbers.
        j = torch.arange(0, self.head_dim, 2, dtype=torch.float64)
        angles = torch.outer(torch.arange(length, dtype=torch.float64), self.theta ** (-j / self.head_dim))
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(device, dtype), angles.sin().to(device, dtype)


def rotate(x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate x, (batch, heads, time, head_dim), by position: [a, b] -> [a cos - b sin, b cos + a sin]."""
    cos, sin = tables
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin
