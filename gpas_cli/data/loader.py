"""Batches as a pure function of (seed, step): no state to save, and the same for any number of ranks.

position  p     = step * batch + j          j = 0 .. batch-1
epoch     e     = p // len(rows)
row             = order(seed, e)[p mod len(rows)]

A batch holds the rows of all processes; `train.loop.micro_batches` selects the rows of each.

The order of the rows in an epoch, a pure function of (seed, epoch, number of rows), and random numbers for each row.

Up to a million rows it is a permutation held in memory. For more, such as the 51 million documents of a 1B run on C4,
it is computed row by row: a Feistel network permutes all numbers of the necessary bits, and is applied again to
a number outside the range until it falls inside (Black and Rogaway, Ciphers with arbitrary finite domains, 2002).

The random numbers of a row (`Draw`) are a pure function of (seed, update, row): they do not depend on which process
reads the row, with which others, or after how many restarts. Both are raw PCG64 output, which numpy guarantees to stay
the same.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import islice
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from gpas_cli.data.rows import PERIOD, Ints, MixedRows, Rows, shares_of_period
from gpas_cli.structure import Frozen

Words = NDArray[np.uint64]

_MAX_ROWS_IN_MEMORY = 2**20  # a permutation of this many takes 8 MB
_ROUNDS = 8
# The first number of every seed, so that these numbers are independent of the order of rows and of each other.
_TRAINING = 0x6D6C6D01
_VALIDATION = 0x6D6C6D02
_DROPOUT = 0x6D6C6D03
IGNORED = -100
# The seed of the order of validation rows, the same in every run.
VALIDATION_SEED = 0
# Batches prepared in advance: one hides the reading behind an update, a second one absorbs variations.
_PREFETCHED_BATCHES = 2
_MIXING = 2**40  # added to the number of the period, so that its order is not that of an epoch


def order(seed: int, epoch: int, size: int) -> Ints | _KeyedOrder:
    """Return the order of `size` rows in an epoch: it maps positions in the epoch to row numbers."""
    return permutation(seed, epoch, size) if size <= _MAX_ROWS_IN_MEMORY else _KeyedOrder(seed, epoch, size)


def permutation(seed: int, epoch: int, size: int) -> Ints:
    """Return a permutation of `size` numbers, in memory.

    It sorts raw PCG64 output, which numpy guarantees to stay the same; numpy's `permutation` may change.
    """
    return np.argsort(_draws(seed, epoch, size), kind="stable")


class _KeyedOrder:
    """A permutation of `size` >= 2 numbers that is computed on demand and takes no memory."""

    def __init__(self, seed: int, epoch: int, size: int):
        bits = max(2, (size - 1).bit_length())
        self.size = size
        self._low = np.uint64(bits // 2)
        self._masks = np.uint64(2 ** (bits // 2) - 1), np.uint64(2 ** (bits - bits // 2) - 1)
        self._keys = _draws(seed, epoch, _ROUNDS)

    def __getitem__(self, places: Ints, /) -> Ints:
        out = self._once(np.asarray(places).astype(np.uint64))
        # Less than half of the numbers fall outside, so this loop needs few iterations.
        while (outside := out >= self.size).any():
            out[outside] = self._once(out[outside])
        return out.astype(np.int64)

    def _once(self, numbers: Words) -> Words:
        """Permute the numbers of as many bits as `size - 1` has: [n] -> [n].

        Each half is changed in turn by a function of the other, which is invertible.
        """
        low = numbers & self._masks[0]
        high = numbers >> self._low
        for number, key in enumerate(self._keys):
            if number % 2:
                high = high ^ (_mixed(low ^ key) & self._masks[1])
            else:
                low = low ^ (_mixed(high ^ key) & self._masks[0])
        return (high << self._low) | low


def _mixed(words: Words) -> Words:
    """Apply the finalizer of SplitMix64: every output bit depends on every bit of the word."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _draws(seed: int, epoch: int, number: int) -> Words:
    return np.random.PCG64(np.random.SeedSequence([seed, epoch])).random_raw(number)


