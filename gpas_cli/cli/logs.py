"""`gpas logs`: what a cell's jobs printed, over all attempts."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpas_cli.cli.console import Cell, console, find_cells, project

if TYPE_CHECKING:
    from gpas_cli.grid.entry import Entry

ENDED = ("done", "diverged", "failed", "cancelled", "interrupted", "missing")
POLL_SECONDS = 0.5


def logs(
    cell: Cell,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing until the cell ends.")] = False,
    events: Annotated[
        bool, typer.Option("--events", help="The journal's events as JSON lines instead of the log.")
    ] = False,
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=0, help="Only the last N lines.")] = None,
) -> None:
    """Print the log of a cell; attempts follow each other, each under its own heading. Where its text is tokenised by a
    job before it, that job's log comes first.

    With -f it goes on over further attempts, requeued jobs of SLURM included, until the cell has ended.

    Example: [bold]gpas logs pre-gpas-s1 -f[/bold]
    """
    (entry,) = find_cells([cell])
    offsets: dict[Path, int] = {}
    lines = list(_lines(entry, events, offsets, unfinished=not follow))
    for line in lines if tail is None else lines[len(lines) - tail :]:
        print(line)
    if not lines and not follow:
        console().print(f"{entry.id} has not been started; `gpas run grid {entry.grid}` runs it", style="yellow")
    if follow:
        _follow(entry, events, offsets)


def _follow(entry: Entry, events: bool, offsets: dict[Path, int]) -> None:
    from gpas_cli.launch.watch import look

    while True:
        ended = look(project().runs, [entry])[0].state in ENDED
        for line in _lines(entry, events, offsets, unfinished=ended):
            print(line)
        sys.stdout.flush()
        if ended:
            return
        time.sleep(POLL_SECONDS)


def _lines(entry: Entry, events: bool, offsets: dict[Path, int], *, unfinished: bool) -> Iterator[str]:
    """Lines not yet seen of every attempt of every stage; `offsets` remembers how far each file was read.

    A last line that has no end yet is left for the next time, unless `unfinished` ones are wanted.
    """
    from gpas_cli.launch.stages import TOKENISE
    from gpas_cli.launch.told import told_of
    from gpas_cli.store.rundir import attempts

    runs, stages = project().runs, [(stage.kind, stage.key) for stage in entry.cell.stages]
    if text := told_of(runs, stages[0][1]).get("text"):
        stages.insert(0, (TOKENISE, text))
    for kind, key in stages:
        for attempt in attempts(runs, key):
            path = attempt.journal_path if events else attempt.log_path
            if not path.exists():
                continue
            if path not in offsets and not events:
                yield f"==> {kind} {key}, attempt {attempt.number}: {path}"
            yield from _journal(path, offsets) if events else _text(path, offsets, unfinished)


def _text(path: Path, offsets: dict[Path, int], unfinished: bool) -> Iterator[str]:
    with path.open("rb") as file:
        file.seek(offsets.get(path, 0))
        new = file.read()
    if not unfinished:
        new = new[: new.rfind(b"\n") + 1]
    offsets[path] = offsets.get(path, 0) + len(new)
    yield from new.decode(errors="replace").splitlines()


def _journal(path: Path, offsets: dict[Path, int]) -> Iterator[str]:
    import json

    from gpas_cli.store.journal import read

    found, offsets[path], _ = read(path, offsets.get(path, 0))
    yield from (json.dumps(event) for event in found)
