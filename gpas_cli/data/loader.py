"""Batches as a pure function of (seed, step): nothing to save, nothing to skip, the same for any number of ranks.

position  p     = step * batch + j          j = 0 .. batch-1
epoch     e     = p // len(rows)
row             = permutation(seed, e)[p mod len(rows)]
rank r of world takes j = r, r + world, r + 2 world, ...
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpas_cli.data.rows import Ints, Rows

IGNORED = -100
# The seed of the one order in which validation rows are visited, in every run.
_VALIDATION_ORDER = 0


@dataclass(frozen=True)
class Batch:
    """`inputs` and `targets`, int64 [b, width - 1]; targets[i, t] follows inputs[i, t], or is -100: not counted."""

    inputs: Ints
    targets: Ints

    @property
    def predicted(self) -> int:
        """Targets that count."""
        return int((self.targets != IGNORED).sum())

    def digest(self) -> str:
        """sha256 of both arrays: the same on every machine for the same batch."""
        content = np.stack([self.inputs, self.targets]).astype("<i8")
        return hashlib.sha256(content.tobytes()).hexdigest()


def permutation(seed: int, epoch: int, size: int) -> Ints:
    """The order of `size` rows in an epoch.

    Sorts raw PCG64 output, which numpy keeps for good; its `permutation` may change between versions.
    """
    draws = np.random.PCG64(np.random.SeedSequence([seed, epoch])).random_raw(size)
    return np.argsort(draws, kind="stable")


def cut(rows: Rows, indices: Ints) -> Batch:
    """The batch of these rows: inputs without the last token, targets without the first, filling not counted."""
    tokens = rows.tokens(indices)
    targets = tokens[:, 1:].copy()
    if rows.pad_id is not None:
        columns = np.arange(1, rows.width)
        targets[columns >= rows.sizes(indices)[:, None]] = IGNORED
    return Batch(np.ascontiguousarray(tokens[:, :-1]), targets)


class Batches:
    """The training batches of a run of `seed`, `batch` rows per update over all ranks."""

    def __init__(self, rows: Rows, batch: int, seed: int):
        self.rows = rows
        self.batch = batch
        self.seed = seed
        self._orders: dict[int, Ints] = {}

    def at(self, step: int, rank: int = 0, world: int = 1) -> Batch:
        """The part of `rank` in the batch of update `step` = 0, 1, ...; parts differ by at most one row in size."""
        positions = step * self.batch + np.arange(rank, self.batch, world, dtype=np.int64)
        epochs, places = np.divmod(positions, len(self.rows))
        indices = np.empty_like(positions)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            indices[here] = self._order(epoch)[places[here]]
        return cut(self.rows, indices)

    def _order(self, epoch: int) -> Ints:
        """The epoch's permutation. Two are kept: a batch may end one epoch and begin the next."""
        if epoch not in self._orders:
            if len(self._orders) > 1:
                del self._orders[next(iter(self._orders))]
            self._orders[epoch] = permutation(self.seed, epoch, len(self.rows))
        return self._orders[epoch]


def validation_batches(rows: Rows, batch: int, token_budget: int, rank: int = 0, world: int = 1) -> Iterator[Batch]:
    """The validation rows in their one fixed order, `batch` at a time, until `token_budget` tokens are predicted.

    Which rows are used depends on the budget alone; the last of them may exceed it by less than a row. The order is
    mixed, so that part of a split stands for all of it. Rank r has rows r, r + world, ... of each batch: maybe none.
    """
    order = permutation(_VALIDATION_ORDER, 0, len(rows))
    predicted = np.cumsum(rows.sizes(order) - 1)
    used = order[: int(np.searchsorted(predicted, token_budget)) + 1]
    for start in range(0, len(used), batch):
        yield cut(rows, used[start : start + batch][rank::world])
