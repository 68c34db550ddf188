"""`gpas logs`: the journal and the output of a cell's jobs, over all attempts."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from gpas_cli.cli.console import say
from gpas_cli.cli.options import Cell
from gpas_cli.cli.selection import find_cells, project
from gpas_cli.cli.views.log import CellLog
from gpas_cli.files import read_regular
from gpas_cli.grid.declared import Entry
from gpas_cli.state.observe import cell_statuses
from gpas_cli.state.view import SchedulerView, log_of
from gpas_cli.structure import Document, Time
from gpas_cli.words import printable

_ENDED = ("done", "diverged", "failed", "cancelled", "interrupted", "missing")
_POLL_SECONDS = 0.5


class EventJson(Document):
    """`gpas logs --json`: a journal event per line, without a schema number. Further fields depend on `kind`."""

    n: Annotated[int, "counts the events of an attempt from 0"]
    t: Time
    kind: Annotated[
        str,
        "start, phase, data, verified, step, layers, spike, skipped, evaluation, checkpoint, profile, warning, outcome",
    ]


def logs(
    cell: Cell,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing until the cell ends.")] = False,
    events: Annotated[
        bool, typer.Option("--events", "--json", help="Print only the journal's events, as JSON, one per line.")
    ] = False,
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=0, help="Print only the last N lines.")] = None,
) -> None:
    """Print the log of a cell, of all its attempts.

    Lines that begin with | are the output of the process. Each attempt has its own heading; a job that tokenised the
    text comes first.

    With -f, keeps printing through further attempts and requeued SLURM jobs until the cell has ended or Ctrl-C.

    Example: gpas logs pre-gpas-s1 -f --tail 20
    """
    (entry,) = find_cells([cell])
    log = CellLog(entry, raw=events)
    try:
        for text in log.new_lines(whole=not follow) if tail is None else log.last(tail, whole=not follow):
            print(printable(text))
        if follow:
            _follow(log)
        if not log.started:
            _explain(entry, quiet=events)
    except KeyboardInterrupt:
        sys.stdout.flush()


def _explain(entry: Entry, *, quiet: bool) -> None:
    """Print why a cell has no attempt and, unless `quiet`, the output of a job that failed before making one."""
    (state,) = cell_statuses(project().runs, [entry])
    if state.state == "missing" and not state.cause:
        say(f"{entry.id} has not been started; `gpas run grid {entry.grid}` runs it", style="yellow")
        return
    why = f": {state.cause}" if state.cause else ""
    say(f"{entry.id} has no attempt; it is {state.state} ({state.evidence}){why}", style="yellow")
    if not quiet and (path := log_of(SchedulerView(project().runs), state.key)):
        print(f"==> its job: {path}")
        for text in read_regular(path)[0].decode(errors="replace").splitlines():
            print(printable(f"| {text}"))


def _follow(log: CellLog) -> None:
    while True:
        ended = cell_statuses(project().runs, [log.entry])[0].state in _ENDED
        for text in log.new_lines(whole=ended):
            print(printable(text))
        sys.stdout.flush()
        if ended:
            return
        time.sleep(_POLL_SECONDS)
