"""The matrix products of an update without anything around them: the speed that an update could reach at most."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gpas_cli.spec.cell import Cell
from gpas_cli.train.device import choose_device
from gpas_cli.train.precision import Precision

# The most parts that an update's products are divided into: one has a quarter of the layers, and the head on a quarter
# of the tokens, which the bundled trainer's head takes in parts as well.
MOST_PARTS = 4


class LinearMap:
    """y = x W^T and its gradients, dy W and dy^T x, into tensors that exist already. x: (tokens, inputs)."""

    def __init__(self, tokens: int, inputs: int, outputs: int, dtype: torch.dtype):
        device = choose_device()
        generator = torch.Generator(device).manual_seed(0)

        def matrix(rows: int, columns: int) -> Tensor:
            return torch.randn(rows, columns, generator=generator, device=device).to(dtype)

        self.x = matrix(tokens, inputs)
        self.d_x = torch.empty_like(self.x)
        self.weight = matrix(outputs, inputs)
        self.d_weight = torch.empty_like(self.weight)
        self.d_y = matrix(tokens, outputs)
        self.y = torch.empty_like(self.d_y)

    @property
    def flops(self) -> int:
        """The FLOPs of the three products."""
        return 6 * len(self.x) * self.weight.numel()

    def multiply(self) -> None:
        """Compute the three products."""
        torch.mm(self.x, self.weight.t(), out=self.y)
        torch.mm(self.d_y, self.weight, out=self.d_x)
        torch.mm(self.d_y.t(), self.x, out=self.d_weight)


class Products:
    """A part of the products of an update of `cell` on full rows, forward and backward, in the dtype of its products.

    `flops`: FLOPs of this part; `flops_per_token`: FLOPs of all products of an update, per token.
    """

    def __init__(self, cell: Cell):
        size = cell.model.size
        tokens = cell.optim.batch * cell.data.length
        precision = Precision(cell.precision, choose_device())
        dtype = precision.matmul(precision.weights)
        parts = math.gcd(MOST_PARTS, size.layers)
        widening = 2 if cell.model.family.ffn == "swiglu" else 1
        times = {(size.hidden, size.hidden): 4, (size.hidden, size.ffn): widening, (size.ffn, size.hidden): 1}
        layer = [(LinearMap(tokens, *widths, dtype), number) for widths, number in times.items()]
        head = LinearMap(tokens // parts, size.hidden, size.vocab, dtype)
        self._maps = [(linear, number * size.layers // parts) for linear, number in layer] + [(head, 1)]
        self.flops = sum(number * linear.flops for linear, number in self._maps)
        self.flops_per_token = parts * self.flops / tokens

    def multiply(self) -> None:
        """Compute this part of the products."""
        for linear, number in self._maps:
            for _ in range(number):
                linear.multiply()