class Draw(Frozen):
    """The random numbers of one batch. `origin`: what they are drawn from, together with the row."""

    origin: tuple[int, ...]

    @classmethod
    def training(cls, seed: int, update: int) -> Draw:
        """Return the random numbers of updates 0, 1, ... of a training with `seed`."""
        return cls((_TRAINING, seed, update))

    @classmethod
    def validation(cls) -> Draw:
        """Return the random numbers of evaluations, which depend on the row alone."""
        return cls((_VALIDATION, 0, 0))

    @classmethod
    def dropout(cls, seed: int, update: int) -> Draw:
        """Return the random numbers of dropout's masks in update `update` = 0, 1, ..., for the rows of its batch."""
        return cls((_DROPOUT, seed, update))

    def words(self, row: int, number: int) -> Words:
        """Return `number` random 64-bit words for the row with this number."""
        return np.random.PCG64(np.random.SeedSequence([*self.origin, row])).random_raw(number)


def uniform(words: Words) -> NDArray[np.float64]:
    """Return numbers in [0, 1) from random words, of the same shape."""
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


_Flags = NDArray[np.bool_]


class Batch(Frozen):
    """`inputs` and `targets`, int64 [b, time]; targets[i, t] is what the network predicts at inputs[i, t], or IGNORED.

    A token sees itself and the tokens before it.
    """

    inputs: Ints
    targets: Ints
    prefix: Ints | None = None
    """How many first tokens every token of the row sees, too: int64 [b]. None if no token sees a later one."""
    starts: _Flags | None = None
    """Whether a document begins at an input, whose tokens see no other document: bool [b, time]. None if tokens see
    other documents too."""

    @property
    def predicted(self) -> int:
        """The number of targets that are not IGNORED."""
        return int((self.targets != IGNORED).sum())

    @property
    def tokens_read(self) -> int:
        """The number of tokens that the network reads: all up to the last target, and the prefix."""
        return self.predicted if self.prefix is None else int(lengths_needed(self.targets, self.prefix).sum())

    def part(self, rows: slice) -> Batch:
        """Return the batch of some of the rows."""
        prefix = None if self.prefix is None else self.prefix[rows]
        starts = None if self.starts is None else self.starts[rows]
        return Batch(self.inputs[rows], self.targets[rows], prefix, starts)

    def digest(self) -> str:
        """Return the sha256 of both arrays, the same on every machine."""
        content = np.stack([self.inputs, self.targets]).astype("<i8")
        return hashlib.sha256(content.tobytes()).hexdigest()


def lengths_needed(targets: Ints, prefix: Ints | None) -> Ints:
    """Return how many first tokens of each row its targets depend on: [b]."""
    time = targets.shape[1]
    counts = targets != IGNORED
    last = np.where(counts.any(1), time - np.argmax(counts[:, ::-1], 1), 0)
    return last if prefix is None else np.maximum(last, prefix)


class RowReader(Protocol):
    """Makes inputs and targets of rows. Each class is one objective."""

    def batch(self, tokens: Ints, sizes: Ints, rows: Ints, draw: Draw) -> Batch:
        """Return the batch of the rows with the numbers `rows`: `tokens` (n, width), of which the first `sizes` count.

        `draw` has the random numbers of each row.
        """
        ...


class CausalReader(Frozen):
    """Every token predicts the next: inputs without the last token, targets without the first, padding IGNORED.

    `end_id`: the token that ends a document, if the documents of a row are separated. The last token of a document
    still predicts the first of the next, so that the number of targets is the same.
    """

    end_id: int | None = None

    def batch(self, tokens: Ints, sizes: Ints, rows: Ints, draw: Draw) -> Batch:
        """Return the batch; nothing in it is random."""
        targets = tokens[:, 1:].copy()
        width = tokens.shape[1]
        if (sizes < width).any():
            targets[np.arange(1, width) >= sizes[:, None]] = IGNORED
        inputs = np.ascontiguousarray(tokens[:, :-1])
        return Batch(inputs, targets, starts=None if self.end_id is None else _after(inputs, self.end_id))


