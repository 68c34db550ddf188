"""Batches as a pure function of (seed, step): nothing to save, nothing to skip, the same for any number of ranks.

position  p     = step * batch + j          j = 0 .. batch-1
epoch     e     = p // len(rows)
row             = order(seed, e)[p mod len(rows)]                                            (order.py)
rank r of world takes j = r, r + world, r + 2 world, ...
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from gpas_cli.data.order import order, permutation
from gpas_cli.data.rows import Ints, Rows

IGNORED = -100
# The seed of the one order in which validation rows are visited, in every run.
_VALIDATION_ORDER = 0


@dataclass(frozen=True)
class Batch:
    """`inputs` and `targets`, int64 [b, width - 1]; targets[i, t] follows inputs[i, t], or is -100: not counted."""

    inputs: Ints
    targets: Ints

    @cached_property
    def lengths(self) -> Ints:
        """Targets that count in each row, int64 [b]. They come first: what lies behind them, filling and a last input
        that predicts nothing, cannot change a loss."""
        lengths: Ints = (self.targets != IGNORED).sum(1, dtype=np.int64)
        return lengths

    @property
    def predicted(self) -> int:
        """Targets that count."""
        return int(self.lengths.sum())

    def digest(self) -> str:
        """sha256 of both arrays: the same on every machine for the same batch."""
        content = np.stack([self.inputs, self.targets]).astype("<i8")
        return hashlib.sha256(content.tobytes()).hexdigest()


def cut(rows: Rows, indices: Ints) -> Batch:
    """The batch of these rows: inputs without the last token, targets without the first, filling not counted."""
    tokens, sizes = rows.read(indices)
    targets = tokens[:, 1:].copy()
    if rows.pad_id is not None:
        columns = np.arange(1, rows.width)
        targets[columns >= sizes[:, None]] = IGNORED
    return Batch(np.ascontiguousarray(tokens[:, :-1]), targets)


class Batches:
    """The training batches of a run of `seed`, `batch` rows per update over all ranks. Threads may share it."""

    def __init__(self, rows: Rows, batch: int, seed: int):
        self.rows = rows
        self.batch = batch
        self.seed = seed
        # A batch may end one epoch and begin the next.
        self._order = lru_cache(maxsize=2)(lambda epoch: order(seed, epoch, len(rows)))

    def at(self, step: int, rank: int = 0, world: int = 1) -> Batch:
        """The part of `rank` in the batch of update `step` = 0, 1, ...; parts differ by at most one row in size."""
        return cut(self.rows, self._indices(step)[rank::world])

    def divisors(self, step: int, mean_rows: int = 0, rank: int = 0, world: int = 1) -> Ints:
        """For each row of `at(step, rank, world)`, what its summed loss is divided by in the loss of the whole update:
        the targets of the `mean_rows` consecutive rows of the whole batch that it belongs to (all rows if 0), times
        the number of such groups. int64 [b].

        The ranks' sums of quotients, added up, are the loss of one process; no rank needs to hear of the others' rows.
        Raises ValueError when `mean_rows` does not divide the batch.
        """
        group = mean_rows or self.batch
        if self.batch % group:
            raise ValueError(f"mean_rows={mean_rows} does not divide the batch of {self.batch} rows")
        targets = (self.rows.sizes(self._indices(step)) - 1).reshape(-1, group)
        per_group = np.maximum(1, targets.sum(1)) * len(targets)
        return np.repeat(per_group, group)[rank::world]

    def _indices(self, step: int) -> Ints:
        """The numbers of the whole batch's rows: [batch]."""
        positions = step * self.batch + np.arange(self.batch, dtype=np.int64)
        epochs, places = np.divmod(positions, len(self.rows))
        indices = np.empty_like(positions)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            indices[here] = self._order(epoch)[places[here]]
        return indices


def validation_batches(rows: Rows, batch: int, token_budget: int, rank: int = 0, world: int = 1) -> Iterator[Batch]:
    """The validation rows in their one fixed order, `batch` at a time, until `token_budget` tokens are predicted.

    Which rows are used depends on the budget alone; the last of them may exceed it by less than a row. The order is
    mixed, so that part of a split stands for all of it. Rank r has rows r, r + world, ... of each batch. All ranks have
    equally many batches: one for whom the last has no row left gets a row none of whose targets counts.
    """
    mixed = permutation(_VALIDATION_ORDER, 0, len(rows))
    predicted = np.cumsum(rows.sizes(mixed) - 1)
    used = mixed[: int(np.searchsorted(predicted, token_budget)) + 1]
    for start in range(0, len(used), batch):
        whole = used[start : start + batch]
        own = whole[rank::world]
        yield cut(rows, own) if len(own) else _uncounted(cut(rows, whole[:1]))


def _uncounted(batch: Batch) -> Batch:
    return Batch(batch.inputs, np.full_like(batch.targets, IGNORED))
