"""The standard deviation of attention's output over the length of its input (Spike No More, appendix F).

    var(Attn(x)) = var(W_O) var(W_V) var(x) d^2 / L                                        equation (48)

The paper assumes one head, normal inputs, and weights of attention that are 1/L, as at initialisation. Measured here is
the first layer's attention of a cell at initialisation, on normal inputs of variance 1, at the last token, which
attends to all L. The law has the parameters' variances as measured, with any number of heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gpas_cli.evaluate.jacobian import attention_numbers
from gpas_cli.evaluate.moments import skeleton
from gpas_cli.evaluate.stability import power
from gpas_cli.spec.cell import Cell
from gpas_cli.train.precision import suitable_threads

LENGTHS = (16, 32, 64, 128, 256, 512, 1024)
INPUT_ELEMENTS = 2_000_000  # for each length: rows x length x d
MOST_ROWS = 64


@dataclass(frozen=True)
class LengthPoint:
    """The standard deviation of attention's output at one length, by equation (48) and measured."""

    length: int
    predicted: float
    measured: float


@dataclass(frozen=True)
class LengthLaw:
    """The standard deviations by length. exponent: that of the length in the measured variance; -1 in (48)."""

    points: tuple[LengthPoint, ...]
    exponent: float


def length_law(cell: Cell, lengths: Sequence[int] = LENGTHS) -> LengthLaw:
    """Return equation (48) and the measured values of the first layer's attention. Only that layer is built."""
    network = skeleton(cell.model, cell.seed, layers=1)
    size = cell.model.size
    attention, _ = network.model.blocks()[0].sublayers(network.model.positions(torch.zeros(1, 1, size.hidden)))
    points = []
    for length in lengths:
        generator = torch.Generator().manual_seed(cell.seed)
        rows = max(1, min(MOST_ROWS, INPUT_ELEMENTS // (length * size.hidden)))
        x = torch.randn(rows, length, size.hidden, generator=generator, dtype=torch.float64)
        positions = network.model.positions(x)
        with suitable_threads(size), torch.no_grad():
            measured = attention.module(x, positions)[:, -1].square().mean().sqrt().item()
        numbers = attention_numbers(attention.module, size, length)
        predicted = numbers.sigma_o * numbers.sigma_v * size.hidden / length**0.5
        points.append(LengthPoint(length, predicted, measured))
    return LengthLaw(tuple(points), power([(point.length, point.measured**2) for point in points]))
