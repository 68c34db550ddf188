"""Rows: as the naive construction makes them, in the order of a seed, and as batches of any process."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gpas_cli.data import loader
from gpas_cli.data import loader as room
from gpas_cli.data.files import Files
from gpas_cli.data.loader import (
    _PREFETCHED_BATCHES,
    IGNORED,
    Batch,
    Batches,
    PrefetchedBatches,
    _KeyedOrder,
    order,
    permutation,
    validation_batches,
)
from gpas_cli.data.rows import Rows, _PackedRows, _PaddedRows, open_rows
from gpas_cli.data.shards import Shard, TokenCache
from gpas_cli.data.tokenizer import Tokenizer
from gpas_cli.errors import DataError

Make = Callable[..., TokenCache]


@pytest.fixture(scope="module")
def source(corpus: Files) -> Files:
    return corpus


@pytest.fixture(scope="module")
def make_cache(corpus: Files, tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Return `make_cache` of conftest.py with caches that are built once, because these tests only read them."""
    own, survey = tmp_path_factory.mktemp("rows"), corpus.survey()

    def make(limit: int | None = None, folder: Path = own, shard_documents: int = 10) -> TokenCache:
        return TokenCache(corpus, survey, tokenizer, limit, folder, shard_documents)

    return make


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


def test_rows_by_number_in_any_order(rows: Rows):
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
def test_a_damaged_shard_is_refused_when_it_is_first_read(make_cache: Make, tmp_path: Path, layout: str, suffix: str):
    shards = shards_of(make_cache(16 if layout == "pad" else None, tmp_path))
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


@pytest.mark.parametrize("size", [2, 3, 4, 5, 7, 8, 9, 100, 1023, 1024, 1025, 70_001])
def test_every_number_occurs_once(size: int):
    keyed = _KeyedOrder(7, 0, size)
    assert sorted(keyed[np.arange(size)].tolist()) == list(range(size))


def test_the_keyed_order_is_fixed_for_good():
    assert _KeyedOrder(42, 0, 10)[np.arange(10)].tolist() == [3, 4, 8, 2, 0, 1, 6, 7, 5, 9]
    assert _KeyedOrder(43, 0, 10)[np.arange(10)].tolist() == [0, 3, 7, 8, 2, 1, 5, 6, 4, 9]
    assert _KeyedOrder(42, 3, 51_200_000)[np.array([0, 1, 2, 51_199_999])].tolist() == [
        6046941, 30901275, 42877985, 29156102,
    ]  # fmt: skip


def test_places_may_be_asked_for_one_by_one_and_in_any_order():
    keyed = _KeyedOrder(1, 2, 5_000_000)
    places = np.array([4_999_999, 0, 77, 0])
    assert keyed[places].tolist() == [int(keyed[np.array([place])][0]) for place in places]
    assert keyed[places].dtype == np.int64
    assert keyed[np.zeros(0, np.int64)].tolist() == []


