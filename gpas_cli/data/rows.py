"""The token cache as a table of rows, read from disk row by row, so that unused rows take no memory.

pack   d1 d1 d1 </s> d2 d2 </s> d3 ...     row r is tokens r*length .. r*length + length, inclusive: `length`
                                           tokens to predict; the last one is the first input of the next row
pad    d1 d1 d1 </s> .  .                  row r is document r, at most `length` tokens, filled with `pad_id`

Files are read rather than mapped: rows are read in random order, and the kernel would read far ahead for each.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import proxy

import numpy as np
from numpy.typing import NDArray

from gpas_cli.data.shards import LENGTH, Shard, verify
from gpas_cli.errors import DataError

Ints = NDArray[np.int64]

# The start of every 64th document is kept in memory: 6 MB for 51 million documents.
_STRIDE = 64
# In this many rows in a row each corpus of a mixture has exactly its share, so that weights of three digits are exact.
PERIOD = 1000
# Open files of each kind: a process may often open only 1024, and C4 for the 1B has 780 shards.
_MAX_OPEN_FILES = 128


class _Reader:
    """A file of numbers that is read in small pieces. It is closed when its last reference is gone."""

    def __init__(self, path: Path, kind: np.dtype[Any]):
        self.path = path
        self.kind = kind
        self._handle = os.open(path, os.O_RDONLY)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._handle, 0, 0, os.POSIX_FADV_RANDOM)

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            os.close(self._handle)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return numbers `start` to `stop`, or fewer at the end of the file: [n]."""
        size = self.kind.itemsize
        return np.frombuffer(os.pread(self._handle, (stop - start) * size, start * size), self.kind)


class Rows(ABC):
    """`len(rows)` rows of `width` tokens, addressed by number. Thread-safe.

    Methods that read rows raise DataError for a damaged shard, and IndexError for a row that does not exist.

    `pad_id` fills the end of short rows; None if no row is short. It may also be an ordinary token: use `sizes`.
    """

    width: int
    pad_id: int | None

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def sizes(self, indices: Ints) -> Ints:
        """Return the number of tokens of each row, without padding: [n]."""

    @abstractmethod
    def read(self, indices: Ints) -> tuple[Ints, Ints]:
        """Return rows by number, and their sizes: [n] -> [n, width], [n]."""

    @abstractmethod
    def newly_verified(self) -> dict[str, str]:
        """Return name -> sha256 of the shards compared with their checksums since the last call."""

    def tokens(self, indices: Ints) -> Ints:
        """Return rows by number: [n] -> [n, width]."""
        return self.read(indices)[0]

    def _checked(self, indices: Ints) -> Ints:
        """Return row numbers, all of which exist."""
        indices = np.asarray(indices, np.int64)
        if indices.size and (indices.min() < 0 or indices.max() >= len(self)):
            raise IndexError(f"row {indices.min()} or {indices.max()} of {len(self)}")
        return indices


class MixedRows(Rows):
    """The rows of the corpora of a mixture, one corpus after another: `parts` by name, with the `weights` of tokens."""

    def __init__(self, parts: Mapping[str, Rows], weights: Sequence[float]):
        self.parts = dict(parts)
        self.weights = tuple(weights)
        every = list(parts.values())
        self.width = every[0].width
        self.pad_id = every[0].pad_id
        self.firsts = np.cumsum([0, *map(len, every)])

    def __len__(self) -> int:
        return int(self.firsts[-1])

    def sizes(self, indices: Ints) -> Ints:
        return self.read(indices)[1]

    def read(self, indices: Ints) -> tuple[Ints, Ints]:
        indices = self._checked(indices)
        out = np.empty((len(indices), self.width), np.int64)
        sizes = np.empty(len(indices), np.int64)
        numbers = np.searchsorted(self.firsts, indices, "right") - 1
        for number, rows in enumerate(self.parts.values()):
            here = numbers == number
            out[here], sizes[here] = rows.read(indices[here] - self.firsts[number])
        return out, sizes

    def newly_verified(self) -> dict[str, str]:
        return {
            f"{name}/{shard}": sha256
            for name, rows in self.parts.items()
            for shard, sha256 in rows.newly_verified().items()
        }


