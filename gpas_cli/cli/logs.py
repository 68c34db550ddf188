"""`gpas logs`: what a cell's jobs journalled and printed, over all attempts."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpas_cli.cli.console import Cell, console, find_cells, project
from gpas_cli.cli.events import line
from gpas_cli.printable import printable

if TYPE_CHECKING:
    from gpas_cli.grid.entry import Entry
    from gpas_cli.store.rundir import AttemptDir

ENDED = ("done", "diverged", "failed", "cancelled", "interrupted", "missing")
POLL_SECONDS = 0.5
STRETCH = 4 << 20  # bytes of a file in memory at a time
TAIL = 1 << 16  # bytes from the end of a file that are looked at first for its last lines


def logs(
    cell: Cell,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing until the cell ends.")] = False,
    events: Annotated[
        bool, typer.Option("--events", "--json", help="The journal's events as JSON, one a line, and nothing else.")
    ] = False,
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=0, help="Only the last N lines.")] = None,
) -> None:
    """Print the log of a cell: phases, losses, evaluations, checkpoints, warnings and its end.

    What the process printed stands after |. Attempts follow each other, each under its own heading; a job that
    tokenised the text comes first.

    With -f it continues over further attempts, requeued jobs of SLURM included, until the cell has ended or Ctrl-C.

    Example: [bold]gpas logs pre-gpas-s1 -f --tail 20[/bold]
    """
    (entry,) = find_cells([cell])
    log = Log(entry, raw=events)
    try:
        for text in log.news(whole=not follow) if tail is None else log.last(tail, whole=not follow):
            print(printable(text))
        if follow:
            _follow(log)
        if not log.started:
            _explain(entry, quiet=events)
    except KeyboardInterrupt:
        sys.stdout.flush()


def _explain(entry: Entry, *, quiet: bool) -> None:
    """Say why a cell has no attempt; where a SLURM job did not get that far, with what it printed, unless `quiet`."""
    from gpas_cli.launch.told import log_of
    from gpas_cli.launch.watch import look

    (state,) = look(project().runs, [entry])
    if state.state == "missing" and not state.cause:
        console().print(f"{entry.id} has not been started; `gpas run grid {entry.grid}` runs it", style="yellow")
        return
    why = f": {state.cause}" if state.cause else ""
    console().print(
        f"{entry.id} has no attempt; it is {state.state} ({state.evidence}){why}", style="yellow", markup=False
    )
    if not quiet and (path := log_of(project().runs, state.key)):
        print(f"==> its SLURM job: {path}")
        for text in path.read_text(errors="replace").splitlines():
            print(printable(f"| {text}"))


def _follow(log: Log) -> None:
    from gpas_cli.launch.watch import look

    while True:
        ended = look(project().runs, [log.entry])[0].state in ENDED
        for text in log.news(whole=ended):
            print(printable(text))
        sys.stdout.flush()
        if ended:
            return
        time.sleep(POLL_SECONDS)


class Log:
    """The files of all attempts at an entry's stages, each read on from where it was left."""

    def __init__(self, entry: Entry, *, raw: bool = False):
        self.entry, self.raw = entry, raw
        self.files: dict[Path, Files] = {}

    @property
    def started(self) -> bool:
        """Whether an attempt at a stage of the cell itself has been seen, and not only at tokenising its text."""
        own = {stage.key for stage in self.entry.cell.stages}
        return any(path.parent.name in own for path in self.files)

    def news(self, *, whole: bool) -> Iterator[str]:
        """The lines not seen yet. A last line that has no end is left for the next call, unless `whole`."""
        for files in self._attempts():
            yield from files.news(whole=whole)

    def last(self, number: int, *, whole: bool) -> list[str]:
        """The last `number` lines; all that come before count as seen."""
        found: list[str] = []
        for files in reversed(list(self._attempts())):
            found = files.last(number - len(found), whole=whole) + found
        return found

    def _attempts(self) -> Iterator[Files]:
        from gpas_cli.launch.stages import TOKENISE
        from gpas_cli.launch.told import told_of
        from gpas_cli.store.rundir import attempts

        runs, stages = project().runs, [(stage.kind, stage.key) for stage in self.entry.cell.stages]
        if text := told_of(runs, stages[0][1]).get("text"):
            stages.insert(0, (TOKENISE, text))
        for kind, key in stages:
            for attempt in attempts(runs, key):
                yield self.files.setdefault(attempt.path, Files(attempt, kind, self.raw))


@dataclass
class Files:
    """The journal and the output of one attempt. `journal` and `output` are the bytes read so far."""

    attempt: AttemptDir
    kind: str
    raw: bool
    journal: int = 0
    output: int = 0
    headed: bool = False

    def news(self, *, whole: bool) -> Iterator[str]:
        """Lines not seen yet: a heading, events, what the process printed, and the outcome at the end."""
        yield from self._heading()
        outcome: list[str] = []
        for event in self._events():
            yield from outcome  # of a job that was started again in the same directory
            outcome = self._lines(event) if event["kind"] == "outcome" else []
            yield from () if outcome else self._lines(event)
        yield from self._printed(whole)
        yield from outcome

    def last(self, number: int, *, whole: bool) -> list[str]:
        """The last `number` lines, without reading what comes long before them."""
        span = TAIL
        while True:
            self.journal, self.output = (
                _near_end(self.attempt.journal_path, span),
                _near_end(self.attempt.log_path, span),
            )
            from_start = self.journal == self.output == 0
            self.headed = not from_start
            found = list(self.news(whole=whole))
            if len(found) >= number or from_start:
                return found[max(0, len(found) - number) :]
            span *= 8

    def _heading(self) -> Iterator[str]:
        if not self.headed and not self.raw:
            yield f"==> {self.kind} {self.attempt.key}, attempt {self.attempt.number}: {self.attempt.path}"
        self.headed = True

    def _events(self) -> Iterator[Mapping[str, Any]]:
        from gpas_cli.store.journal import read

        while True:
            found, offset, _ = read(self.attempt.journal_path, self.journal, STRETCH)
            if offset == self.journal:
                return
            self.journal = offset
            yield from found

    def _lines(self, event: Mapping[str, Any]) -> list[str]:
        if self.raw:
            return [json.dumps(event)]
        at = time.strftime("%b %d %H:%M:%S", time.localtime(event["t"]))
        return [f"{at}  {text}" for text in line(event).splitlines()]

    def _printed(self, whole: bool) -> Iterator[str]:
        """What the process printed, each line after a bar."""
        if self.raw or not self.attempt.log_path.exists():
            return
        from gpas_cli.store.files import open_regular

        with open_regular(self.attempt.log_path) as file:
            file.seek(self.output)
            while data := file.read(STRETCH) + file.readline():
                end = len(data) if whole else data.rfind(b"\n") + 1
                self.output += end
                yield from (f"| {text}" for text in data[:end].decode(errors="replace").splitlines())
                if end < len(data):
                    return


def _near_end(path: Path, span: int) -> int:
    """Where the first line begins of those within the last `span` bytes of a file."""
    from gpas_cli.store.files import open_regular

    try:
        with open_regular(path) as file:
            start = file.seek(0, os.SEEK_END) - span
            if start <= 0:
                return 0
            file.seek(start)
            return start + len(file.readline())
    except FileNotFoundError:
        return 0
