"""Communication between the processes that train one network together.

Nothing here changes CUDA_VISIBLE_DEVICES: each process uses one of the devices visible to it.
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

PEER_TIMEOUT = timedelta(minutes=30)  # long, because one process may tokenise or write while the others wait
_REQUESTS = (None, "interrupted", "cancelled")  # by rising priority

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """Process `rank` of `size`, number `local_rank` on its machine.

    All methods are collective: every process calls them, in the same order. A world of one process needs no
    communication.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @property
    def leads(self) -> bool:
        """Whether this is the first process, the only one whose events are recorded."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        """Whether this is the only process."""
        return self.size == 1

    def sum(self, tensor: Tensor) -> Tensor:
        """Replace `tensor` by its sum over all processes, in place, and return it."""
        if not self.alone:
            dist.all_reduce(tensor)
        return tensor

    def max(self, number: int) -> int:
        """Return the largest `number` of any process. Runs on the CPU, without waiting for the device."""
        if self.alone:
            return number
        tensor = torch.tensor(number)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return int(tensor)

    def min(self, number: int) -> int:
        """Return the smallest `number` of any process. Runs on the CPU, without waiting for the device."""
        return -self.max(-number)

    def any(self, fact: bool) -> bool:
        """Return whether `fact` holds in any process."""
        return self.max(int(fact)) > 0

    def agree(self, request: str | None) -> str | None:
        """Return the request of highest priority that any process has, None if no process asks to stop."""
        return _REQUESTS[self.max(_REQUESTS.index(request))]

    def broadcast(self, value: T) -> T:
        """Return the first process's `value`. For small plain data only."""
        if self.alone:
            return value
        carrier = [value]
        dist.broadcast_object_list(carrier, src=0, device=torch.device("cpu"))
        return carrier[0]


ALONE = World()


@contextmanager
def joined(world: World, meeting: str) -> Iterator[World]:
    """Connect the processes of `world` for the block: GPUs through NCCL, CPUs through gloo.

    `meeting`: torch's rendezvous URL (file:// or tcp://). Raises GpasError if the processes do not connect. After an
    exception the connection stays open until the process exits: closing it could wait for processes that wait for this
    one, and its failure would not be recorded.
    """
    if torch.cuda.is_available():
        torch.cuda.set_device(world.local_rank % torch.cuda.device_count())
    if world.alone:
        yield world
        return
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        dist.init_process_group(backend, meeting, rank=world.rank, world_size=world.size, timeout=PEER_TIMEOUT)
    except (RuntimeError, ValueError, OSError) as error:
        raise GpasError(
            f"process {world.rank} of {world.size} did not connect to the others at {meeting}: {error}"
        ) from error
    yield world
    world.max(0)  # no process exits while another still communicates with it
    dist.destroy_process_group()


def lost_a_peer(error: BaseException) -> bool:
    """Return whether `error` means that another process has ended, rather than that this one has failed."""
    words = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "NCCL", "Timed out waiting")
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and any(w in str(error) for w in words)
    )