class _ShardRows(Rows):
    """Rows of one text. A shard is compared with its checksum once, when its first row is read."""

    def __init__(self, shards: Sequence[Shard], limit: int | None):
        self._shards = [shard for shard in shards if shard.totals.tokens]
        # Where each shard starts in the concatenated ids.
        self._starts = np.cumsum([0, *(shard.totals.tokens for shard in self._shards)])
        self._limit = limit
        self._guard = Lock()
        self._verified: set[int] = set()
        self._reported: set[int] = set()
        self._tokens = self._readers(".bin", next((shard.kind for shard in self._shards), LENGTH))

    def _readers(self, suffix: str, kind: np.dtype[Any]) -> Callable[[int], _Reader]:
        """Return the function from a shard's number to its open file. At most _MAX_OPEN_FILES are open."""
        rows = proxy(self)  # a cycle would keep the files open until the collector runs
        return lru_cache(_MAX_OPEN_FILES)(lambda n: _Reader(rows._verified_shard(n).stem.with_suffix(suffix), kind))

    def _verified_shard(self, number: int) -> Shard:
        """Return a shard after comparing it with its checksum. Raises DataError if they differ."""
        shard = self._shards[number]
        with self._guard:
            if number not in self._verified:
                verify(shard)
                self._verified.add(number)
        return shard

    def newly_verified(self) -> dict[str, str]:
        with self._guard:
            fresh = sorted(self._verified - self._reported)
            self._reported = set(self._verified)
        return {self._shards[number].name: self._shards[number].sha256 for number in fresh}

    def __len__(self) -> int:
        return self._available if self._limit is None else min(self._available, self._limit)

    @property
    @abstractmethod
    def _available(self) -> int:
        """The number of rows in the shards."""

    @abstractmethod
    def _place(self, index: int) -> tuple[int, int]:
        """Return where the row starts in the concatenated ids, and its size."""

    def read(self, indices: Ints) -> tuple[Ints, Ints]:
        indices = self._checked(indices)
        out = np.full((len(indices), self.width), self.pad_id or 0, np.int64)
        sizes = np.empty(len(indices), np.int64)
        for number, index in enumerate(indices.tolist()):
            begin, sizes[number] = self._place(index)
            self._copy(begin, out[number, : sizes[number]])
        return out, sizes

    def _copy(self, begin: int, out: Ints) -> None:
        """Fill `out` with the concatenated ids from `begin` on, across shards."""
        number = int(np.searchsorted(self._starts, begin, "right")) - 1
        done = 0
        while done < len(out):
            offset = begin + done - int(self._starts[number])
            piece = self._tokens(number).read(offset, offset + len(out) - done)
            out[done : done + len(piece)] = piece
            done += len(piece)
            number += 1


class _PackedRows(_ShardRows):
    """Concatenated documents cut with stride `length`. Every row is full; tokens after the last full row are unused."""

    def __init__(self, shards: Sequence[Shard], length: int, limit: int | None = None):
        super().__init__(shards, limit)
        self.width = length + 1
        self.pad_id = None

    @property
    def _available(self) -> int:
        return max(0, int(self._starts[-1]) - 1) // (self.width - 1)

    def sizes(self, indices: Ints) -> Ints:
        return np.full(len(indices), self.width, np.int64)

    def _place(self, index: int) -> tuple[int, int]:
        return index * (self.width - 1), self.width


class _PaddedRows(_ShardRows):
    """One document per row. The shards hold at most `length` tokens of a document.

    The start of a document is the sum of the lengths before it; only every _STRIDE-th start is kept in memory.
    """

    pad_id: int

    def __init__(self, shards: Sequence[Shard], length: int, pad_id: int, limit: int | None = None):
        super().__init__(shards, limit)
        self.width = length
        self.pad_id = pad_id
        self._lengths = self._readers(".len", LENGTH)
        # The number of the first document of each shard, and the total.
        self._firsts = np.cumsum([0, *(shard.totals.documents for shard in self._shards)])
        self._marks = [_marks(shard, start, length) for shard, start in zip(self._shards, self._starts, strict=False)]

    @property
    def _available(self) -> int:
        return int(self._firsts[-1])

    def sizes(self, indices: Ints) -> Ints:
        indices = np.asarray(indices, np.int64)
        out = np.empty(len(indices), np.int64)
        numbers = np.searchsorted(self._firsts, indices, "right") - 1
        for number in np.unique(numbers).tolist():
            here = numbers == number
            out[here] = self._verified_shard(number).lengths[indices[here] - self._firsts[number]]
        return out

    def _place(self, index: int) -> tuple[int, int]:
        number = int(np.searchsorted(self._firsts, index, "right")) - 1
        document = index - int(self._firsts[number])
        mark = document // _STRIDE
        lengths = self._lengths(number).read(mark * _STRIDE, document + 1)
        return int(self._marks[number][mark]) + int(lengths[:-1].sum()), int(lengths[-1])


def _marks(shard: Shard, start: int, longest: int) -> Ints:
    """Return where every _STRIDE-th document of the shard starts in the concatenated ids.

    Raises DataError if a document is longer than `longest` tokens.
    """
    lengths = np.asarray(shard.lengths)
    if lengths.max() > longest or lengths.sum() != shard.totals.tokens:
        verify(shard)
        raise DataError(f"rows of {longest} tokens were requested, but the cached documents have up to {lengths.max()}")
    sums = np.add.reduceat(lengths, np.arange(0, len(lengths), _STRIDE), dtype=np.int64)
    return int(start) + np.concatenate([[0], np.cumsum(sums)[:-1]])


def open_rows(shards: Sequence[Shard], layout: str, length: int, *, pad_id: int, limit: int | None = None) -> Rows:
    """Return the rows of `layout` (`pack` or `pad`), at most `limit`."""
    if layout == "pad":
        return _PaddedRows(shards, length, pad_id, limit)
    return _PackedRows(shards, length, limit)


def shares_of_period(weights: Sequence[float]) -> Ints:
    """Return how many of PERIOD rows each corpus has; largest remainders complete the sum."""
    exact = np.array(weights) * PERIOD
    counts = np.floor(exact + 1e-6).astype(np.int64)
    most = np.argsort(counts - exact, kind="stable")[: PERIOD - int(counts.sum())]
    counts[most] += 1
    return counts


def rows_needed(weights: Sequence[float], rows: int) -> list[int]:
    """Return how many rows of each corpus a run of `rows` rows reads at most."""
    if len(weights) == 1:
        return [rows]
    shares, (periods, rest) = shares_of_period(weights), divmod(rows, PERIOD)
    return [int(each) for each in periods * shares + np.minimum(shares, rest)]
