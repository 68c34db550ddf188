"""The feed-forward networks: SwiGLU (Shazeer 2020) and those of two matrices."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from gpas_cli.spec.family import FFNS, Family
from gpas_cli.spec.size import Size


class MLP(nn.Module):
    """down( silu(gate x) * (up x) )."""

    def __init__(self, size: Size, family: Family):
        super().__init__()
        self.gate_proj = nn.Linear(size.hidden, size.ffn, bias=family.bias)
        self.up_proj = nn.Linear(size.hidden, size.ffn, bias=family.bias)
        self.down_proj = nn.Linear(size.ffn, size.hidden, bias=family.bias)

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, time, hidden) -> same shape."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class PlainMLP(nn.Module):
    """down( act(up x) ): W_2 and W_1 of Spike No More, equation 3."""

    def __init__(self, size: Size, family: Family):
        super().__init__()
        self.activation = ACTIVATIONS[family.ffn]
        self.up_proj = nn.Linear(size.hidden, size.ffn, bias=family.bias)
        self.down_proj = nn.Linear(size.ffn, size.hidden, bias=family.bias)

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, time, hidden) -> same shape."""
        return self.down_proj(self.activation(self.up_proj(x)))  # type: ignore[no-any-return]


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}
assert {"swiglu", *ACTIVATIONS} == set(FFNS)


def feed_forward(size: Size, family: Family) -> MLP | PlainMLP:
    """The feed-forward network of one layer."""
    return MLP(size, family) if family.ffn == "swiglu" else PlainMLP(size, family)
