"""Random numbers for the rows of a batch, a pure function of (seed, update, row).

They do not depend on which process reads the row, with which others, or after how many restarts. Like the order of
rows, they are raw PCG64 output, which numpy guarantees to stay the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpas_cli.data.order import Words

# The first number of every seed, so that these numbers are independent of the order of rows and of each other.
_TRAINING = 0x6D6C6D01
_VALIDATION = 0x6D6C6D02


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

    def words(self, row: int, number: int) -> Words:
        """Return `number` random 64-bit words for the row with this number."""
        return np.random.PCG64(np.random.SeedSequence([*self.origin, row])).random_raw(number)


def uniform(words: Words) -> NDArray[np.float64]:
    """Return numbers in [0, 1) from random words, of the same shape."""
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
