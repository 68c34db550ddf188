"""Rotary positions."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from gpas_cli.spec.model import Size


class Rope(nn.Module):
    """The tables of `rotate`, shape (length, h): cos and sin of t * theta^(-2j/h) for t < length and j < h/2, in both
    halves; the sine is negative in the first. `Size.rope_factor` slows them down."""

    def __init__(self, size: Size):
        super().__init__()
        self.size = size
        self._tables: dict[tuple[int, torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}

    def forward(self, length: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the two tables in `dtype`, cached for the last length."""
        key = (length, device, dtype)
        if key not in self._tables:
            # Computed on the CPU in float64, so that every device and dtype rounds the same numbers.
            angles = torch.outer(torch.arange(length, dtype=torch.float64), self._turns())
            cos, sin = angles.cos(), angles.sin()
            halves = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
            self._tables = {key: (halves[0].to(device, dtype), halves[1].to(device, dtype))}
        return self._tables[key]

    def _turns(self) -> Tensor:
        """Return by what angle a position turns each pair of features, in float64: (h/2,)."""
        size = self.size
        turns = size.rope_theta ** (-torch.arange(0, size.head_width, 2, dtype=torch.float64) / size.head_width)
        if size.rope_context == 0:
            return turns / size.rope_factor
        in_context = size.rope_context * turns / (2 * math.pi)
        kept = ((in_context - size.rope_low) / (size.rope_high - size.rope_low)).clamp(0, 1)
        return turns * (kept + (1 - kept) / size.rope_factor)


def rotate(x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate x, (batch, heads, time, head_dim), by position: [a, b] -> [a cos - b sin, b cos + a sin]."""
    cos, sin = tables
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin  # the fastest form, on a CPU and compiled for a GPU
