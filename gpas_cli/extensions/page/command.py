"""`gpas report`: tables, figures and every cell on a page, in a file or live in a browser."""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from gpas_cli.cli.console import say
from gpas_cli.cli.options import Where, complete_grid
from gpas_cli.cli.selection import experiments, observed, project
from gpas_cli.cli.views.log import CellLog
from gpas_cli.cli.views.states import ends
from gpas_cli.errors import GpasError
from gpas_cli.extensions.page.charts import FILE, SERVED, Limits
from gpas_cli.extensions.page.content import Content, collect, details
from gpas_cli.extensions.page.document import to_html
from gpas_cli.extensions.page.server import LivePage, PageServer
from gpas_cli.files import replace_file
from gpas_cli.grid.declared import Entry
from gpas_cli.plan.usage import GridUsage, UsageMeter
from gpas_cli.report.recorded import Recorded, recorded
from gpas_cli.state.observe import cell_statuses
from gpas_cli.state.status import CellStatus
from gpas_cli.words import byte_size, count, listed

_DEFAULT = Path("report.html")
_Started = Annotated[
    list[str] | None,
    typer.Argument(help="Grids; by default those that have been started.", autocompletion=complete_grid),
]
_LOG_LINES = 60  # of a cell on a page that is served
_NICENESS = 10  # added to the niceness, so that the page does not slow down jobs of this machine


def report(
    names: _Started = None,
    where: Where = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")] = _DEFAULT,
    served: Annotated[
        bool, typer.Option("--serve", help="Show the page in a browser, live while a grid runs, until Ctrl-C.")
    ] = False,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="With --serve: the port; 0 chooses a free one.")
    ] = 8765,
    refresh: Annotated[
        float, typer.Option("--refresh", min=1, metavar="SECONDS", help="With --serve: seconds between two updates.")
    ] = 5.0,
) -> None:
    """Write one HTML page of everything; --serve shows it live.

    The file needs no other file and no network. Without names, covers every grid that has been started.

    With --serve, only this machine can open the page, at the address that is printed; the second line is for a
    cluster's login node. Nothing on the page changes anything.

    Example: gpas report quickstart -o quickstart.html

    Example: gpas report quickstart --serve
    """
    source = PageSource(names, where)
    if served:
        _serve(source, port, refresh)
        return
    if out.is_dir():
        raise GpasError(f"{out} is a folder; name a file in it: `gpas report -o {out / _DEFAULT}`")
    content = source.collect(file=True)
    text = to_html(content).html.encode()
    out.parent.mkdir(parents=True, exist_ok=True)
    replace_file(out, text, durable=False)
    cells = count(len(content.cells), "cell")
    left = f"; left out: {listed(content.left_out)}" if content.left_out else ""
    say(f"Wrote {out} ({byte_size(len(text))}): {cells}{left}", soft_wrap=True)


@dataclass
class PageSource:
    """Collects what the page shows of the named grids, by default of those that have been started."""

    names: Sequence[str] | None
    where: Sequence[str] | None
    _shown: dict[str, Entry] = field(default_factory=dict)
    _meter: UsageMeter | None = None

    def collect(self, *, file: bool = False) -> Content:
        """Return the content; for a file with the details of all cells."""
        states = self._observe()
        with recorded(project(), [state.entry for state in states]) as known:
            return self._content(states, known, FILE if file else SERVED)

    def rescue(self, error: Exception) -> Content:
        """Return the states of the cells without numbers, for when the database cannot be read."""
        states = self._observe()
        known = Recorded(tuple(state.entry for state in states), problem=f"The results cannot be read: {error}")
        return self._content(states, known, SERVED)

    def details(self, name: str) -> dict[str, Any] | None:
        """Return what is shown when the cell GRID/NAME is opened; None if the page has no such cell."""
        if name not in self._shown:
            return None
        entry = self._shown[name]
        with recorded(project(), [entry]) as known:
            return details(cell_statuses(project().runs, [entry])[0], known.engine, _log_tail(entry, _LOG_LINES))

    def _observe(self) -> list[CellStatus]:
        """Return the states of the cells, and remember what is shown."""
        states = observed(self.names, self.where)
        self._shown = {state.entry.id: state.entry for state in states}
        return states

    def _content(self, states: Sequence[CellStatus], known: Recorded, limits: Limits) -> Content:
        made = collect(experiments(), known, states, _log_tail, limits)
        self._meter = self._meter or UsageMeter(project().runs)
        return replace(made, activity=_activity(self._meter.activity(states).total))


def _activity(use: GridUsage) -> str:
    """Return the hours that cells have used and, while some run, the expected end: "1.20 GPU-hours so far"."""
    spent, end = use.spent, ends(use)
    if not spent.gpu_hours and not spent.core_hours:
        return ""
    return f"{spent.hours(spent.unit)} {spent.unit} so far{f', ends about {end}' if end else ''}"


def _log_tail(entry: Entry, lines: int) -> list[str]:
    """Return the last lines of a cell's log, as `gpas logs` prints them."""
    return CellLog(entry).last(lines, whole=True)


def _serve(source: PageSource, port: int, refresh: float) -> None:
    page = LivePage(source.collect, source.rescue, source.details, refresh)
    os.nice(_NICENESS)
    page.snapshot()
    with PageServer(page, port) as server:
        _announce(server)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            say("Stopped.")


def _announce(server: PageServer) -> None:
    port = server.server_port
    address = f"http://localhost:{port}{server.path}"
    tunnel = f"ssh -L {port}:localhost:{port} {socket.gethostname()}"
    say(f"Serving {address}", soft_wrap=True)
    say(f"From another computer: {tunnel}, then open the same address there.", soft_wrap=True)
    say("Ctrl-C stops.")
