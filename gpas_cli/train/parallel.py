"""Communication between the processes that train one network together, and the sums of their gradients.

Nothing here changes CUDA_VISIBLE_DEVICES: each process uses one of the devices visible to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gpas_cli.errors import GpasError

_PEER_TIMEOUT = timedelta(minutes=30)  # long, because one process may tokenise or write while the others wait
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

    def together(self, act: Callable[[], T]) -> list[T]:
        """Return what `act` returns in each process, small plain data. Raises in every process if it raises in one: its
        OSError, or a RuntimeError that quotes another exception."""
        if self.alone:
            return [act()]
        found: T | Exception
        try:
            found = act()
        except OSError as error:
            found = error
        except Exception as error:
            found = RuntimeError(f"{type(error).__name__}: {error}")
        everyone: list[Any] = [None] * self.size
        dist.all_gather_object(everyone, found)
        for one in everyone:
            if isinstance(one, Exception):
                raise one
        return everyone


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
        dist.init_process_group(backend, meeting, rank=world.rank, world_size=world.size, timeout=_PEER_TIMEOUT)
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


_BUCKET_BYTES = 2**25  # of gradients in one message
# The most messages in flight before the oldest is waited for. Each holds a copy of its gradients.
_MOST_IN_FLIGHT = 4


class GradientSum:
    """The sums over all processes of the gradients of `parameters` in one update.

    A message has the gradients of neighbouring parameters. All processes send the same messages in the same order, that
    of the backward pass: from the last parameters to the first. What is in a message does not depend on when it is
    sent, and neither do the sums.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], *, overlap: bool = True):
        self._buckets = list(_buckets(parameters))[::-1]
        self._overlap = overlap
        self._bucket_of = {p: number for number, bucket in enumerate(self._buckets) for p in bucket}
        self._awaited = [len(bucket) for bucket in self._buckets]
        self._sent = 0
        self._in_flight: deque[_Message] = deque()

    @contextmanager
    def during_backward(self) -> Iterator[None]:
        """Send each message as soon as its gradients are complete: for the backward pass of the last micro-batch."""
        watched = self._bucket_of if self._overlap else ()
        handles = [p.register_post_accumulate_grad_hook(self._complete) for p in watched]  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def finish(self) -> None:
        """Send the remaining messages and replace the gradients by their sums. Collective.

        A parameter without a gradient counts as zero and keeps none. A process whose backward pass has failed calls it
        without gradients, so that the others do not wait forever.
        """
        while self._sent < len(self._buckets):
            self._send()
        while self._in_flight:
            self._in_flight.popleft().receive()

    def _complete(self, parameter: Tensor) -> None:
        self._awaited[self._bucket_of[parameter]] -= 1  # type: ignore[index]
        while self._sent < len(self._buckets) and not self._awaited[self._sent]:
            self._send()

    def _send(self) -> None:
        if len(self._in_flight) == _MOST_IN_FLIGHT:
            self._in_flight.popleft().receive()
        self._in_flight.append(_Message(self._buckets[self._sent]))
        self._sent += 1


class _Message:
    """The gradients of one bucket in flight."""

    def __init__(self, bucket: Sequence[nn.Parameter]):
        self._bucket = bucket
        self._flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in bucket])
        self._work = dist.all_reduce(self._flat, async_op=True)

    def receive(self) -> None:
        """Wait for the sums, on a GPU without stopping the process, and copy them into the gradients."""
        self._work.wait()
        parts = torch.split(self._flat, [p.numel() for p in self._bucket])
        sums = [(p.grad, part.view_as(p)) for p, part in zip(self._bucket, parts, strict=True) if p.grad is not None]
        if sums:
            torch._foreach_copy_([gradient for gradient, _ in sums], [part for _, part in sums])


def _buckets(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Group `parameters` into lists of one dtype and about _BUCKET_BYTES bytes."""
    for dtype in dict.fromkeys(p.dtype for p in parameters):
        bucket: list[nn.Parameter] = []
        filled = 0
        for parameter in (p for p in parameters if p.dtype == dtype):
            bucket.append(parameter)
            filled += parameter.numel() * parameter.element_size()
            if filled >= _BUCKET_BYTES:
                yield bucket
                bucket = []
                filled = 0
        if bucket:
            yield bucket
