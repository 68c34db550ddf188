"""Batches made ahead are the batches; the thread ends with its owner and hands over what went wrong."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch

from gpas_cli.data.ahead import Ahead
from gpas_cli.data.loader import Batches
from gpas_cli.data.rows import Ints
from gpas_cli.train.feed import DEPTH, Feed

CPU = torch.device("cpu")


class Numbers:
    """Padded rows of eight tokens; row r has 2 + r mod 6 of them."""

    width, pad_id = 8, 0

    def __init__(self) -> None:
        self.reads = 0
        self.broken_at = -1

    def __len__(self) -> int:
        return 50

    def sizes(self, indices: Ints) -> Ints:
        return 2 + np.asarray(indices) % 6

    def read(self, indices: Ints) -> tuple[Ints, Ints]:
        self.reads += 1
        if self.reads == self.broken_at:
            raise OSError("the disk is gone")
        return np.asarray(indices)[:, None] * 8 + np.arange(8), self.sizes(indices)


@pytest.fixture
def rows() -> Numbers:
    return Numbers()


def make(rows: Numbers) -> Batches:
    return Batches(rows, 12, seed=3)  # type: ignore[arg-type]


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "gpas-ahead"]


@pytest.mark.parametrize("world", [1, 2, 4])
def test_the_same_batches_from_any_step_on(rows: Numbers, world: int):
    batches = make(rows)
    for rank in range(world):
        with Feed(batches, CPU, 5, 30, mean_rows=6, rank=rank, world=world) as feed:
            steps = []
            for fed in feed:
                wanted = batches.at(fed.step, rank, world)
                assert fed.batch.digest() == wanted.digest()
                assert np.array_equal(fed.inputs.numpy(), wanted.inputs)
                assert np.array_equal(fed.targets.numpy(), wanted.targets)
                assert fed.divisors.tolist() == batches.divisors(fed.step, 6, rank, world).tolist()
                steps.append(fed.step)
        assert steps == list(range(5, 30))
    assert threads() == []


def test_it_is_a_bounded_number_of_batches_ahead(rows: Numbers):
    with Feed(make(rows), CPU) as feed:
        next(feed)
        deadline = time.monotonic() + 10
        while rows.reads < DEPTH + 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)
        assert rows.reads == DEPTH + 2  # the one taken, those waiting, the one in the thread's hand


def test_an_error_is_raised_where_its_batch_would_have_come(rows: Numbers):
    rows.broken_at = 4
    with Feed(make(rows), CPU) as feed:
        assert [next(feed).step for _ in range(3)] == [0, 1, 2]
        with pytest.raises(OSError, match="the disk is gone"):
            next(feed)
        with pytest.raises(StopIteration):
            next(feed)
    assert threads() == []


def test_the_thread_ends_when_the_consumer_fails_or_leaves(rows: Numbers):
    def fail(feed: Feed) -> None:
        with feed:
            next(feed)
            raise KeyError("training failed")

    feed = Feed(make(rows), CPU)
    with pytest.raises(KeyError):
        fail(feed)
    assert threads() == []
    feed.close()
    with pytest.raises(StopIteration):
        next(feed)


def test_a_generator_is_closed_in_its_thread():
    closed: list[str] = []

    def numbers():
        try:
            yield from range(100)
        finally:
            closed.append(threading.current_thread().name)

    with Ahead(numbers(), 3) as ahead:
        assert [next(ahead) for _ in range(5)] == [0, 1, 2, 3, 4]
    assert closed == ["gpas-ahead"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_batches_are_pinned_and_arrive(rows: Numbers):
    batches = make(rows)
    with Feed(batches, torch.device("cuda"), 0, 40) as feed:
        assert feed._prepare(0).inputs.is_pinned()
        for fed in feed:
            assert fed.inputs.is_cuda
            assert np.array_equal(fed.inputs.cpu().numpy(), batches.at(fed.step).inputs)
            assert np.array_equal(fed.targets.cpu().numpy(), batches.at(fed.step).targets)
