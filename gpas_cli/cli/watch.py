"""Draw a view on the terminal again and again, as `gpas status --watch` does."""

import time
from collections.abc import Callable

from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from gpas_cli.cli.console import console
from gpas_cli.cli.selection import experiments, project
from gpas_cli.errors import GpasError
from gpas_cli.grid.companions import companions

_REFRESH_SECONDS = 2.0


def watch(draw: Callable[[], RenderableType]) -> None:
    """Draw on an empty screen of the terminal until Ctrl-C.

    A changed experiments file is read again; while it has mistakes, they are shown instead.
    """
    read = _changed()
    drawn: RenderableType | None = None
    with Live(console=console(), screen=True, auto_refresh=False) as live:
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
