"""The order of the rows in an epoch, a pure function of (seed, epoch, number of rows), and random numbers for each row.

Up to a million rows it is a permutation held in memory. For more, such as the 51 million documents of a 1B run on C4,
it is computed row by row: a Feistel network permutes all numbers of the necessary bits, and is applied again to
a number outside the range until it falls inside (Black and Rogaway, Ciphers with arbitrary finite domains, 2002).

The random numbers of a row (`Draw`) are a pure function of (seed, update, row): they do not depend on which process
reads the row, with which others, or after how many restarts. Both are raw PCG64 output, which numpy guarantees to stay
the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

_MAX_ROWS_IN_MEMORY = 2**20  # a permutation of this many takes 8 MB
_ROUNDS = 8


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


# The first number of every seed, so that these numbers are independent of the order of rows and of each other.
_TRAINING = 0x6D6C6D01
_VALIDATION = 0x6D6C6D02
_DROPOUT = 0x6D6C6D03


@dataclass(frozen=True)
class Draw:
    """The random numbers of one batch. `origin`: what they are drawn from besides the row."""

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
