"""RMSNorm and LayerNorm."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
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
        weight = self.weight if self.scale == 1 else self.weight * self.scale
        return _Normed.apply(x, weight, self.eps)  # type: ignore[no-any-return, no-untyped-call]

    def extra_repr(self) -> str:
        return f"{self.weight.numel()}, eps={self.eps:g}, start={self.start:.4g}, scale={self.scale:.4g}"


class _Normed(torch.autograd.Function):
    """weight * x / rms(x), of which x alone is kept: the backward pass makes the rest again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        wide = _wide(x)
        # The cast before the weight is the reference's: a bfloat16 weight multiplies a bfloat16 tensor.
        return ((wide * _inverse_rms(wide, eps)).to(weight.dtype) * weight).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        wide, d_y = _wide(x), d_y.to(weight.dtype)
        inverse = _inverse_rms(wide, ctx.eps)
        d_weight = (d_y * (wide * inverse).to(weight.dtype)).flatten(0, -2).sum(0)
        d_normed = (d_y * weight).to(wide.dtype)
        d_mean = -0.5 * (d_normed * wide).sum(-1, keepdim=True) * inverse.pow(3)
        return (d_normed * inverse + d_mean / x.shape[-1] * (2 * wide)).to(x.dtype), d_weight, None


def _inverse_rms(x: Tensor, eps: float) -> Tensor:
    return torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


class LayerNorm(nn.Module):
    """scale * (weight * (x - mean(x)) / sqrt(var(x) + eps) + bias) (Ba et al. 2016).

    `weight` and `bias` have shape (hidden,) and start at `start` and 0; `scale` as in RMSNorm.
    """

    def __init__(self, hidden: int, eps: float = 1e-5, start: float = 1.0, scale: float = 1.0):
        super().__init__()
        self.eps, self.start, self.scale = eps, start, scale
        self.weight = nn.Parameter(torch.empty(hidden))
        self.bias = nn.Parameter(torch.empty(hidden))

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., hidden) -> same shape and dtype."""
        normed = F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps).to(x.dtype)
        return normed if self.scale == 1 else normed * self.scale

    def extra_repr(self) -> str:
        return f"{self.weight.numel()}, eps={self.eps:g}, start={self.start:.4g}, scale={self.scale:.4g}"


# A family's name for its norm -> the module.
NORMS: dict[str, type[RMSNorm] | type[LayerNorm]] = {"rmsnorm": RMSNorm, "layernorm": LayerNorm}


def norm_slot(norm: Norm | None, hidden: int, eps: float, kind: str = "rmsnorm") -> nn.Module:
    """The module of a norm slot, of `kind` in NORMS; the identity where the scheme has none."""
    return NORMS[kind](hidden, eps, norm.init, norm.scale) if norm else nn.Identity()
