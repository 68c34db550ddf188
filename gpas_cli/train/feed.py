"""Batches ready before they are needed: read by a thread, in pinned memory where the device is CUDA, copied without
waiting. The same batches, bit for bit, as `Batches.at`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from gpas_cli.data.ahead import Ahead
from gpas_cli.data.loader import Batch, Batches

# Batches made ahead. One hides the reading of the next behind an update; a second one evens out.
DEPTH = 2


@dataclass(frozen=True)
class Fed:
    """The part of a rank in the batch of an update, on the host (`batch`) and on the device.

    `inputs`, `targets`: int64 [b, width - 1]. `divisors`, on the host: see `Batches.divisors`.
    """

    step: int
    batch: Batch
    divisors: Tensor
    inputs: Tensor
    targets: Tensor


class Feed(Iterator[Fed]):
    """The batches of updates `first`, `first + 1`, ..., `last - 1`, each asked for once and in order.

    What goes wrong in the thread is raised by `next`, where that batch would have come. Use it in a `with` block, or
    call `close`: either ends the thread.
    """

    def __init__(
        self,
        batches: Batches,
        device: torch.device,
        first: int = 0,
        last: int | None = None,
        *,
        mean_rows: int = 0,
        rank: int = 0,
        world: int = 1,
    ):
        self.batches, self.device = batches, device
        self.mean_rows, self.rank, self.world = mean_rows, rank, world
        steps = count(first) if last is None else range(first, last)
        self._ahead = Ahead((self._prepare(step) for step in steps), DEPTH)

    def __next__(self) -> Fed:
        fed = next(self._ahead)
        if self.device.type == "cpu":
            return fed
        # From pinned memory the copy is queued behind the work on the device and the host goes on; the allocator keeps
        # the pinned memory until the copy is done.
        inputs, targets = (t.to(self.device, non_blocking=True) for t in (fed.inputs, fed.targets))
        return Fed(fed.step, fed.batch, fed.divisors, inputs, targets)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the thread."""
        self._ahead.close()

    def _prepare(self, step: int) -> Fed:
        """In the thread: the batch on the host, pinned for CUDA."""
        batch = self.batches.at(step, self.rank, self.world)
        divisors = self.batches.divisors(step, self.mean_rows, self.rank, self.world)
        inputs, targets = torch.from_numpy(batch.inputs), torch.from_numpy(batch.targets)
        assert batch.lengths is not None  # computed here, not in the consumer's time
        if self.device.type == "cuda":
            inputs, targets = inputs.pin_memory(), targets.pin_memory()
        return Fed(step, batch, torch.from_numpy(divisors), inputs, targets)
