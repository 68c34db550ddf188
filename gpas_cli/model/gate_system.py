"""The recursion of `gate_gradient` as one triangular system of equations, for GPUs.

On a GPU the host does not know the numbers of the recursion, and every operation on one of them would be a kernel.
`gate_totals` is therefore applied once, to symbols in place of numbers. A product of a sum with a gate's factor becomes
an unknown u_i; everything else is a sum of dot products p_k and of unknowns found before:

    u_i = m_i (sum_k A_ik p_k + sum_{j<i} B_ij u_j)        totals = C p + D u

m_i is 1 - act(alpha) of a gate or its inverse, on the device; A, B, C and D are constants of the network. Solving
(I - diag(m) B) u = diag(m) A p by forward substitution is the recursion itself, in a constant number of kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gpas_cli.model.transfer import to_device


class Symbol:
    """A number that only the device knows. Operations that the recursion does not need raise TypeError."""

    def __sub__(self, other: float | Symbol) -> float | Symbol:
        return NotImplemented

    def __rsub__(self, other: float) -> float | Symbol:
        return NotImplemented

    def __mul__(self, other: float | Symbol) -> float | Symbol:
        return NotImplemented

    def __rmul__(self, other: float) -> float | Symbol:
        return NotImplemented

    def __truediv__(self, other: float | Symbol) -> float | Symbol:
        return NotImplemented

    def __rtruediv__(self, other: float) -> float | Symbol:
        return NotImplemented


@dataclass(frozen=True)
class Factor(Symbol):
    """1 - act(alpha) of gate number `gate`, or its inverse."""

    gate: int
    inverse: bool = False

    def __rmul__(self, other: float) -> float | Symbol:
        return 0.0 if other == 0 else NotImplemented

    def __rtruediv__(self, other: float) -> float | Symbol:
        if other == 0:
            return 0.0
        return Factor(self.gate, not self.inverse) if other == 1 else NotImplemented


@dataclass(frozen=True)
class Form(Symbol):
    """A sum of dot products and unknowns of `system`: the coefficient of each, by number, dot products first."""

    system: GateSystem
    coefficients: Mapping[int, float]

    def __sub__(self, other: float | Symbol) -> float | Symbol:
        if other == 0:
            return self
        if not isinstance(other, Form):
            return NotImplemented
        numbers = self.coefficients.keys() | other.coefficients.keys()
        return Form(
            self.system, {n: self.coefficients.get(n, 0.0) - other.coefficients.get(n, 0.0) for n in sorted(numbers)}
        )

    def __rsub__(self, other: float) -> float | Symbol:
        return Form(self.system, {}) - self if other == 0 else NotImplemented

    def __mul__(self, other: float | Symbol) -> float | Symbol:
        if isinstance(other, Factor):
            return self.system.unknown(self, other)
        return self if other == 1 else NotImplemented

    def __truediv__(self, other: float | Symbol) -> float | Symbol:
        return self * (1 / other)


class GateSystem:
    """The equations of the unknowns, in the order in which the recursion introduces them.

    products: the number of dot products; gates: the number of gates.
    """

    def __init__(self, products: int, gates: int):
        self._products = products
        self._gates = gates
        self._factors: list[Factor] = []
        self._sums: list[Form] = []

    def product(self, numbers: Sequence[int]) -> Form:
        """Return the sum of the dot products with these numbers."""
        return Form(self, dict.fromkeys(numbers, 1.0))

    def unknown(self, total: Form, factor: Factor) -> Form:
        """Return a new unknown: `total` times `factor`."""
        self._factors.append(factor)
        self._sums.append(total)
        return Form(self, {self._products + len(self._sums) - 1: 1.0})

    def solver(self, totals: Sequence[float | Symbol], device: torch.device) -> GateSolver:
        """Return the solver for `totals`, one for each gate, with its constants on `device`."""
        which = [factor.gate + self._gates * factor.inverse for factor in self._factors]
        return GateSolver(
            to_device(torch.tensor(which, dtype=torch.int64), device),
            to_device(self._matrix(self._sums), device),
            to_device(self._matrix(totals), device),
        )

    def _matrix(self, forms: Sequence[float | Symbol]) -> Tensor:
        """Return the coefficients of each form, float64 of shape (forms, products + unknowns)."""
        matrix = torch.zeros(len(forms), self._products + len(self._sums), dtype=torch.float64)
        for row, form in enumerate(forms):
            for number, coefficient in form.coefficients.items() if isinstance(form, Form) else ():
                matrix[row, number] = coefficient
        return matrix


@dataclass(frozen=True)
class GateSolver:
    """The system's constants.

    `which`, int64 (unknowns,): the factor of each unknown, in the vector of the gates' factors and then their inverses.
    `sums` (unknowns, products + unknowns): A beside B. `totals` (gates, products + unknowns): C beside D.
    """

    which: Tensor
    sums: Tensor
    totals: Tensor

    def solve(self, products: Tensor, kept: Tensor) -> Tensor:
        """Return the gates' totals, (gates,). products: (products,); kept: (gates,); float64, on one device."""
        factors = torch.cat((kept, 1 / kept)).index_select(0, self.which)
        scaled = factors[:, None] * self.sums
        known = scaled[:, : len(products)] @ products
        # With `unitriangular` the diagonal is taken to be 1, and what is above it is not read.
        unknowns = torch.linalg.solve_triangular(
            -scaled[:, len(products) :], known[:, None], upper=False, unitriangular=True
        )
        return self.totals @ torch.cat((products, unknowns[:, 0]))
