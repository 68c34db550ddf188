"""The order of many rows, computed instead of stored."""

from __future__ import annotations

import numpy as np
import pytest

from gpas_cli.data import order as room
from gpas_cli.data.order import _KeyedOrder, order, permutation


@pytest.mark.parametrize("size", [2, 3, 4, 5, 7, 8, 9, 100, 1023, 1024, 1025, 70_001])
def test_every_number_occurs_once(size: int):
    keyed = _KeyedOrder(7, 0, size)
    assert sorted(keyed[np.arange(size)].tolist()) == list(range(size))


def test_the_keyed_order_is_fixed_for_good():
    assert _KeyedOrder(42, 0, 10)[np.arange(10)].tolist() == [3, 4, 8, 2, 0, 1, 6, 7, 5, 9]
    assert _KeyedOrder(42, 3, 51_200_000)[np.array([0, 1, 2, 51_199_999])].tolist() == [
        6046941,
        30901275,
        42877985,
        29156102,
    ]


def test_places_may_be_asked_for_one_by_one_and_in_any_order():
    keyed = _KeyedOrder(1, 2, 5_000_000)
    places = np.array([4_999_999, 0, 77, 0])
    assert keyed[places].tolist() == [int(keyed[np.array([place])][0]) for place in places]
    assert keyed[places].dtype == np.int64
    assert keyed[np.zeros(0, np.int64)].tolist() == []


def test_seeds_and_epochs_have_orders_of_their_own():
    places = np.arange(1000)
    orders = [_KeyedOrder(seed, epoch, 2_000_000)[places] for seed, epoch in ((1, 0), (1, 1), (2, 0))]
    assert all((a != b).mean() > 0.99 for a, b in ((orders[0], orders[1]), (orders[0], orders[2])))


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