def _after(inputs: Ints, end_id: int) -> _Flags:
    """Return which tokens begin a document or a row: those after an end, and the first."""
    starts = np.ones(inputs.shape, np.bool_)
    starts[:, 1:] = inputs[:, :-1] == end_id
    return starts


CAUSAL = CausalReader()


class RowOrder:
    """The rows of every update of a run with `seed`, `batch` of them each, out of `size` rows. Thread-safe."""

    def __init__(self, size: int, batch: int, seed: int):
        self.size = size
        self.batch = batch
        # A batch may end one epoch and begin the next.
        self._order = lru_cache(maxsize=2)(lambda epoch: order(seed, epoch, size))

    def at(self, step: int) -> Ints:
        """Return the row numbers of update `step` = 0, 1, ...: [batch]."""
        return self.rows(step * self.batch + np.arange(self.batch, dtype=np.int64))

    def rows(self, positions: Ints) -> Ints:
        """Return the row numbers at these positions of the run: [n] -> [n]."""
        epochs, places = np.divmod(positions, self.size)
        indices = np.empty_like(positions)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            indices[here] = self._order(epoch)[places[here]]
        return indices


class _TokenOrder:
    """The rows of every update of a run with `seed`, by length: as many of about equal length as have together at most
    `tokens` tokens, padding included, at least one. A pure function of seed and update. Thread-safe.

    Every epoch has the same groups of lengths, with rows of equal length and the groups in another order.
    """

    def __init__(self, sizes: Ints, tokens: int, seed: int):
        self._sizes = sizes
        self._seed = seed
        self._bounds = _groups(np.sort(sizes), tokens)
        self._epoch = lru_cache(maxsize=2)(self._rows_of)

    @property
    def groups(self) -> int:
        """The number of updates in an epoch."""
        return len(self._bounds) - 1

    def _rows_of(self, epoch: int) -> tuple[Ints, Ints]:
        """Return the rows of an epoch by length, and the order of its groups."""
        by_length = np.lexsort((permutation(self._seed, epoch, len(self._sizes)), self._sizes))
        return by_length, permutation(self._seed, _MIXING + epoch, self.groups)

    def at(self, step: int) -> Ints:
        """Return the row numbers of update `step` = 0, 1, ...: [n]."""
        epoch, place = divmod(step, self.groups)
        rows, groups = self._epoch(epoch)
        group = int(groups[place])
        return rows[self._bounds[group] : self._bounds[group + 1]]


def _groups(sizes: Ints, tokens: int) -> list[int]:
    """Return where groups of ascending `sizes` begin, and the end of the last."""
    bounds = [0]
    while (start := bounds[-1]) < len(sizes):
        window = sizes[start : start + tokens] * np.arange(1, min(tokens, len(sizes) - start) + 1)
        bounds.append(start + max(1, int(np.searchsorted(window, tokens, "right"))))
    return bounds


class _MixedOrder:
    """The rows of every update of a run on a mixture, a pure function of seed and update. Thread-safe.

    The run is divided into periods of PERIOD rows. In each of them every corpus has its share of the rows, at random
    places, and continues in its own order where it stopped in the period before.
    """

    def __init__(self, rows: MixedRows, batch: int, seed: int):
        self.batch = batch
        self._firsts = rows.firsts
        self._orders = [RowOrder(len(part), batch, seed) for part in rows.parts.values()]
        self._shares = shares_of_period(rows.weights)
        self._period = lru_cache(maxsize=2)(lambda period: self._mixed(seed, period))

    def _mixed(self, seed: int, period: int) -> tuple[Ints, Ints]:
        """Return the corpus of each row of a period, and how many rows of it come before: [PERIOD], [PERIOD]."""
        bounds = np.cumsum(self._shares)
        corpora = np.searchsorted(bounds, permutation(seed, _MIXING + period, PERIOD), "right")
        before = np.empty(PERIOD, np.int64)
        by_corpus = np.argsort(corpora, kind="stable")
        before[by_corpus] = np.arange(PERIOD) - (bounds - self._shares)[corpora[by_corpus]]
        return corpora, before

    def at(self, step: int) -> Ints:
        """Return the row numbers of update `step` = 0, 1, ...: [batch]."""
        periods, places = np.divmod(step * self.batch + np.arange(self.batch, dtype=np.int64), PERIOD)
        found = np.empty_like(places)
        for period in np.unique(periods).tolist():
            corpora, before = self._period(period)
            for number, (own, share) in enumerate(zip(self._orders, self._shares.tolist(), strict=True)):
                here = (periods == period) & (corpora[places] == number)
                found[here] = self._firsts[number] + own.rows(period * share + before[places[here]])
        return found


