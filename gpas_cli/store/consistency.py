"""Whether the rows of the database agree with the run directories, attempt by attempt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, select

from gpas_cli.store import journal, rundir
from gpas_cli.store.ingest import ATTEMPT, Unreadable, tail_of
from gpas_cli.store.rundir import AttemptDir


@dataclass(frozen=True)
class Defect:
    """Something wrong with the database, and what helps."""

    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}"


@dataclass(frozen=True)
class _Survey:
    """A journal read to its end: its whole events, the offset behind them, damaged lines, events that are missing."""

    events: int
    offset: int
    damaged: int
    lost: int


def inconsistencies(engine: Engine, runs: Path) -> Iterator[Defect]:
    """What the database and `runs` do not have in common. Reads all journals, a few MB at a time."""
    with engine.connect() as connection:
        rows = {(row["stage_key"], row["number"]): row for row in connection.execute(select(ATTEMPT)).mappings()}
    skipped: list[str] = []
    for attempt in rundir.all_attempts(runs, skipped):
        row = rows.pop((attempt.key, attempt.number), None)
        if row is None:
            yield Defect(f"{attempt.relative} is not in the database", "`gpas sync` reads it, or says why it cannot")
            continue
        try:
            yield from _journal(attempt, dict(row))
        except OSError as error:
            yield Defect(f"{attempt.journal_path}: {error.strerror}", "make it readable")
        except Unreadable as problem:
            yield Defect(str(problem), "make it readable")
    yield from (Defect(problem, "make it readable, or move it away") for problem in skipped)
    for row in rows.values():
        if rundir.is_gone(runs / row["directory"]):
            yield Defect(
                f"{row['directory']} is in the database and not under {runs}",
                "restore the directory, or `gpas db rebuild` forgets it",
            )


def _journal(attempt: AttemptDir, row: Mapping[str, Any]) -> Iterator[Defect]:
    found = _survey(attempt.journal_path)
    read_anew = "`gpas db rebuild` reads it anew"
    if found.offset > row["journal_offset"]:
        yield Defect(
            f"{attempt.relative}: {found.offset - row['journal_offset']} bytes are not yet read", "`gpas sync`"
        )
    elif (found.offset, found.events) != (row["journal_offset"], row["journal_events"]):
        yield Defect(
            f"{attempt.relative}: {found.events} events are in the journal, {row['journal_events']} were read from it",
            read_anew,
        )
    elif row["journal_tail"] not in (None, tail_of(attempt, found.offset)):
        yield Defect(f"{attempt.relative}: the journal has changed since it was read", read_anew)
    if found.lost:
        yield Defect(
            f"{attempt.journal_path}: {found.lost} events are missing ({found.damaged} damaged lines)",
            "what they said is lost; look at the attempt's log and at the disk",
        )


def _survey(path: Path) -> _Survey:
    events = offset = damaged = 0
    # Where numbers run on from each other: a journal has few such spans, however long it is.
    spans: list[list[int]] = []
    for found, end, bad in journal.stretches(path):
        offset = end
        events += len(found)
        damaged += bad
        for event in found:
            if spans and event["n"] == spans[-1][1]:
                spans[-1][1] += 1
            else:
                spans.append([event["n"], event["n"] + 1])
    return _Survey(events, offset, damaged, _lost(spans))


def _lost(spans: list[list[int]]) -> int:
    """How many numbers from 0 on no span has. A torn line whose event was written again, or by a requeued job anew,
    leaves no gap: spans may overlap."""
    lost = end = 0
    for start, stop in sorted(spans):
        lost += max(0, start - end)
        end = max(end, stop)
    return lost
