"""Batches: pure in (seed, step), the same union for every number of ranks, targets shifted and masked."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gpas_cli.data import loader
from gpas_cli.data.loader import IGNORED, Batch, Batches, permutation, validation_batches
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


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("batch", [8, 7, 3])
def test_the_union_over_ranks_is_the_batch_of_one(rows: Rows, batch: int, world: int):
    for step in (0, 9, 2 * len(rows) // batch):
        whole = Batches(rows, batch, seed=5).at(step)
        parts = [Batches(rows, batch, seed=5).at(step, rank, world) for rank in range(world)]
        assert sum(len(part.inputs) for part in parts) == batch
        for rank, part in enumerate(parts):
            assert same(part, Batch(whole.inputs[rank::world], whole.targets[rank::world]))


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


@pytest.mark.parametrize("world", [2, 4])
def test_validation_is_shared_out_between_ranks(rows: Rows, world: int):
    whole = list(validation_batches(rows, 8, 500))
    parts = [list(validation_batches(rows, 8, 500, rank, world)) for rank in range(world)]
    for number, batch in enumerate(whole):
        for rank in range(min(world, len(batch.inputs))):
            assert same(parts[rank][number], Batch(batch.inputs[rank::world], batch.targets[rank::world]))


def test_a_rank_without_validation_rows_has_a_batch_that_counts_nothing(rows: Rows):
    """9 rows in batches of 8: the last batch has one row, for rank 0."""
    budget = int((rows.sizes(permutation(0, 0, len(rows))[:9]) - 1).sum())
    parts = [list(validation_batches(rows, 8, budget, rank, 4)) for rank in range(4)]
    assert [len(part) for part in parts] == [2] * 4
    assert [len(part[1].inputs) for part in parts] == [1] * 4
    assert [part[1].predicted > 0 for part in parts] == [True, False, False, False]
    assert sum(b.predicted for part in parts for b in part) == budget


def test_lengths_tell_which_targets_count(rows: Rows):
    batch = Batches(rows, len(rows), seed=0).at(0)
    sizes = rows.sizes(permutation(0, 0, len(rows)))
    assert batch.lengths.tolist() == (sizes - 1).tolist()
    assert batch.lengths.dtype == np.int64
    for targets, length in zip(batch.targets, batch.lengths, strict=True):
        assert (targets[:length] != IGNORED).all()
        assert (targets[length:] == IGNORED).all()


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("mean_rows", [0, 2, 6, 12])
def test_ranks_add_up_to_the_mean_of_group_means(rows: Rows, world: int, mean_rows: int):
    batches, step = Batches(rows, 12, seed=4), 3
    whole = batches.at(step)
    loss = np.where(whole.targets != IGNORED, np.sin(whole.targets), 0).sum(1)  # a loss per row, summed over targets
    groups = [slice(first, first + (mean_rows or 12)) for first in range(0, 12, mean_rows or 12)]
    wanted = np.mean([loss[group].sum() / whole.lengths[group].sum() for group in groups])
    total = 0.0
    for rank in range(world):
        total += (loss[rank::world] / batches.divisors(step, mean_rows, rank, world)).sum()
        assert len(batches.divisors(step, mean_rows, rank, world)) == len(batches.at(step, rank, world).inputs)
    assert total == pytest.approx(wanted, rel=1e-12)


def test_divisors_are_those_of_the_trainer(rows: Rows):
    import torch

    from gpas_cli.train.loop import micro_batches

    batches = Batches(rows, 12, seed=4)
    for mean_rows in (0, 4, 6):
        told = np.zeros(12, np.int64)
        for part, weight in micro_batches(torch.from_numpy(batches.at(2).targets), 2, mean_rows):
            told[part] = weight
        assert batches.divisors(2, mean_rows).tolist() == told.tolist()
    with pytest.raises(ValueError, match="mean_rows=5 does not divide the batch of 12 rows"):
        batches.divisors(0, 5)
