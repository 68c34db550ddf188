"""Batches as a pure function of (seed, step): no state to save, and the same for any number of ranks.

position  p     = step * batch + j          j = 0 .. batch-1
epoch     e     = p // len(rows)
row             = order(seed, e)[p mod len(rows)]                                            (order.py)

A batch holds the rows of all processes; `train.loop.micro_batches` selects those of each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np

from gpas_cli.data.order import order, permutation
from gpas_cli.data.prefetch import Prefetcher
from gpas_cli.data.rows import Ints, Rows

IGNORED = -100
# The seed of the order of validation rows, the same in every run.
VALIDATION_SEED = 0
# Batches prepared in advance: one hides the reading behind an update, a second one absorbs variations.
PREFETCHED_BATCHES = 2


@dataclass(frozen=True)
class Batch:
    """`inputs` and `targets`, int64 [b, width - 1]; targets[i, t] follows inputs[i, t], or is IGNORED."""

    inputs: Ints
    targets: Ints

    @property
    def predicted(self) -> int:
        """The number of targets that are not IGNORED."""
        return int((self.targets != IGNORED).sum())

    def digest(self) -> str:
        """Return the sha256 of both arrays, the same on every machine."""
        content = np.stack([self.inputs, self.targets]).astype("<i8")
        return hashlib.sha256(content.tobytes()).hexdigest()


def cut(rows: Rows, indices: Ints) -> Batch:
    """Return the batch of these rows: inputs without the last token, targets without the first, padding IGNORED."""
    tokens, sizes = rows.read(indices)
    targets = tokens[:, 1:].copy()
    if rows.pad_id is not None:
        columns = np.arange(1, rows.width)
        targets[columns >= sizes[:, None]] = IGNORED
    return Batch(np.ascontiguousarray(tokens[:, :-1]), targets)


class RowOrder:
    """The rows of every update of a run with `seed`, `batch` of them each, out of `size` rows. Thread-safe."""

    def __init__(self, size: int, batch: int, seed: int):
        self.size = size
        self.batch = batch
        # A batch may end one epoch and begin the next.
        self._order = lru_cache(maxsize=2)(lambda epoch: order(seed, epoch, size))

    def at(self, step: int) -> Ints:
        """Return the row numbers of update `step` = 0, 1, ...: [batch]."""
        positions = step * self.batch + np.arange(self.batch, dtype=np.int64)
        epochs, places = np.divmod(positions, self.size)
        indices = np.empty_like(positions)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            indices[here] = self._order(epoch)[places[here]]
        return indices


class Batches:
    """The training batches of a run with `seed`, of `batch` rows per update. Thread-safe."""

    def __init__(self, rows: Rows, batch: int, seed: int):
        self.rows = rows
        self._order = RowOrder(len(rows), batch, seed)

    def at(self, step: int) -> Batch:
        """Return the batch of update `step` = 0, 1, ..., with the rows of all ranks."""
        return cut(self.rows, self._order.at(step))


class PrefetchedBatches:
    """The batches of updates `first`, ..., `last` - 1, each computed once by `at`, in a thread and in advance.

    An exception in the thread is raised by the call for its batch. The end of the `with` block ends the thread.
    """

    def __init__(self, at: Callable[[int], Batch], first: int, last: int):
        self._ahead = Prefetcher(((step, at(step)) for step in range(first, last)), PREFETCHED_BATCHES)

    def at(self, step: int) -> Batch:
        """Return the batch of update `step`, which must be the next one."""
        number, batch = next(self._ahead)
        assert number == step
        return batch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ahead.close()


def validation_batches(rows: Rows, batch: int, token_budget: int) -> Iterator[Batch]:
    """Yield the validation rows in their fixed order, `batch` at a time, until `token_budget` tokens are predicted.

    The rows used depend only on the budget, which the last of them may exceed by less than a row. The order is random,
    so that part of a split represents all of it.
    """
    mixed = permutation(VALIDATION_SEED, 0, len(rows))
    predicted = np.cumsum(rows.sizes(mixed) - 1)
    used = mixed[: int(np.searchsorted(predicted, token_budget)) + 1]
    for start in range(0, len(used), batch):
        yield cut(rows, used[start : start + batch])
