"""Run an iterator in a background thread, a bounded number of items ahead of its consumer."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, Full, Queue
from types import TracebackType
from typing import Generic, Self, TypeVar

T = TypeVar("T")

# How long `close` waits for the thread. A thread in the middle of a download is abandoned: it is a daemon and ends with
# the process.
JOIN_SECONDS = 5.0
# How often a producer whose queue is full checks whether it has been closed.
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class _End:
    """The last entry of the queue: the iterator is exhausted, or raised `error`."""

    error: BaseException | None = None


class Prefetcher(Iterator[T], Generic[T]):
    """Iterate over `items` in order, with up to `depth` of them computed in advance.

    An exception raised by the iterator is raised to the consumer after the items before it. `close`, or the end of the
    `with` block, ends the thread; closing twice is allowed.
    """

    def __init__(self, items: Iterable[T], depth: int):
        self._queue: Queue[T | _End] = Queue(depth)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(items,), daemon=True, name="gpas-prefetch")
        self._thread.start()

    def __next__(self) -> T:
        if self._closed.is_set():
            raise StopIteration
        entry = self._queue.get()
        if not isinstance(entry, _End):
            return entry
        self._closed.set()
        if entry.error is not None:
            raise entry.error
        raise StopIteration

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the thread and discard the remaining items."""
        self._closed.set()
        with suppress(Empty):
            while True:
                self._queue.get_nowait()
        self._thread.join(JOIN_SECONDS)

    def _run(self, items: Iterable[T]) -> None:
        error: BaseException | None = None
        try:
            iterator = iter(items)
            for item in iterator:
                if not self._put(item):
                    break
            # A generator is closed in the thread that ran it: its `finally` may hold files.
            if close := getattr(iterator, "close", None):
                close()
        except BaseException as raised:
            error = raised
        self._put(_End(error))

    def _put(self, entry: T | _End) -> bool:
        """Add an entry, waiting while the queue is full. Return False once the prefetcher is closed."""
        while not self._closed.is_set():
            with suppress(Full):
                self._queue.put(entry, timeout=POLL_SECONDS)
                break
        return not self._closed.is_set()
