"""RMSNorm and LayerNorm."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpas_cli.model.narrow import NarrowRMSNorm, suits
from gpas_cli.spec.norm import Norm


class RMSNorm(nn.Module):
    """scale * weight * x / sqrt(mean(x^2) + eps), statistics in float32 or wider (Zhang and Sennrich 2019).

    `weight` has shape (hidden,) and is initialised to `start`; `scale` is the constant multiplier 1/sqrt(l) of LNS.
    """

    def __init__(self, hidden: int, eps: float, start: float = 1.0, scale: float = 1.0):
        super().__init__()
        self.eps, self.start, self.scale = eps, start, scale
        self.weight = nn.Parameter(torch.empty(hidden))

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., hidden) -> same shape and dtype."""
        weight = self.weight if self.scale == 1 else self.weight * self.scale
        if suits(x, weight):
            return NarrowRMSNorm.apply(x, weight, self.eps)  # type: ignore[no-any-return, no-untyped-call]
        return _Normed.apply(x, weight, self.eps)  # type: ignore[no-any-return, no-untyped-call]

    def extra_repr(self) -> str:
        return f"{self.weight.numel()}, eps={self.eps:g}, start={self.start:.4g}, scale={self.scale:.4g}"


class _Normed(torch.autograd.Function):
    """weight * x / rms(x). Only x and weight are saved; the backward pass recomputes the rest."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        wide = _wide(x)
        # As in the reference, the cast precedes the weight: a bfloat16 weight multiplies a bfloat16 tensor.
        y = (wide * _inverse_rms(wide, eps)).to(weight.dtype) * weight
        # A cast that changes nothing must not come last: compiled by torch 2.11, all gradients would be zero.
        return y if y.dtype == x.dtype else y.to(x.dtype)

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

    `weight` and `bias` have shape (hidden,) and are initialised to `start` and 0; `scale` is as in RMSNorm.
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


# Name of a family's norm -> module.
NORM_MODULES: dict[str, type[RMSNorm] | type[LayerNorm]] = {"rmsnorm": RMSNorm, "layernorm": LayerNorm}


def norm_slot(norm: Norm | None, hidden: int, eps: float, kind: str = "rmsnorm") -> nn.Module:
    """Return the module of a norm slot, of `kind` in NORM_MODULES; the identity if the slot is absent."""
    return NORM_MODULES[kind](hidden, eps, norm.init, norm.scale) if norm else nn.Identity()
