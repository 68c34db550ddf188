"""Check that the rows of the database agree with the run directories, attempt by attempt."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, select

from gpas_cli.store import journal, rundir
from gpas_cli.store.attempt_rows import ATTEMPT, STRETCH_BYTES, Unreadable, tail_of
from gpas_cli.store.rundir import AttemptDir


@dataclass(frozen=True)
class Defect:
    """A fault of the database, and its remedy."""

    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}"


@dataclass(frozen=True)
class _Survey:
    """A journal read to its end: the number of events, the offset after them, damaged lines and missing events."""

    events: int
    offset: int
    damaged: int
    lost: int


def inconsistencies(engine: Engine, runs: Path, since: float = math.inf) -> Iterator[Defect]:
    """Yield the differences between the database and `runs`, except events and attempts after the unix time `since`.

    Reads all journals, a stretch at a time.
    """
    with engine.connect() as connection:
        rows = {(row["stage_key"], row["number"]): row for row in connection.execute(select(ATTEMPT)).mappings()}
    skipped: list[str] = []
    for attempt in rundir.all_attempts(runs, skipped):
        row = rows.pop((attempt.key, attempt.number), None)
        if row is None:
            if not _written_after(attempt.attempt_path, since):
                yield Defect(f"{attempt.relative} is not in the database", "`gpas sync` ingests it or prints why not")
            continue
        try:
            yield from _journal(attempt, dict(row), since)
        except OSError as error:
            yield Defect(f"{attempt.journal_path}: {error.strerror}", "make it readable")
        except Unreadable as problem:
            yield Defect(str(problem), "make it readable")
    yield from (Defect(problem, "make it readable, or move it away") for problem in skipped)
    for row in rows.values():
        if rundir.is_gone(runs / row["directory"]):
            yield Defect(
                f"{row['directory']} is in the database but not in {runs}",
                "restore the directory, or drop its rows with `gpas db rebuild`",
            )


def _journal(attempt: AttemptDir, row: Mapping[str, Any], since: float) -> Iterator[Defect]:
    found = _survey(attempt.journal_path)
    rebuild = "`gpas db rebuild` reads it again"
    if found.offset > row["journal_offset"]:
        left = found.offset - row["journal_offset"]
        if not _written_after(attempt.journal_path, since):
            yield Defect(f"{attempt.relative}: {left} bytes are not yet ingested", "run `gpas sync`")
    elif (found.offset, found.events) != (row["journal_offset"], row["journal_events"]):
        yield Defect(
            f"{attempt.relative}: the journal has {found.events} events, the database {row['journal_events']}",
            rebuild,
        )
    elif row["journal_tail"] not in (None, tail_of(attempt, found.offset)):
        yield Defect(f"{attempt.relative}: the journal has changed since it was read", rebuild)
    if found.lost:
        yield Defect(
            f"{attempt.journal_path}: {found.lost} events are missing ({found.damaged} damaged lines)",
            "they cannot be recovered; check the attempt's log and the disk",
        )


def _written_after(path: Path, moment: float) -> bool:
    with suppress(OSError):
        return path.stat().st_mtime >= moment
    return False


def _survey(path: Path) -> _Survey:
    events = offset = damaged = 0
    # Spans of consecutive event numbers: even a long journal has few.
    spans: list[list[int]] = []
    while (read := journal.read_bytes(path, offset, STRETCH_BYTES))[1] > offset:
        data, offset = read
        for line in journal.decoded(data):
            if line is None:
                damaged += 1
                continue
            events += 1
            if spans and line.n == spans[-1][1]:
                spans[-1][1] += 1
            else:
                spans.append([line.n, line.n + 1])
    return _Survey(events, offset, damaged, _lost(spans))


def _lost(spans: list[list[int]]) -> int:
    """Return how many numbers from 0 on are in no span.

    Spans may overlap: an event of a torn line is written again, and a requeued job may write it once more.
    """
    lost = end = 0
    for start, stop in sorted(spans):
        lost += max(0, start - end)
        end = max(end, stop)
    return lost
