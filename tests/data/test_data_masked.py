"""Masked batches: proportions, targets, independence of everything but (seed, update, row)."""

import math

import numpy as np
import pytest

from gpas_cli.data.loader import IGNORED, Batch, lengths_needed
from gpas_cli.data.objective import _MaskedReader
from gpas_cli.data.order import Draw, Ints
from gpas_cli.spec.objective import Masked

END, MASK, IDS, LENGTH = 1, 99, 98, 64
READER = _MaskedReader(Masked(), LENGTH, MASK, IDS, END)


def tokens(rows: int = 400, width: int = LENGTH + 1) -> Ints:
    """Return rows without the mask token and with some end tokens."""
    return np.random.default_rng(5).integers(1, 50, (rows, width))


def made(numbers: Ints, draw: Draw, reader: _MaskedReader = READER) -> Batch:
    return reader.batch(tokens()[numbers], np.full(len(numbers), LENGTH + 1), numbers, draw)


def same(a: Batch, b: Batch) -> bool:
    return a.digest() == b.digest() and np.array_equal(a.prefix, b.prefix)


def within(count: int, of: int, share: float) -> bool:
    """Return whether a count lies within three standard errors of its expectation."""
    return abs(count - of * share) <= 3 * math.sqrt(of * share * (1 - share))


def test_the_proportions_are_within_three_standard_errors() -> None:
    numbers = np.arange(400)
    batch = made(numbers, Draw.training(7, 3))
    original = tokens()[:, :LENGTH]
    eligible = int((original != END).sum())
    chosen = batch.targets != IGNORED
    count = int(chosen.sum())
    assert within(count, eligible, 0.15)
    masked = int((batch.inputs[chosen] == MASK).sum())
    assert within(masked, count, 0.8)
    # A random token equals the original one with probability 1 / IDS.
    unchanged = int((batch.inputs == original)[chosen].sum())
    assert within(unchanged, count, 0.1 + 0.1 / IDS)
    assert within(count - masked - unchanged, count, 0.1 - 0.1 / IDS)


def test_only_chosen_tokens_change_and_only_they_are_targets() -> None:
    batch = made(np.arange(400), Draw.training(7, 3))
    original = tokens()[:, :LENGTH]
    chosen = batch.targets != IGNORED
    assert np.array_equal(batch.inputs[~chosen], original[~chosen])
    assert np.array_equal(batch.targets[chosen], original[chosen])
    assert not chosen[original == END].any()
    assert batch.prefix is not None
    assert (batch.prefix == LENGTH).all()
    assert batch.tokens_read == 400 * LENGTH
    assert batch.predicted == chosen.sum()


def test_random_tokens_are_uniform_over_the_tokenizer() -> None:
    reader = _MaskedReader(Masked(rate=1, mask=0, random=1), LENGTH, MASK, IDS, end_id=-1)
    inputs = made(np.arange(400), Draw.training(1, 1), reader).inputs
    counts = np.bincount(inputs.ravel(), minlength=IDS)
    assert len(counts) == IDS
    expected = inputs.size / IDS
    chi_squared = float(((counts - expected) ** 2 / expected).sum())
    assert chi_squared < IDS - 1 + 4 * math.sqrt(2 * (IDS - 1))


def test_a_row_is_corrupted_in_the_same_way_in_any_batch() -> None:
    """So the number of processes, the micro-batch and a restart change nothing."""
    draw = Draw.training(7, 3)
    whole = made(np.arange(20), draw)
    for numbers in (np.array([11]), np.array([19, 11, 2])):
        part = made(numbers, draw)
        assert np.array_equal(part.inputs, whole.inputs[numbers])
        assert np.array_equal(part.targets, whole.targets[numbers])


@pytest.mark.parametrize(
    "other", [Draw.training(8, 3), Draw.training(7, 4), Draw.training(3, 7), Draw.validation(), Draw.training(0, 0)]
)
def test_seed_and_update_change_the_corruption(other: Draw) -> None:
    numbers = np.arange(20)
    assert not same(made(numbers, Draw.training(7, 3)), made(numbers, other))
    assert same(made(numbers, other), made(numbers, other))


def test_padding_is_neither_chosen_nor_seen() -> None:
    sizes = np.array([1, 5, LENGTH + 1])
    numbers = np.arange(3)
    reader = _MaskedReader(Masked(rate=1), LENGTH, MASK, IDS, END)
    batch = reader.batch(tokens()[numbers], sizes, numbers, Draw.training(1, 1))
    assert batch.prefix is not None
    assert batch.prefix.tolist() == [1, 5, LENGTH]
    assert (batch.targets[1, 5:] == IGNORED).all()
    assert (batch.targets[0, 1:] == IGNORED).all()
    assert lengths_needed(batch.targets, batch.prefix).tolist() == [1, 5, LENGTH]
    assert lengths_needed(batch.targets, None).max() <= LENGTH


def test_the_numbers_are_fixed_for_good() -> None:
    assert Draw.training(42, 0).words(0, 2).tolist() == [5981513110352009476, 7933542913713224937]
    assert Draw.validation().words(3, 1).tolist() == [14351288650538176988]
