"""The order of the rows in an epoch, a pure function of (seed, epoch, number of rows).

Up to SORTED rows it is a permutation held in memory. Beyond, the 51 million documents of a 1B run on C4, it is computed
row by row: a Feistel network permutes the numbers of as many bits as are needed, and a number that falls outside is
sent through again until it falls inside (Black and Rogaway, Ciphers with arbitrary finite domains, 2002).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

# More rows than any small corpus has; a permutation of so many takes 8 MB.
SORTED = 2**20
_ROUNDS = 8


class Order(Protocol):
    """Places in the epoch to numbers of rows."""

    def __getitem__(self, places: Ints, /) -> Ints: ...


def order(seed: int, epoch: int, size: int) -> Order:
    """The order of `size` rows in an epoch."""
    return permutation(seed, epoch, size) if size <= SORTED else KeyedOrder(seed, epoch, size)


def permutation(seed: int, epoch: int, size: int) -> Ints:
    """A permutation of `size` numbers, in memory.

    Sorts raw PCG64 output, which numpy keeps for good; its `permutation` may change between versions.
    """
    return np.argsort(_draws(seed, epoch, size), kind="stable")


class KeyedOrder:
    """A permutation of `size` >= 2 numbers that is computed where it is asked for, and takes no memory."""

    def __init__(self, seed: int, epoch: int, size: int):
        bits = max(2, (size - 1).bit_length())
        self.size = size
        self._low = np.uint64(bits // 2)
        self._masks = np.uint64(2 ** (bits // 2) - 1), np.uint64(2 ** (bits - bits // 2) - 1)
        self._keys = _draws(seed, epoch, _ROUNDS)

    def __getitem__(self, places: Ints, /) -> Ints:
        out = self._once(np.asarray(places).astype(np.uint64))
        # Less than half of the numbers fall outside, so that few rounds of this loop are needed.
        while (outside := out >= self.size).any():
            out[outside] = self._once(out[outside])
        return out.astype(np.int64)

    def _once(self, numbers: Words) -> Words:
        """A permutation of the numbers of as many bits as `size - 1` has: [n] -> [n]. Each half in turn is changed by a
        function of the other, which can be undone."""
        low, high = numbers & self._masks[0], numbers >> self._low
        for number, key in enumerate(self._keys):
            if number % 2:
                high = high ^ (_mixed(low ^ key) & self._masks[1])
            else:
                low = low ^ (_mixed(high ^ key) & self._masks[0])
        return (high << self._low) | low


def _mixed(words: Words) -> Words:
    """The finalizer of SplitMix64: every bit of the outcome depends on every bit of the word."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _draws(seed: int, epoch: int, number: int) -> Words:
    return np.random.PCG64(np.random.SeedSequence([seed, epoch])).random_raw(number)
