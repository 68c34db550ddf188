"""`gpas cancel`: remove queued cells from the queue and stop running ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import typer

from gpas_cli.cli.console import confirm, console, print_json
from gpas_cli.cli.options import AsJson, CellsOrGrids, Where, Yes
from gpas_cli.cli.selection import chosen_cells, project
from gpas_cli.cli.views.states import once
from gpas_cli.documents import CellNameJson, DocumentJson, StateJson
from gpas_cli.errors import Exit, GpasError
from gpas_cli.plan.texts import awaited
from gpas_cli.schedule.process import Cancelling
from gpas_cli.schedule.scheduler import cancel as request
from gpas_cli.state.observe import look
from gpas_cli.state.status import ALIVE, CellStatus
from gpas_cli.store.history import note
from gpas_cli.words import count

ASK_ABOVE = 3  # cells


class _CancelledCellJson(CellNameJson):
    """What was done about one cell."""

    state: StateJson
    asked: Annotated[bool, "whether its job will be stopped or dropped"]
    what: str


class CancelledJson(DocumentJson):
    """`gpas cancel --json`: the cells that were queued or running."""

    cells: list[_CancelledCellJson]


def cancel(words: CellsOrGrids = None, where: Where = None, yes: Yes = False, as_json: AsJson = False) -> None:
    """Cancel queued and running cells, or all cells of a grid.

    A running job saves a checkpoint first; `gpas retry` resumes from it. Asks for confirmation before it cancels more
    than three cells.

    A cell that experiments.yaml no longer declares is named by the start of its key.

    Example: [bold]gpas cancel pre-gpas-s1[/bold]

    Example: [bold]gpas cancel table2 --where size=1b --yes[/bold]
    """
    states = look(project().runs, chosen_cells(words, where))
    alive = [state for state in once(states) if state.state in ALIVE]
    if not alive:
        raise GpasError(f"nothing was cancelled: {_why_not(states)}")
    if len(alive) > ASK_ABOVE:
        confirm(f"Cancel {count(len(alive), 'cell')} ({_counts(alive)})?", yes)
    texts = [text for text in awaited(project().runs, states) if text.status.state in ALIVE]
    results = request(project().runs, alive)
    note(project().runs, "cancel", [result.state.entry.id for result in results if result.asked])
    for result in results:
        console().print(f"{result.state.entry.id}: {result.what}", markup=False)
    for name, job in ((text.name, text.status.job) for text in texts):
        if job:
            console().print(
                f"tokenising {name} continues, because other cells may use it; `scancel {job.id}` stops it",
                markup=False,
            )
    if as_json:
        print_json(CancelledJson(schema=1, cells=[_json(result) for result in results]))
    if not all(result.asked for result in results):
        raise typer.Exit(Exit.INCOMPLETE)


def _why_not(states: Sequence[CellStatus]) -> str:
    """Return why there is nothing to cancel: the state of each cell if there are few, else counts."""
    if len(states) > ASK_ABOVE:
        return f"no cell is running or queued ({_counts(states)})"
    return ", ".join(f"{state.entry.id} is {state.state}" for state in states)


def _counts(states: Sequence[CellStatus]) -> str:
    return ", ".join(f"{number} {state}" for state, number in Counter(state.state for state in states).items())


def _json(result: Cancelling) -> _CancelledCellJson:
    entry = result.state.entry
    return {"key": entry.key, "grid": entry.grid, "name": entry.name, "state": result.state.state,
            "asked": result.asked, "what": result.what}  # fmt: skip
