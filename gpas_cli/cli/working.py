"""What a command shows of its own work while it computes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LOG_SECONDS = 5.0  # at least so long between lines, where standard error is no terminal


@contextmanager
def working(doing: str) -> Iterator[Callable[[str], None]]:
    """Show a progress message on standard error and yield a function for the next: on a terminal one changing line, in
    a log a line at most every LOG_SECONDS."""
    from rich.console import Console
    from rich.markup import escape

    errors = Console(stderr=True, highlight=False)
    if not errors.is_terminal:
        yield _at_most_every(LOG_SECONDS, lambda message: errors.print(message, markup=False, soft_wrap=True))
        return
    with errors.status(doing) as status:
        yield lambda message: status.update(escape(message))


def _at_most_every(seconds: float, say: Callable[[str], None]) -> Callable[[str], None]:
    due = 0.0

    def say_if_due(message: str) -> None:
        nonlocal due
        if time.monotonic() >= due:
            say(message)
            due = time.monotonic() + seconds

    return say_if_due
