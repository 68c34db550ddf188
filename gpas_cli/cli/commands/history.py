"""`gpas history`: who started, cancelled, retried, ran again or forgot what, and when."""

from collections.abc import Sequence
from typing import Annotated

import typer

from gpas_cli.cli.console import print_json, say
from gpas_cli.cli.options import AsJson
from gpas_cli.cli.selection import project
from gpas_cli.documents import DocumentJson, Time
from gpas_cli.store.history import read
from gpas_cli.structure import Document
from gpas_cli.words import date_and_time, listed

_NAMED = 3  # cells named in one line


class _DeedJson(Document):
    """What one command did."""

    time: Time
    user: str
    host: str
    what: Annotated[str, "run, retry, rerun, cancel, forget, or one that was undone"]
    cells: Annotated[Sequence[str], "grid/name, or the key of a stage"]
    how: Annotated[str, "the reason, or the settings"]


class HistoryJson(DocumentJson):
    """`gpas history --json`."""

    commands: Annotated[Sequence[_DeedJson], "oldest first"]


def history(
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only the newest lines.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print who started, cancelled, retried, ran again or forgot which cells, and when.

    The newest line comes last.

    Example: [bold]gpas history --limit 10[/bold]
    """
    deeds = read(project().runs)[-(limit or 0) :]
    if as_json:
        commands = [
            _DeedJson(time=one.t, user=one.user, host=one.host, what=one.what, cells=one.cells, how=one.how)
            for one in deeds
        ]
        print_json(HistoryJson(commands=commands))
        return
    for deed in deeds:
        how = f" ({deed.how})" if deed.how else ""
        who = f"{deed.user} on {deed.host}"
        say(f"{date_and_time(deed.t)}  {who}  {deed.what}  {listed(deed.cells, _NAMED)}{how}")
    if not deeds:
        say("no command has changed a cell yet")
