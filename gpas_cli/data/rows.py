"""The token cache seen as a table of rows, read from disk row by row: what is not asked for costs no memory.

pack   d1 d1 d1 </s> d2 d2 </s> d3 ...     row r is tokens r*length .. r*length + length, both included: `length`
                                           tokens to predict, the last of which is the next row's first input
pad    d1 d1 d1 </s> .  .                  row r is document r, at most `length` tokens, filled with `pad_id`

Files are read, not mapped: rows are asked for in random order, and for each of them the kernel would read far ahead.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpas_cli.data.encode import TOKEN
from gpas_cli.data.shards import LENGTH, Shard
from gpas_cli.data.verify import verify
from gpas_cli.errors import DataError

Ints = NDArray[np.int64]

# Documents between two starts that are kept in memory: 51 million documents take 6 MB.
_STRIDE = 64
# Files of each kind that are open at a time: a process often may have no more than 1024; C4 for the 1B is 780 shards.
_OPEN = 128


class _Reader:
    """A file of numbers, of which small pieces are read. Closed when nobody has it any more."""

    def __init__(self, path: Path, kind: np.dtype[Any]):
        self.path, self.kind = path, kind
        self._handle = os.open(path, os.O_RDONLY)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._handle, 0, 0, os.POSIX_FADV_RANDOM)

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            os.close(self._handle)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Numbers `start` to `stop`, or fewer at the end of the file: [n]."""
        size = self.kind.itemsize
        return np.frombuffer(os.pread(self._handle, (stop - start) * size, start * size), self.kind)


class Rows(ABC):
    """`len(rows)` rows of `width` tokens, addressed by number. Threads may share it.

    A shard is compared with its checksum when its first row is read, once in the life of this object; what reads rows
    raises DataError for a damaged one.

    `pad_id` fills the end of short rows; None where no row is short. It may also occur as a token: `sizes` tells.
    """

    width: int
    pad_id: int | None

    def __init__(self, shards: Sequence[Shard], limit: int | None):
        self._shards = [shard for shard in shards if shard.totals.tokens]
        # Where each shard begins in the joined ids.
        self._starts = np.cumsum([0, *(shard.totals.tokens for shard in self._shards)])
        self._limit = limit
        self._guard = Lock()
        self._verified: set[int] = set()
        self._reported: set[int] = set()
        self._tokens = self._readers(".bin", TOKEN)

    def _readers(self, suffix: str, kind: np.dtype[Any]) -> Callable[[int], _Reader]:
        """From a shard's number to its file; a bounded number of them is open."""

        def reader(number: int) -> _Reader:
            return _Reader(self._sound(number).stem.with_suffix(suffix), kind)

        return lru_cache(_OPEN)(reader)

    def _sound(self, number: int) -> Shard:
        """The shard of that number, compared with its checksum. Raises DataError when they differ."""
        shard = self._shards[number]
        with self._guard:
            if number not in self._verified:
                verify(shard)
                self._verified.add(number)
        return shard

    def newly_verified(self) -> dict[str, str]:
        """Name -> sha256 of the shards that were compared with their checksum since this was last asked."""
        with self._guard:
            fresh, self._reported = sorted(self._verified - self._reported), set(self._verified)
        return {self._shards[number].name: self._shards[number].sha256 for number in fresh}

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
    def _place(self, index: int) -> tuple[int, int]:
        """Where the row starts in the joined ids, and its size."""

    def tokens(self, indices: Ints) -> Ints:
        """Rows by number: [n] -> [n, width]. Raises IndexError for a row there is not."""
        return self.read(indices)[0]

    def read(self, indices: Ints) -> tuple[Ints, Ints]:
        """Rows by number, and their sizes: [n] -> [n, width], [n]. Raises IndexError for a row there is not."""
        indices = np.asarray(indices, np.int64)
        if indices.size and (indices.min() < 0 or indices.max() >= len(self)):
            raise IndexError(f"row {indices.min()} or {indices.max()} of {len(self)}")
        out = np.full((len(indices), self.width), self.pad_id or 0, np.int64)
        sizes = np.empty(len(indices), np.int64)
        for number, index in enumerate(indices.tolist()):
            begin, sizes[number] = self._place(index)
            self._copy(begin, out[number, : sizes[number]])
        return out, sizes

    def _copy(self, begin: int, out: Ints) -> None:
        """Fill `out` with the joined ids from `begin` on, across shards."""
        number = int(np.searchsorted(self._starts, begin, "right")) - 1
        done = 0
        while done < len(out):
            offset = begin + done - int(self._starts[number])
            piece = self._tokens(number).read(offset, offset + len(out) - done)
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

    def _place(self, index: int) -> tuple[int, int]:
        return index * (self.width - 1), self.width


class PaddedRows(Rows):
    """One document a row. The shards keep no more than `length` tokens of a document.

    Where a document starts follows from the lengths before it; only every _STRIDE-th start is kept in memory.
    """

    pad_id: int

    def __init__(self, shards: Sequence[Shard], length: int, pad_id: int, limit: int | None = None):
        super().__init__(shards, limit)
        self.width, self.pad_id = length, pad_id
        self._lengths = self._readers(".len", LENGTH)
        # The number of each shard's first document, and of the documents of all.
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
            out[here] = self._sound(number).lengths[indices[here] - self._firsts[number]]
        return out

    def _place(self, index: int) -> tuple[int, int]:
        number = int(np.searchsorted(self._firsts, index, "right")) - 1
        document = index - int(self._firsts[number])
        mark = document // _STRIDE
        lengths = self._lengths(number).read(mark * _STRIDE, document + 1)
        return int(self._marks[number][mark]) + int(lengths[:-1].sum()), int(lengths[-1])


def _marks(shard: Shard, start: int, longest: int) -> Ints:
    """Where every _STRIDE-th document of the shard starts in the joined ids. Raises DataError for one that is longer
    than `longest` tokens."""
    lengths = np.asarray(shard.lengths)
    if lengths.max() > longest or lengths.sum() != shard.totals.tokens:
        verify(shard)
        raise DataError(f"rows of {longest} tokens were asked for, but the cached documents have up to {lengths.max()}")
    sums = np.add.reduceat(lengths, np.arange(0, len(lengths), _STRIDE), dtype=np.int64)
    return int(start) + np.concatenate([[0], np.cumsum(sums)[:-1]])


def open_rows(shards: Sequence[Shard], layout: str, length: int, *, pad_id: int, limit: int | None = None) -> Rows:
    """The rows of `layout`, `pack` or `pad`; with `limit`, the first so many."""
    if layout == "pad":
        return PaddedRows(shards, length, pad_id, limit)
    return PackedRows(shards, length, limit)