def test_it_looks_shuffled():
    """Neighbours are far apart, and every part of the order draws evenly from all rows."""
    size = 3_000_000
    found = _KeyedOrder(5, 0, size)[np.arange(100_000)]
    counts = np.bincount(found * 50 // size, minlength=50)
    chi_squared = ((counts - 2000) ** 2 / 2000).sum()
    assert chi_squared < 100  # 49 are expected; 100 has a probability of 2e-5
    assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 0.02
    assert abs(np.corrcoef(np.arange(100_000), found)[0, 1]) < 0.02


def test_small_corpora_keep_their_order(monkeypatch: pytest.MonkeyPatch):
    assert np.array_equal(order(3, 1, 1000), permutation(3, 1, 1000))
    monkeypatch.setattr(room, "_MAX_ROWS_IN_MEMORY", 999)
    assert isinstance(order(3, 1, 1000), _KeyedOrder)


LENGTH = 16


@pytest.fixture(params=["pack", "pad"])
def rows(request: pytest.FixtureRequest, make_cache: Make) -> Rows:
    cache = make_cache(limit=LENGTH if request.param == "pad" else None)
    return open_rows(shards_of(cache), request.param, LENGTH, pad_id=0)


def same(a: Batch, b: Batch) -> bool:
    return np.array_equal(a.inputs, b.inputs) and np.array_equal(a.targets, b.targets)


def test_the_permutation_is_fixed_for_good():
    assert permutation(42, 0, 10).tolist() == [4, 8, 1, 9, 3, 6, 0, 7, 2, 5]
    assert permutation(42, 1, 10).tolist() != permutation(42, 0, 10).tolist() != permutation(43, 0, 10).tolist()
    assert sorted(permutation(1, 2, 1000).tolist()) == list(range(1000))


def test_batches_follow_the_formula(rows: Rows):
    batches = Batches(rows, 7, seed=3)
    every = rows.tokens(np.arange(len(rows)))
    for step in (0, 1, 40, 3 * len(rows) // 7):
        positions = [step * 7 + j for j in range(7)]
        wanted = [permutation(3, p // len(rows), len(rows))[p % len(rows)] for p in positions]
        assert np.array_equal(batches.at(step).inputs, every[wanted][:, :-1])


def test_batches_are_pure_in_seed_and_step(rows: Rows):
    steps = [0, 5, 1000, 6, 5, 0]
    forward = [Batches(rows, 8, seed=1).at(step) for step in steps]
    one = Batches(rows, 8, seed=1)
    for step, fresh in zip(steps, forward, strict=True):
        assert same(one.at(step), fresh)
    assert not same(Batches(rows, 8, seed=2).at(0), forward[0])
    assert Batches(rows, 8, seed=1).at(5).digest() == forward[1].digest() != forward[0].digest()


def test_a_batch_handed_out_may_be_changed(rows: Rows):
    batches = Batches(rows, 8, seed=1)
    before = batches.at(3).digest()
    batch = batches.at(3)
    batch.inputs[:] = 0
    batch.targets[:] = 0
    assert batches.at(3).digest() == before


def test_targets_are_shifted_and_filling_is_not_counted(rows: Rows):
    batch = Batches(rows, len(rows), seed=0).at(0)
    indices = permutation(0, 0, len(rows))
    tokens, sizes = rows.tokens(indices), rows.sizes(indices)
    assert batch.inputs.shape == batch.targets.shape == (len(rows), rows.width - 1)
    for row, size, inputs, targets in zip(tokens, sizes, batch.inputs, batch.targets, strict=True):
        assert inputs.tolist() == row[:-1].tolist()
        assert targets[: size - 1].tolist() == row[1:size].tolist()
        assert (targets[size - 1 :] == IGNORED).all()
    assert batch.predicted == int((sizes - 1).sum())
    assert batch.inputs.dtype == batch.targets.dtype == np.int64
    assert batch.inputs.flags.c_contiguous
    assert batch.inputs.flags.writeable


def test_a_token_with_the_number_of_the_filling_still_counts(make_cache: Make):
    shards = shards_of(make_cache(limit=LENGTH))
    common = int(shards[0].tokens[1])
    plain = Batches(open_rows(shards, "pad", LENGTH, pad_id=0), 20, seed=0).at(0)
    clash = Batches(open_rows(shards, "pad", LENGTH, pad_id=common), 20, seed=0).at(0)
    assert np.array_equal(plain.targets, clash.targets)
    assert common in plain.targets


def test_a_permutation_is_made_once_per_epoch(rows: Rows, monkeypatch: pytest.MonkeyPatch):
    made: list[int] = []
    monkeypatch.setattr(loader, "order", lambda s, e, n: made.append(e) or permutation(s, e, n))
    batches = Batches(rows, 2 * len(rows) // 3, seed=0)
    for step in range(9):
        batches.at(step)
    assert made == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("budget", [1, 15, 16, 100, 10**9])
def test_validation_stops_at_the_budget_whatever_the_batch(rows: Rows, budget: int):
    runs = [list(validation_batches(rows, batch, budget)) for batch in (1, 4, 1000)]
    everything = int((rows.sizes(np.arange(len(rows))) - 1).sum())
    predicted = sum(b.predicted for b in runs[0])
    assert min(budget, everything) <= predicted < budget + rows.width
    for run in runs:
        assert np.array_equal(np.concatenate([b.inputs for b in run]), np.concatenate([b.inputs for b in runs[0]]))
        assert all(b.predicted for b in run)
    assert all(len(b.inputs) == 4 for b in runs[1][:-1])


def test_validation_rows_are_taken_from_all_over_and_only_once(rows: Rows):
    inputs = np.concatenate([b.inputs for b in validation_batches(rows, 8, 10**9)])
    every = rows.tokens(np.arange(len(rows)))[:, :-1]
    assert sorted(r.tobytes() for r in inputs) == sorted(r.tobytes() for r in every)
    assert not np.array_equal(inputs, every)


class Unready:
    """Rows that fail at one read."""

    def __init__(self, rows: Rows, broken_at: int = -1):
        self._rows = rows
        self.reads = 0
        self.broken_at = broken_at

    def __len__(self) -> int:
        return len(self._rows)

    def __getattr__(self, name: str) -> object:
        return getattr(self._rows, name)

    def read(self, indices: np.ndarray) -> object:
        self.reads += 1
        if self.reads == self.broken_at:
            raise OSError("the disk is gone")
        return self._rows.read(indices)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("gpas-prefetch")]


def test_batches_made_ahead_are_the_batches(rows: Rows):
    batches = Batches(rows, 12, seed=3)
    with PrefetchedBatches(batches.at, 5, 30) as served:
        assert all(same(served.at(step), batches.at(step)) for step in range(5, 30))
    assert threads() == []


def test_they_are_a_bounded_number_ahead(rows: Rows):
    counted = Unready(rows)
    with PrefetchedBatches(Batches(counted, 12, seed=3).at, 0, 30) as served:
        served.at(0)
        deadline = time.monotonic() + 10
        while counted.reads < _PREFETCHED_BATCHES + 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)
        assert counted.reads == _PREFETCHED_BATCHES + 1  # one taken, and those ahead


def test_an_error_while_prefetching_is_raised_at_its_batch(rows: Rows):
    with PrefetchedBatches(Batches(Unready(rows, broken_at=4), 12, seed=3).at, 0, 30) as served:
        for step in range(3):
            served.at(step)
        with pytest.raises(OSError, match="the disk is gone"):
            served.at(3)
    assert threads() == []


def test_the_thread_ends_when_training_fails(rows: Rows):
    with pytest.raises(KeyError), PrefetchedBatches(Batches(rows, 12, seed=3).at, 0, 10**6):
        raise KeyError("training failed")
    assert threads() == []
