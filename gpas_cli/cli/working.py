"""What a command shows of its own work while it computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpas_cli.period import Period

LOG_SECONDS = 5.0  # between two lines, if standard error is not a terminal


@contextmanager
def working(doing: str) -> Iterator[Callable[[str], None]]:
    """Show a progress message on standard error and yield a function for the next: on a terminal one changing line, in
    a log a line at most every LOG_SECONDS."""
    from rich.console import Console
    from rich.markup import escape

    errors = Console(stderr=True, highlight=False)
    if not errors.is_terminal:
        period = Period(LOG_SECONDS, at_once=True)

        def log(message: str) -> None:
            if period.is_over():
                errors.print(message, markup=False, soft_wrap=True)

        yield log
        return
    with errors.status(doing) as status:
        yield lambda message: status.update(escape(message))
