"""`gpas report`: one HTML file with tables, figures and every cell."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpas_cli import __version__
from gpas_cli.cli.console import Names, Where, console, experiments, project
from gpas_cli.cli.status import observed
from gpas_cli.words import byte_size, count, listed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpas_cli.grid.entry import Entry
    from gpas_cli.report.page.content import Content

DEFAULT = Path("report.html")


def report(
    names: Names = None,
    where: Where = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")] = DEFAULT,
) -> None:
    """Write one HTML file with the tables and cells of grids, to read in a browser or to send by mail.

    The file needs no other file and no network. Without names, covers every grid that has been started.

    Example: [bold]gpas report quickstart -o quickstart.html[/bold]
    """
    from gpas_cli.files import replace_file
    from gpas_cli.report.page.document import to_html

    content = make_content(names, where)
    text = to_html(content).encode()
    out.parent.mkdir(parents=True, exist_ok=True)
    replace_file(out, text, durable=False)
    cells = count(len(content.cells), "cell")
    left = f"; left out: {listed(content.left_out)}" if content.left_out else ""
    console().print(f"Wrote {out} ({byte_size(len(text))}): {cells}{left}", soft_wrap=True, markup=False)


def make_content(names: Sequence[str] | None, where: Sequence[str] | None) -> Content:
    """Return the content of the page about the named grids, by default those that have been started."""
    from gpas_cli.report.page.content import collect
    from gpas_cli.report.recorded import recorded

    states = observed(names, where)
    with recorded(project(), [state.entry for state in states]) as known:
        folder = project().config.parent.name
        return collect(folder, __version__, known, states, experiments().grids, log_tail)


def log_tail(entry: Entry, lines: int) -> list[str]:
    """Return the last lines of a cell's log, as `gpas logs` prints them."""
    from gpas_cli.cli.logs import CellLog

    return CellLog(entry).last(lines, whole=True)
