"""The token cache seen as a table of rows, mapped from disk: what is not read costs no memory.

pack   d1 d1 d1 </s> d2 d2 </s> d3 ...     row r is tokens r*length .. r*length + length, both included: `length`
                                           tokens to predict, the last of which is the next row's first input
pad    d1 d1 d1 </s> .  .                  row r is document r, at most `length` tokens, filled with `pad_id`
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpas_cli.data.shards import Shard
from gpas_cli.errors import DataError

Ints = NDArray[np.int64]


class Rows(ABC):
    """`len(rows)` rows of `width` tokens, addressed by number.

    `pad_id` fills the end of short rows; None where no row is short. It may also occur as a token: `sizes` tells.
    """

    width: int
    pad_id: int | None

    def __init__(self, shards: Sequence[Shard], limit: int | None):
        self._shards = [shard for shard in shards if shard.totals.tokens]
        self._tokens = [shard.tokens for shard in self._shards]
        # Where each shard begins in the joined ids.
        self._starts = np.cumsum([0, *(shard.totals.tokens for shard in self._shards)])
        self._limit = limit

    def __len__(self) -> int:
        return self._available if self._limit is None else min(self._available, self._limit)

    @property
    @abstractmethod
    def _available(self) -> int:
        """Rows the shards hold."""

    @abstractmethod
    def sizes(self, indices: Ints) -> Ints:
        """Tokens of each row before its filling: [n]."""

    @abstractmethod
    def _begins(self, indices: Ints) -> Ints:
        """Where each row starts in the joined ids: [n]."""

    def tokens(self, indices: Ints) -> Ints:
        """Rows by number: [n] -> [n, width]. Raises IndexError for a row there is not."""
        indices = np.asarray(indices, np.int64)
        if indices.size and (indices.min() < 0 or indices.max() >= len(self)):
            raise IndexError(f"row {indices.min()} or {indices.max()} of {len(self)}")
        out = np.full((len(indices), self.width), self.pad_id or 0, np.int64)
        for row, begin, size in zip(out, self._begins(indices).tolist(), self.sizes(indices).tolist(), strict=True):
            self._copy(begin, row[:size])
        return out

    def _copy(self, begin: int, out: Ints) -> None:
        """Fill `out` with the joined ids from `begin` on, across shards."""
        number = int(np.searchsorted(self._starts, begin, "right")) - 1
        done = 0
        while done < len(out):
            offset = begin + done - int(self._starts[number])
            piece = self._tokens[number][offset : offset + len(out) - done]
            out[done : done + len(piece)] = piece
            done += len(piece)
            number += 1


class PackedRows(Rows):
    """Documents joined and cut with stride `length`; every row is full. Tokens behind the last whole row are left."""

    def __init__(self, shards: Sequence[Shard], length: int, limit: int | None = None):
        super().__init__(shards, limit)
        self.width, self.pad_id = length + 1, None

    @property
    def _available(self) -> int:
        return max(0, int(self._starts[-1]) - 1) // (self.width - 1)

    def sizes(self, indices: Ints) -> Ints:
        return np.full(len(indices), self.width, np.int64)

    def _begins(self, indices: Ints) -> Ints:
        return indices * (self.width - 1)


class PaddedRows(Rows):
    """One document a row. The shards keep no more than `length` tokens of a document."""

    pad_id: int

    def __init__(self, shards: Sequence[Shard], length: int, pad_id: int, limit: int | None = None):
        super().__init__(shards, limit)
        self.width, self.pad_id = length, pad_id
        lengths = [shard.lengths for shard in self._shards]
        joined = np.concatenate(lengths) if lengths else np.zeros(0, np.uint32)
        if joined.size and joined.max() > length:
            raise DataError(
                f"rows of {length} tokens were asked for, but the cached documents have up to {joined.max()}"
            )
        self._bounds: Ints = np.concatenate([[0], np.cumsum(joined, dtype=np.int64)])

    @property
    def _available(self) -> int:
        return len(self._bounds) - 1

    def sizes(self, indices: Ints) -> Ints:
        sizes: Ints = self._bounds[indices + 1] - self._bounds[indices]
        return sizes

    def _begins(self, indices: Ints) -> Ints:
        begins: Ints = self._bounds[indices]
        return begins


def open_rows(shards: Sequence[Shard], layout: str, length: int, *, pad_id: int, limit: int | None = None) -> Rows:
    """The rows of `layout`, `pack` or `pad`; with `limit`, the first so many."""
    if layout == "pad":
        return PaddedRows(shards, length, pad_id, limit)
    return PackedRows(shards, length, limit)
