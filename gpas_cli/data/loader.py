"""Batches as a pure function of (seed, step): nothing to save, nothing to skip, the same for any number of ranks.

position  p     = step * batch + j          j = 0 .. batch-1
epoch     e     = p // len(rows)
row             = order(seed, e)[p mod len(rows)]                                            (order.py)

A batch is whole: which of its rows a process computes is the trainer's business (`train.loop.micro_batches`).
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
# The seed of the one order in which validation rows are visited, in every run.
_VALIDATION_ORDER = 0
# Batches made ahead. One hides the reading of the next behind an update; a second one evens out.
DEPTH = 2


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


def cut(rows: Rows, indices: Ints) -> Batch:
    """The batch of these rows: inputs without the last token, targets without the first, filling not counted."""
    tokens, sizes = rows.read(indices)
    targets = tokens[:, 1:].copy()
    if rows.pad_id is not None:
        columns = np.arange(1, rows.width)
        targets[columns >= sizes[:, None]] = IGNORED
    return Batch(np.ascontiguousarray(tokens[:, :-1]), targets)


class Batches:
    """The training batches of a run of `seed`, `batch` rows per update. Threads may share it."""

    def __init__(self, rows: Rows, batch: int, seed: int):
        self.rows = rows
        self.batch = batch
        self.seed = seed
        # A batch may end one epoch and begin the next.
        self._order = lru_cache(maxsize=2)(lambda epoch: order(seed, epoch, len(rows)))

    def at(self, step: int) -> Batch:
        """The batch of update `step` = 0, 1, ..., all ranks' rows."""
        return cut(self.rows, self._indices(step))

    def _indices(self, step: int) -> Ints:
        """The numbers of the whole batch's rows: [batch]."""
        positions = step * self.batch + np.arange(self.batch, dtype=np.int64)
        epochs, places = np.divmod(positions, len(self.rows))
        indices = np.empty_like(positions)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            indices[here] = self._order(epoch)[places[here]]
        return indices


class PrefetchedBatches:
    """The batches of updates `first`, ..., `last` - 1, made by `at` in a thread before they are asked for, each once.

    What goes wrong in the thread is raised where its batch would have come. The end of the `with` block ends it.
    """

    def __init__(self, at: Callable[[int], Batch], first: int, last: int):
        self._ahead = Prefetcher(((step, at(step)) for step in range(first, last)), DEPTH)

    def at(self, step: int) -> Batch:
        """The batch of update `step`, which has to be the next one."""
        number, batch = next(self._ahead)
        assert number == step
        return batch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ahead.close()


def validation_batches(rows: Rows, batch: int, token_budget: int) -> Iterator[Batch]:
    """The validation rows in their one fixed order, `batch` at a time, until `token_budget` tokens are predicted.

    Which rows are used depends on the budget alone; the last of them may exceed it by less than a row. The order is
    mixed, so that part of a split stands for all of it.
    """
    mixed = permutation(_VALIDATION_ORDER, 0, len(rows))
    predicted = np.cumsum(rows.sizes(mixed) - 1)
    used = mixed[: int(np.searchsorted(predicted, token_budget)) + 1]
    for start in range(0, len(used), batch):
        yield cut(rows, used[start : start + batch])
