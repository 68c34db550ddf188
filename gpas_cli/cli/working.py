"""What a command shows while it computes, and views that are drawn again and again."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import RenderableType
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from gpas_cli.cli.console import LiteralConsole, console
from gpas_cli.cli.selection import experiments, project
from gpas_cli.errors import GpasError
from gpas_cli.grid.companions import companions
from gpas_cli.period import Period

LOG_SECONDS = 5.0  # between two lines, if standard error is not a terminal
_REFRESH_SECONDS = 2.0


@contextmanager
def working(doing: str) -> Iterator[Callable[[str], None]]:
    """Show a progress message on standard error and yield a function for the next: on a terminal one changing line, in
    a log a line at most every LOG_SECONDS."""
    errors = LiteralConsole(stderr=True)
    if not errors.is_terminal:
        period = Period(LOG_SECONDS, at_once=True)

        def log(message: str) -> None:
            if period.is_over():
                errors.print(message, soft_wrap=True)

        yield log
        return
    with errors.status(doing) as status:
        yield lambda message: status.update(escape(message))


def watch(draw: Callable[[], RenderableType], *, screen: bool) -> None:
    """Draw on the terminal until Ctrl-C, on an empty screen with `screen`.

    A changed experiments file is read again; while it has mistakes, they are shown instead.
    """
    read = _changed()
    drawn: RenderableType | None = None
    with Live(console=console(), screen=screen, auto_refresh=False) as live:
        try:
            while True:
                try:
                    drawn = draw()
                except GpasError as error:
                    if drawn is None:
                        raise
                    drawn = Text(str(error), style="yellow")
                live.update(drawn, refresh=True)
                time.sleep(_REFRESH_SECONDS)
                if read != (read := _changed()):
                    experiments.cache_clear()
        except KeyboardInterrupt:
            return


def _changed() -> list[tuple[int, int]]:
    """Return when the experiments file and its companions were changed, and their sizes."""
    path = project().config
    stats = [file.stat() for file in (path, *companions(path).values()) if file.exists()]
    return [(stat.st_mtime_ns, stat.st_size) for stat in stats]
