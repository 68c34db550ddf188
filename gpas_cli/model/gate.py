"""The GPAS gate as a module: x - act(alpha) * sg(x) (GPAS, equation 4)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gpas_cli.model.activation import torch_activation
from gpas_cli.spec.gate import Gate


class GpasGate(nn.Module):
    """Scale the input by 1 - act(alpha) in the forward pass; with stop-gradient, the backward pass is the identity.

    alpha has shape (1,), because FSDP refuses 0-dimensional parameters. A fixed gate's alpha is a buffer.
    `in_graph`: autograd computes alpha's gradient. Otherwise `gpas_cli.model.gate_gradient` does, and x is not saved.
    """

    alpha: Tensor

    def __init__(self, spec: Gate, start: float):
        super().__init__()
        self.start = start
        self.stop_gradient = spec.stop_gradient
        self.activation = torch_activation(spec.activation)
        self.in_graph = True
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
        """
        share = self.value()
        x = x.to(torch.promote_types(x.dtype, share.dtype))
        if self.in_graph:
            return x - share * (x.detach() if self.stop_gradient else x)
        share = share.detach()
        return torch.addcmul(x, x.detach(), -share) if self.stop_gradient else x * (1 - share)

    def extra_repr(self) -> str:
        return f"start={self.start:g}, stop_gradient={self.stop_gradient}"