class Batches:
    """The training batches of a run with `seed`, of `batch` rows per update, as `reader` makes them, or with `tokens`
    of as many rows as have so many tokens. Thread-safe."""

    def __init__(self, rows: Rows, batch: int, seed: int, reader: RowReader = CAUSAL, tokens: int = 0):
        self.rows = rows
        self.seed = seed
        self.reader = reader
        self._order: RowOrder | _MixedOrder | _TokenOrder
        if tokens:
            self._order = _TokenOrder(rows.sizes(np.arange(len(rows))), tokens, seed)
        elif isinstance(rows, MixedRows):
            self._order = _MixedOrder(rows, batch, seed)
        else:
            self._order = RowOrder(len(rows), batch, seed)

    def rows_read(self, updates: int, batch: int) -> int:
        """Return how many rows so many updates of `batch` rows read, or about how many by tokens."""
        own = self._order
        return updates * len(self.rows) // own.groups if isinstance(own, _TokenOrder) else updates * batch

    def at(self, step: int) -> Batch:
        """Return the batch of update `step` = 0, 1, ..., with the rows of all ranks."""
        indices = self._order.at(step)
        return self.reader.batch(*self.rows.read(indices), indices, Draw.training(self.seed, step))


class MadeBatches(Frozen):
    """The training batches that `make` returns of rows in an order, a pure function of (seed, step). Thread-safe."""

    order: RowOrder
    make: Callable[[Ints], Batch]

    def at(self, step: int) -> Batch:
        """Return the batch of update `step` = 0, 1, ..., with the rows of all ranks."""
        return self.make(self.order.at(step))


class PrefetchedBatches:
    """The batches of updates `first`, ..., `last` - 1, each computed once by `at`, in a thread and in advance.

    An exception in the thread is raised by the call for its batch. The end of the `with` block ends the thread.
    """

    def __init__(self, at: Callable[[int], Batch], first: int, last: int):
        self._thread = ThreadPoolExecutor(1, "gpas-prefetch")
        self._coming = ((step, self._thread.submit(at, step)) for step in range(first, last))
        self._ahead = deque(islice(self._coming, _PREFETCHED_BATCHES))

    def at(self, step: int) -> Batch:
        """Return the batch of update `step`, which must be the next one."""
        self._ahead.extend(islice(self._coming, 1))
        number, batch = self._ahead.popleft()
        assert number == step
        return batch.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)


def _validation_rows(rows: Rows, token_budget: int) -> Ints:
    if isinstance(rows, MixedRows):
        shares = zip(rows.firsts.tolist(), rows.parts.values(), rows.weights, strict=False)
        parts = (first + _validation_rows(part, max(1, round(token_budget * own))) for first, part, own in shares)
        return np.concatenate(list(parts))
    mixed = permutation(VALIDATION_SEED, 0, len(rows))
    predicted = np.cumsum(rows.sizes(mixed) - 1)
    return mixed[: int(np.searchsorted(predicted, token_budget)) + 1]


def validation_batches(rows: Rows, batch: int, token_budget: int, reader: RowReader = CAUSAL) -> Iterator[Batch]:
    """Yield the validation rows in their fixed order, `batch` at a time, until `token_budget` tokens are read.

    The rows used depend only on the budget, which the last of them may exceed by less than a row. The order is random,
    so that part of a split represents all of it. What a reader draws depends on the row alone. Of a mixture, each
    corpus has its share of the budget.
    """
    used = _validation_rows(rows, token_budget)
    for start in range(0, len(used), batch):
        indices = used[start : start + batch]
        yield reader.batch(*rows.read(indices), indices, Draw.validation())
