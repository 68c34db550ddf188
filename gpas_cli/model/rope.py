"""Rotary positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Rope(nn.Module):
    """The tables of `rotate`, shape (length, h): cos and sin of t * theta^(-2j/h) for t < length and j < h/2, in both
    halves; the sine is negative in the first."""

    def __init__(self, head_dim: int, theta: float):
        super().__init__()
        self.head_dim = head_dim
        self.theta = theta
        self._tables: dict[tuple[int, torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}

    def forward(self, length: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the two tables in `dtype`, cached for the last length."""
        key = (length, device, dtype)
        if key not in self._tables:
            # Computed on the CPU in float64, so that every device and dtype rounds the same numbers.
            j = torch.arange(0, self.head_dim, 2, dtype=torch.float64)
            angles = torch.outer(torch.arange(length, dtype=torch.float64), self.theta ** (-j / self.head_dim))
            cos, sin = angles.cos(), angles.sin()
            halves = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
            self._tables = {key: (halves[0].to(device, dtype), halves[1].to(device, dtype))}
        return self._tables[key]


def rotate(x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate x, (batch, heads, time, head_dim), by position: [a, b] -> [a cos - b sin, b cos + a sin]."""
    cos, sin = tables
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin  # the fastest form, on a CPU and compiled for a GPU
