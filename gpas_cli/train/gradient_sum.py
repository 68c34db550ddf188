"""Sum gradients over processes, in messages that are sent while the backward pass continues."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

BUCKET_BYTES = 2**25  # of gradients in one message
# The most messages in flight before the oldest is waited for. Each holds a copy of its gradients.
MOST_IN_FLIGHT = 4


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
        if len(self._in_flight) == MOST_IN_FLIGHT:
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
    """Group `parameters` into lists of one dtype and about BUCKET_BYTES bytes."""
    for dtype in dict.fromkeys(p.dtype for p in parameters):
        bucket: list[nn.Parameter] = []
        filled = 0
        for parameter in (p for p in parameters if p.dtype == dtype):
            bucket.append(parameter)
            filled += parameter.numel() * parameter.element_size()
            if filled >= BUCKET_BYTES:
                yield bucket
                bucket = []
                filled = 0
        if bucket:
            yield bucket
