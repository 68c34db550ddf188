"""The GPAS gate as a module: x - act(alpha) * sg(x) (GPAS, equation 4)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gpas_cli.model.activation import torch_activation
from gpas_cli.spec.gate import Gate

# In place of 1 - act(alpha) = 0: below the rounding of float64, and a power of two, so that u = y / kept is exact.
LEAST_KEPT = 2.0**-60


class GpasGate(nn.Module):
    """Scale the input by 1 - act(alpha) in the forward pass; with stop-gradient, the backward pass is the identity.

    alpha has shape (1,), because FSDP refuses 0-dimensional parameters. A fixed gate's alpha is a buffer.
    `saves_input`: the backward pass reads the gate's input, else its output. It takes no memory if the network saves
    it anyway: the output where a norm or a linear map follows the gate, the input on the skip path.
    """

    alpha: Tensor

    def __init__(self, spec: Gate, start: float, *, saves_input: bool = False):
        super().__init__()
        self.start = start
        self.stop_gradient = spec.stop_gradient
        self.saves_input = saves_input
        self.activation = torch_activation(spec.activation)
        if spec.learnable:
            self.alpha = nn.Parameter(torch.empty(1))
        else:
            self.register_buffer("alpha", torch.empty(1))

    def value(self) -> Tensor:
        """Return act(alpha), the share of the stream that is subtracted, shape (1,)."""
        return self.activation(self.alpha)

    def forward(self, x: Tensor) -> Tensor:
        """x of any shape -> same shape, in the wider of its dtype and alpha's.

        In bfloat16, subtracting a share below 2^-9 would change nothing, so outputs of autocast are widened first.
        Where alpha is bfloat16 as well, everything is rounded as in the reference.
        """
        share = self.value()
        x = x.to(torch.promote_types(x.dtype, share.dtype))
        if self.stop_gradient and x.dtype != torch.bfloat16:
            return _Gated.apply(x, share, self.saves_input)  # type: ignore[no-any-return, no-untyped-call]
        return x - share * (x.detach() if self.stop_gradient else x)

    def extra_repr(self) -> str:
        return f"start={self.start:g}, stop_gradient={self.stop_gradient}"


class _Gated(torch.autograd.Function):
    """y = (1 - share) u with dL/du = dL/dy and dL/dshare = -<dL/dy, u>, where u = y / (1 - share)."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, share: Tensor, saves_input: bool) -> Tensor:
        kept = torch.where(share == 1, LEAST_KEPT, 1 - share)
        y = u * kept
        ctx.save_for_backward(u, None) if saves_input else ctx.save_for_backward(y, kept)
        return y

    @staticmethod
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor, Tensor | None, None]:
        saved, kept = ctx.saved_tensors
        if not ctx.needs_input_grad[1]:
            return d_y, None, None
        product = (d_y * saved.detach()).sum().neg()[None]
        return d_y, product if kept is None else product / kept.detach(), None
