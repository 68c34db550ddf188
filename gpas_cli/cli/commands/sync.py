"""`gpas sync`: read journals into the database."""

from __future__ import annotations

from typing import Annotated

from gpas_cli.cli.console import console, print_json
from gpas_cli.cli.options import AsJson
from gpas_cli.cli.selection import project
from gpas_cli.documents import DocumentJson
from gpas_cli.store.ingest import sync as ingest
from gpas_cli.store.session import connect
from gpas_cli.words import count, verb


class SyncedJson(DocumentJson):
    """`gpas sync --json`."""

    attempts: Annotated[int, "attempts that changed"]
    events: int
    damaged: Annotated[int, "damaged lines"]
    gone: Annotated[int, "run directories that have disappeared since the last time"]
    problems: list[str]


def sync(as_json: AsJson = False) -> None:
    """Read new journal events from run directories into the database. Other commands do so automatically.

    Example: [bold]gpas sync[/bold]
    """

    here = project()
    engine = connect(here.database)
    try:
        result = ingest(engine, here.runs)
    finally:
        engine.dispose()
    if as_json:
        print_json(SyncedJson(
            schema=1, attempts=result.attempts, events=result.events, damaged=result.damaged, gone=result.gone,
            problems=list(result.problems),
        ))  # fmt: skip
        return
    parts = (result.attempts, "attempt"), (result.events, "new event"), (result.damaged, "damaged line")
    console().print(", ".join(count(number, noun) for number, noun in parts))
    if result.gone:
        what = f"{count(result.gone, 'run directory', 'run directories')} {verb(result.gone, 'is', 'are')} gone"
        console().print(f"{what}: their numbers are kept but not shown as results", markup=False, style="yellow")
    for problem in result.problems:
        console().print(f"- {problem}", markup=False, style="yellow")
