"""Feed-forward networks: SwiGLU (Shazeer 2020) and networks of two matrices."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpas_cli.model.products import ALIGNED_WIDTH, outputs, with_inputs
from gpas_cli.spec.model import FFNS, Family, Size


class MLP(nn.Module):
    """down( silu(gate x) * (up x) )."""

    def __init__(self, size: Size, family: Family):
        super().__init__()
        self.gate_proj = nn.Linear(size.hidden, size.ffn, bias=family.bias)
        self.up_proj = nn.Linear(size.hidden, size.ffn, bias=family.bias)
        self.down_proj = nn.Linear(size.ffn, size.hidden, bias=family.bias)

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, time, hidden) -> same shape."""
        gate, up = outputs(x, (self.gate_proj, self.up_proj), ALIGNED_WIDTH)
        down = with_inputs(self.down_proj.weight, gate.shape[-1])
        return _GatedDown.apply(gate, up, down, self.down_proj.bias)  # type: ignore[no-any-return, no-untyped-call]


class _GatedDown(torch.autograd.Function):
    """down( silu(gate) * up ). The backward pass recomputes silu(gate) and the product, which would otherwise be a
    quarter of the activations that a layer saves. gate, up: (..., ffn); weight: (hidden, ffn)."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(gate, up, weight)
        return F.linear(F.silu(gate) * up, weight, bias)

    @staticmethod
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        gate, up, weight = ctx.saved_tensors
        opened = F.silu(gate)
        rows = d_y.flatten(0, -2)
        product = (opened * up).flatten(0, -2)
        # Autocast is off inside autograd functions, so a float32 weight is cast to bfloat16 explicitly.
        d_product = d_y @ weight.to(d_y.dtype)
        d_gate = _silu_backward(d_product * up, gate)
        d_bias = rows.sum(0).to(weight.dtype) if ctx.needs_input_grad[3] else None
        return d_gate, d_product * opened, (rows.t() @ product).to(weight.dtype), d_bias


def _silu_backward(d_y: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of silu at x. PyTorch's kernel is not differentiable, so second derivatives use a formula."""
    if not torch.is_grad_enabled():
        return torch.ops.aten.silu_backward(d_y, x)  # type: ignore[no-any-return]
    share = torch.sigmoid(x)
    return d_y * share * (1 + x * (1 - share))


class PlainMLP(nn.Module):
    """down( act(up x) ): W_2 and W_1 of Spike No More, equation 3."""

    def __init__(self, size: Size, family: Family):
        super().__init__()
        self.activation = FFN_ACTIVATIONS[family.ffn]
        self.up_proj = nn.Linear(size.hidden, size.ffn, bias=family.bias)
        self.down_proj = nn.Linear(size.ffn, size.hidden, bias=family.bias)

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, time, hidden) -> same shape."""
        (up,) = outputs(x, (self.up_proj,), ALIGNED_WIDTH)
        return F.linear(self.activation(up), with_inputs(self.down_proj.weight, up.shape[-1]), self.down_proj.bias)


FFN_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}
assert {"swiglu", *FFN_ACTIVATIONS} == set(FFNS)


def feed_forward(size: Size, family: Family) -> MLP | PlainMLP:
    """Return the feed-forward network of one layer."""
    return MLP(size, family) if family.ffn == "swiglu" else PlainMLP(size, family)
