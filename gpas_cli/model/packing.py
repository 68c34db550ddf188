"""Rows joined into one stream without padding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gpas_cli.structure import Frozen


class Packing(Frozen):
    """Rows joined into one stream of n tokens without padding. Everything but attention works on these tokens alone.

    `spread` and `join` only gather by index, forward and backward: a gather fuses with the operations around it and is
    deterministic without the sort that scattering by index needs on GPUs.
    """

    index: Tensor
    """The position of each token in (rows * time): int64, (n,)."""
    token: Tensor
    """The inverse: the token at each position, an arbitrary one at padding. int64, (rows * time,)."""
    occupied: Tensor
    """False at padding: bool, (rows * time, 1)."""
    time: int
    """The length of a row."""
    bounds: Tensor | None = None
    """Where each row begins in the stream, and where the last one ends: int32, (rows + 1,). With them attention can
    work on the stream, too (`ragged`); None where the device has no kernel for it."""

    @classmethod
    def at(cls, places: Tensor, time: int) -> Packing:
        """Return the stream of the tokens at `places`, (n,), of one row of `time`, of which some may have no token and
        others several: what is computed of the row can be joined to it, and it cannot be spread."""
        return cls(places, places.new_zeros(time), places, time)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.token) // self.time

    def turns(self, tables: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the tables of the positions in a row, (time, h), as tables of the stream's tokens, (n, h)."""
        place = self.index % self.time
        return tables[0].index_select(0, place), tables[1].index_select(0, place)

    def spread(self, x: Tensor) -> Tensor:
        """Return the stream x (1, n, d) as rows (rows, time, d). Padding repeats other tokens."""
        return _Spread.apply(x[0], self.index, self.token).unflatten(0, (-1, self.time))  # type: ignore[no-any-return, no-untyped-call]

    def join(self, x: Tensor) -> Tensor:
        """Return the rows x (rows, time, d) as the stream (1, n, d)."""
        return _Join.apply(x.flatten(0, 1), self.index, self.token, self.occupied)[None]  # type: ignore[no-any-return, no-untyped-call]


class _Spread(torch.autograd.Function):
    """x (n, d) -> (rows * time, d). The gradients at padding are zero (`_Join`) and are not read."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, token: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        return x.index_select(0, token)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (index,) = ctx.saved_tensors
        return gradient.index_select(0, index), None, None


class _Join(torch.autograd.Function):
    """x (rows * time, d) -> (n, d)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, token: Tensor, occupied: Tensor) -> Tensor:
        ctx.save_for_backward(token, occupied)
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        token, occupied = ctx.saved_tensors
        return gradient.index_select(0, token) * occupied, None, None, None
