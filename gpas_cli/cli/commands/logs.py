"""`gpas logs`: the journal and the output of a cell's jobs, over all attempts."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from gpas_cli.cli.console import say
from gpas_cli.cli.options import Cell
from gpas_cli.cli.selection import find_cells, project
from gpas_cli.cli.views.events import line
from gpas_cli.documents import Time
from gpas_cli.files import open_regular, read_regular
from gpas_cli.grid.declared import Entry
from gpas_cli.spec.stage import TOKENISE
from gpas_cli.state.observe import cell_statuses
from gpas_cli.state.view import SchedulerView, facts_of, log_of
from gpas_cli.store.journal import Line, stretches
from gpas_cli.store.rundir import AttemptDir, attempts
from gpas_cli.structure import Document
from gpas_cli.words import date_and_time, printable

_ENDED = ("done", "diverged", "failed", "cancelled", "interrupted", "missing")
_POLL_SECONDS = 0.5
_OUTPUT_BYTES = 4 << 20  # bytes of a job's output read into memory at a time
_TAIL_BYTES = 1 << 16  # bytes at the end of a file that are searched first for its last lines


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
    """Print the log of a cell: phases, losses, evaluations, checkpoints, warnings and the outcome.

    Lines that begin with | are the output of the process. Each attempt has its own heading; a job that tokenised the
    text comes first.

    With -f, keeps printing through further attempts and requeued SLURM jobs until the cell has ended or Ctrl-C.

    Example: [bold]gpas logs pre-gpas-s1 -f --tail 20[/bold]
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
    """Print why a cell has no attempt and, unless `quiet`, the output of a SLURM job that failed before making one."""
    (state,) = cell_statuses(project().runs, [entry])
    if state.state == "missing" and not state.cause:
        say(f"{entry.id} has not been started; `gpas run grid {entry.grid}` runs it", style="yellow")
        return
    why = f": {state.cause}" if state.cause else ""
    say(f"{entry.id} has no attempt; it is {state.state} ({state.evidence}){why}", style="yellow")
    if not quiet and (path := log_of(SchedulerView(project().runs), state.key)):
        print(f"==> its SLURM job: {path}")
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


class CellLog:
    """The files of all attempts at a cell's stages, each read from where the last call stopped."""

    def __init__(self, entry: Entry, *, raw: bool = False):
        self.entry = entry
        self.raw = raw
        self.files: dict[Path, AttemptLog] = {}

    @property
    def started(self) -> bool:
        """Whether an attempt at a stage of the cell has been read, not only at tokenising its text."""
        own = {stage.key for stage in self.entry.cell.stages}
        return any(path.parent.name in own for path in self.files)

    def new_lines(self, *, whole: bool) -> Iterator[str]:
        """Yield the new lines. An unfinished last line is left for the next call unless `whole`."""
        for files in self._attempts():
            yield from files.new_lines(whole=whole)

    def last(self, number: int, *, whole: bool) -> list[str]:
        """Return the last `number` lines and skip the ones before them."""
        found: list[str] = []
        for files in reversed(list(self._attempts())):
            found = files.last(number - len(found), whole=whole) + found
        return found

    def _attempts(self) -> Iterator[AttemptLog]:
        runs = project().runs
        stages = [(stage.kind, stage.key) for stage in self.entry.cell.stages]
        if text := facts_of(SchedulerView(runs), stages[0][1]).get("text"):
            stages.insert(0, (TOKENISE, text))
        for kind, key in stages:
            for attempt in attempts(runs, key):
                yield self.files.setdefault(attempt.path, AttemptLog(attempt, kind, self.raw))


@dataclass
class AttemptLog:
    """The journal and the output of one attempt; `journal` and `output` count the bytes read so far."""

    attempt: AttemptDir
    kind: str
    raw: bool
    journal: int = 0
    output: int = 0
    headed: bool = False

    def new_lines(self, *, whole: bool) -> Iterator[str]:
        """Yield the new lines: a heading, events, the output of the process, and the outcome at the end."""
        if not self.headed and not self.raw:
            yield f"==> {self.kind} {self.attempt.key}, attempt {self.attempt.number}: {self.attempt.path}"
        self.headed = True
        outcome: list[str] = []
        for lines, offset, _ in stretches(self.attempt.journal_path, self.journal):
            self.journal = offset
            for found in lines:
                yield from outcome  # not the last one: the job was started again in the same directory
                outcome = self._lines(found) if found.kind == "outcome" else []
                yield from () if outcome else self._lines(found)
        yield from self._printed(whole)
        yield from outcome

    def last(self, number: int, *, whole: bool) -> list[str]:
        """Return the last `number` lines, reading only the ends of the files where they are long."""
        span = _TAIL_BYTES
        while True:
            self.journal = _near_end(self.attempt.journal_path, span)
            self.output = _near_end(self.attempt.log_path, span)
            from_start = self.journal == self.output == 0
            self.headed = not from_start
            found = list(self.new_lines(whole=whole))
            if len(found) >= number or from_start:
                return found[max(0, len(found) - number) :]
            span *= 8

    def _lines(self, found: Line) -> list[str]:
        if self.raw:
            return [json.dumps(found.values)]
        at = date_and_time(found.t)
        return [f"{at}  {text}" for text in line(found.event).splitlines()]

    def _printed(self, whole: bool) -> Iterator[str]:
        """Yield the output of the process, each line after a bar."""
        if self.raw or not self.attempt.log_path.exists():
            return

        with open_regular(self.attempt.log_path) as file:
            file.seek(self.output)
            while data := file.read(_OUTPUT_BYTES) + file.readline():
                end = len(data) if whole else data.rfind(b"\n") + 1
                self.output += end
                yield from (f"| {text}" for text in data[:end].decode(errors="replace").splitlines())
                if end < len(data):
                    return


def _near_end(path: Path, span: int) -> int:
    """Return the offset of the first whole line within the last `span` bytes of a file."""
    try:
        with open_regular(path) as file:
            start = file.seek(0, os.SEEK_END) - span
            if start <= 0:
                return 0
            file.seek(start)
            return start + len(file.readline())
    except FileNotFoundError:
        return 0
