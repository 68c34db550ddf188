"""Batches: pure in (seed, step), identical with prefetching, with shifted and masked targets."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from gpas_cli.data import loader
from gpas_cli.data.loader import (
    _PREFETCHED_BATCHES,
    IGNORED,
    Batch,
    Batches,
    PrefetchedBatches,
    permutation,
    validation_batches,
)
from gpas_cli.data.rows import Rows, open_rows
from gpas_cli.data.shards import TokenCache

Make = Callable[..., TokenCache]
LENGTH = 16


@pytest.fixture(params=["pack", "pad"])
def rows(request: pytest.FixtureRequest, make_cache: Make) -> Rows:
    cache = make_cache(limit=LENGTH if request.param == "pad" else None)
    shards = cache.ensure("train", lambda totals: False, lambda message: None)
    return open_rows(shards, request.param, LENGTH, pad_id=0)


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


def test_an_epoch_visits_every_row_once(rows: Rows):
    batches = Batches(rows, 1, seed=0)
    for epoch in range(2):
        seen = [batches.at(epoch * len(rows) + n).inputs.tobytes() for n in range(len(rows))]
        assert sorted(seen) == sorted(r.tobytes() for r in rows.tokens(np.arange(len(rows)))[:, :-1])


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
    cache = make_cache(limit=LENGTH)
    shards = cache.ensure("train", lambda totals: False, lambda message: None)
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
