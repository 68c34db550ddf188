"""RMSNorm and LayerNorm."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
        return _Normed.apply(x, weight, self.eps)  # type: ignore[no-any-return, no-untyped-call]

    def extra_repr(self) -> str:
        return f"{self.weight.numel()}, eps={self.eps:g}, start={self.start:.4g}, scale={self.scale:.4g}"


class _Normed(torch.autograd.Function):
    """weight * x / rms(x). Of the activations only x is saved: on a CPU, torch's RMSNorm saves three times as much, and
    it rounds bfloat16 elsewhere than the reference."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = _wide(x)
        inverse = _inverse_rms(wide, eps)
        ctx.save_for_backward(x, weight, inverse)
        ctx.eps = eps
        # As in the reference, the cast precedes the weight: a bfloat16 weight multiplies a bfloat16 tensor.
        y = (wide * inverse).to(weight.dtype) * weight
        # A cast that changes nothing must not come last: compiled by torch 2.11, all gradients would be zero.
        return y if y.dtype == x.dtype else y.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, inverse = ctx.saved_tensors
        wide, d_y = _wide(x), d_y.to(weight.dtype)
        if torch.is_grad_enabled():  # the gradient is differentiated, too
            inverse = _inverse_rms(wide, ctx.eps)
        normed = wide * inverse
        d_weight = (d_y * normed.to(weight.dtype)).flatten(0, -2).sum(0)
        d_normed = (d_y * weight).to(wide.dtype)
        mean = (d_normed * normed).mean(-1, keepdim=True)
        return (torch.addcmul(d_normed, normed, mean, value=-1) * inverse).to(x.dtype), d_weight, None


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
