"""The processes that train one network together, and what all of them must agree on.

Nothing here touches CUDA_VISIBLE_DEVICES: each process takes one of the devices that it is shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from gpas_cli.errors import GpasError

PATIENCE = timedelta(minutes=30)  # for the slowest process: one may tokenise or write while the others wait
_WISHES = (None, "interrupted", "cancelled")  # in rising order: the strongest wish of any process wins

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """Process `rank` of `size`, the `local_rank`-th on its machine. A world of one needs no other process.

    Every method but the properties is collective: all processes call it, in the same order.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @property
    def leads(self) -> bool:
        """Whether this process speaks for all: it alone emits events."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        return self.size == 1

    def sum(self, tensor: Tensor) -> Tensor:
        """`tensor`, replaced in place by its sum over all processes."""
        if not self.alone:
            dist.all_reduce(tensor)
        return tensor

    def max(self, number: int) -> int:
        """The largest `number` of any process. Goes over the CPU: the device is not waited for."""
        if self.alone:
            return number
        tensor = torch.tensor(number)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return int(tensor)

    def any(self, fact: bool) -> bool:
        """Whether `fact` holds in some process."""
        return self.max(int(fact)) > 0

    def agree(self, wish: str | None) -> str | None:
        """One answer for all to "how shall we leave": None while nobody wants to."""
        return _WISHES[self.max(_WISHES.index(wish))]

    def broadcast(self, value: T) -> T:
        """The first process's `value`. Only for small plain data."""
        if self.alone:
            return value
        carrier = [value]
        dist.broadcast_object_list(carrier, src=0, device=torch.device("cpu"))
        return carrier[0]


ALONE = World()


@contextmanager
def joined(world: World, meeting: str) -> Iterator[World]:
    """Inside the block the processes of `world` can talk: GPUs through NCCL, CPUs through gloo.

    `meeting`: where they find each other, in torch's words (file:// or tcp://). Raises GpasError when they do not.
    """
    if torch.cuda.is_available():
        torch.cuda.set_device(world.local_rank % torch.cuda.device_count())
    if world.alone:
        yield world
        return
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        dist.init_process_group(backend, meeting, rank=world.rank, world_size=world.size, timeout=PATIENCE)
    except (RuntimeError, ValueError, OSError) as error:
        raise GpasError(
            f"process {world.rank} of {world.size} did not meet the others at {meeting}: {error}"
        ) from error
    try:
        yield world
        world.max(0)  # nobody leaves while another still listens to it
    finally:
        dist.destroy_process_group()


def lost_a_peer(error: BaseException) -> bool:
    """Whether `error` says that another process of the world is gone, rather than that this one is at fault."""
    words = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "NCCL", "Timed out waiting")
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and any(w in str(error) for w in words)
    )
