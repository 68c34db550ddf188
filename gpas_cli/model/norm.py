"""RMSNorm and LayerNorm."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gpas_cli.spec.norm import Norm


class RMSNorm(nn.Module):
    """scale * weight * x / sqrt(mean(x^2) + eps), statistics in float32 or wider (Zhang and Sennrich 2019).

    `weight` has shape (hidden,) and starts at `start`; `scale` is the constant 1/sqrt(l) of LNS as a multiplier.
    """

    def __init__(self, hidden: int, eps: float, start: float = 1.0, scale: float = 1.0):
        super().__init__()
        self.eps, self.start, self.scale = eps, start, scale
        self.weight = nn.Parameter(torch.empty(hidden))

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., hidden) -> same shape and dtype."""
        wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        # The cast before the weight is the reference's: a bfloat16 weight multiplies a bfloat16 tensor.
        weight = self.weight if self.scale == 1 else self.weight * self.scale
        return (normed.to(self.weight.dtype) * weight).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.weight.numel()}, eps={self.eps:g}, start={self.start:.4g}, scale={self.scale:.4g}"


def norm_slot(norm: Norm | None, hidden: int, eps: float) -> nn.Module:
    """The module of a norm slot; the identity where the scheme has none."""
    return RMSNorm(hidden, eps, norm.init, norm.scale) if norm else nn.Identity()
