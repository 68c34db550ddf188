"""Work done ahead: an iterator runs in a thread while its consumer is busy with what came before."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Generic, Self, TypeVar

T = TypeVar("T")

# A thread in the middle of a download is not waited for: it is a daemon and ends with the process.
PATIENCE = 5.0


class Ahead(Iterator[T], Generic[T]):
    """The items of `items`, in order, up to `depth` of them made before they are asked for.

    What the iterator raises, the consumer is given in its place, after the items before it. `close`, or the end of the
    `with` block, ends the thread; it may be called at any time and more than once.
    """

    def __init__(self, items: Iterable[T], depth: int):
        self._depth = depth
        self._ready: deque[T] = deque()
        self._changed = threading.Condition()
        self._closed = self._ended = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(items,), daemon=True, name="gpas-ahead")
        self._thread.start()

    def __next__(self) -> T:
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._ended or self._closed)
            if self._ready:
                item = self._ready.popleft()
                self._changed.notify_all()
                return item
            error, self._error = self._error, None
        if error is not None:
            raise error
        raise StopIteration

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the thread and forget what it has made."""
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join(PATIENCE)

    def _run(self, items: Iterable[T]) -> None:
        error: BaseException | None = None
        try:
            iterator = iter(items)
            for item in iterator:
                if not self._put(item):
                    break
            # A generator is closed where it ran: its own `finally` may hold files.
            if close := getattr(iterator, "close", None):
                close()
        except BaseException as raised:
            error = raised
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    def _put(self, item: T) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: len(self._ready) < self._depth or self._closed)
            if not self._closed:
                self._ready.append(item)
                self._changed.notify_all()
            return not self._closed
