"""The journal and the output of a cell's jobs, over all attempts, as lines of text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpas_cli.cli.selection import project
from gpas_cli.cli.views.events import line
from gpas_cli.files import open_regular, read_regular
from gpas_cli.grid.declared import Entry
from gpas_cli.spec.stage import TOKENISE
from gpas_cli.state.view import SchedulerView, facts_of
from gpas_cli.store.journal import Line, stretches
from gpas_cli.store.rundir import AttemptDir, attempts
from gpas_cli.words import date_and_time

_OUTPUT_BYTES = 4 << 20  # bytes of a job's output read into memory at a time
_TAIL_BYTES = 1 << 16  # bytes at the end of a file that are searched first for its last lines


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
        data, start = read_regular(path, span)
    except FileNotFoundError:
        return 0
    head, newline, _ = data.partition(b"\n")
    return start + len(head + newline) if start else 0
