"""Rows compared with the naive construction: join everything in a list and slice it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gpas_cli.data.files import Files
from gpas_cli.data.rows import _PackedRows, _PaddedRows, open_rows
from gpas_cli.data.shards import Shard, TokenCache
from gpas_cli.errors import DataError

Make = Callable[..., TokenCache]


def shards_of(cache: TokenCache, split: str = "train") -> list[Shard]:
    return cache.ensure(split, lambda totals: False, lambda message: None)


def documents_of(cache: TokenCache, source: Files) -> list[list[int]]:
    return [[*cache.tokenizer.encode(d.text), 1] for d in source.documents("train")]


@pytest.mark.parametrize("length", [2, 7, 64, 1000])
@pytest.mark.parametrize("shard_documents", [3, 10, 1000])
def test_pack_equals_the_naive_construction(make_cache: Make, source: Files, length: int, shard_documents: int):
    cache = make_cache(shard_documents=shard_documents)
    joined = [i for document in documents_of(cache, source) for i in document]
    starts = range(0, len(joined) - length, length)
    rows = _PackedRows(shards_of(cache), length)
    assert len(rows) == len(starts)
    assert rows.width == length + 1
    assert rows.pad_id is None
    assert rows.tokens(np.arange(len(rows))).tolist() == [joined[s : s + length + 1] for s in starts]
    assert set(rows.sizes(np.arange(len(rows))).tolist()) == {length + 1}


def test_packed_rows_predict_every_token_but_the_first_once(make_cache: Make):
    cache = make_cache()
    rows = _PackedRows(shards_of(cache), 16)
    tokens = rows.tokens(np.arange(len(rows)))
    assert (tokens[1:, 0] == tokens[:-1, -1]).all()


@pytest.mark.parametrize("shard_documents", [3, 10, 1000])
@pytest.mark.parametrize("length", [4, 32, 400])
def test_pad_equals_the_naive_construction(make_cache: Make, source: Files, length: int, shard_documents: int):
    cache = make_cache(limit=length, shard_documents=shard_documents)
    whole = documents_of(cache, source)
    expected = [d if len(d) <= length else [*d[: length - 1], 1] for d in whole]
    rows = _PaddedRows(shards_of(cache), length, pad_id=0)
    assert len(rows) == len(whole)
    assert rows.width == length
    indices = np.arange(len(rows))
    assert rows.sizes(indices).tolist() == [len(d) for d in expected]
    assert rows.tokens(indices).tolist() == [d + [0] * (length - len(d)) for d in expected]


@pytest.mark.parametrize("layout", ["pack", "pad"])
def test_rows_by_number_in_any_order(make_cache: Make, layout: str):
    cache = make_cache(limit=16 if layout == "pad" else None)
    rows = open_rows(shards_of(cache), layout, 16, pad_id=0)
    chosen = np.array([5, 0, 5, len(rows) - 1])
    assert (rows.tokens(chosen) == rows.tokens(np.arange(len(rows)))[chosen]).all()
    assert rows.tokens(chosen).dtype == np.int64
    assert rows.tokens(np.array([], np.int64)).shape == (0, rows.width)
    for bad in (-1, len(rows)):
        with pytest.raises(IndexError):
            rows.tokens(np.array([bad]))


@pytest.mark.parametrize("layout", ["pack", "pad"])
def test_a_limit_keeps_the_first_rows(make_cache: Make, layout: str):
    cache = make_cache(limit=16 if layout == "pad" else None)
    every = open_rows(shards_of(cache), layout, 16, pad_id=0)
    some = open_rows(shards_of(cache), layout, 16, pad_id=0, limit=9)
    assert len(some) == 9
    assert (some.tokens(np.arange(9)) == every.tokens(np.arange(9))).all()
    with pytest.raises(IndexError):
        some.tokens(np.array([9]))
    assert len(open_rows(shards_of(cache), layout, 16, pad_id=0, limit=10**9)) == len(every)


def test_padded_rows_refuse_documents_longer_than_a_row(make_cache: Make):
    with pytest.raises(DataError, match="rows of 4 tokens were requested, but the cached documents have up to"):
        _PaddedRows(shards_of(make_cache()), 4, pad_id=0)


def flip(path: Path) -> None:
    """Flip one bit in the middle of a file without changing its size."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("suffix", [".bin", ".len"])
@pytest.mark.parametrize("layout", ["pack", "pad"])
def test_a_damaged_shard_is_refused_when_it_is_first_read(make_cache: Make, layout: str, suffix: str):
    shards = shards_of(make_cache(limit=16 if layout == "pad" else None))
    flip(shards[3].stem.with_suffix(suffix))

    def read_all() -> None:
        rows = open_rows(shards, layout, 16, pad_id=0)
        rows.tokens(np.arange(len(rows)))

    with pytest.raises(DataError, match="00003: the tokens on disk are not those that were written"):
        read_all()


def test_only_the_shards_that_are_read_are_verified_and_each_once(make_cache: Make):
    shards = shards_of(make_cache())
    rows = _PackedRows(shards, 16)
    assert rows.newly_verified() == {}
    rows.tokens(np.arange(3))
    assert rows.newly_verified() == {"00000": shards[0].sha256}
    rows.tokens(np.arange(3))
    assert rows.newly_verified() == {}


@pytest.mark.parametrize("layout", ["pack", "pad"])
def test_an_empty_cache_has_no_rows(layout: str):
    assert len(open_rows([], layout, 8, pad_id=0)) == 0
