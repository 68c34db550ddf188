"""Ingest run directories into the database.

Ingesting is incremental, idempotent and resumable, because the database records how far each journal was read. An
attempt is stored in transactions of at most TRANSACTION_BYTES of its journal: the rows and the offset after them are
stored together, and other writers need not wait for the end of a long journal. An attempt whose journal has not changed
costs one `stat`. If a journal has changed, its last bytes before the offset must be the same as before; otherwise its
rows are deleted and it is read again from the start.

An attempt whose run directory is gone keeps its rows and is marked as gone, so that its numbers are not shown as
results; the mark is removed when the directory is back.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import chain
from pathlib import Path
from typing import Annotated

from sqlalchemy import Engine, bindparam, select, update

from gpas_cli.files import overlapped
from gpas_cli.store import owner, rundir, session
from gpas_cli.store.attempt_rows import Stored, Unreadable, forget_attempt, journal_stat, read_lines, store_attempt
from gpas_cli.store.peek import STATEMENT_PARAMETERS, Journal, is_unchanged
from gpas_cli.store.rundir import AttemptDir
from gpas_cli.store.schema import AttemptRow

_KEY_DIGITS = 16
TRANSACTION_BYTES = 16 << 20  # of a journal, about 80,000 events: other writers wait a second or two, not minutes
_MARK_GONE = update(AttemptRow).where(AttemptRow.id == bindparam("attempt"))


@dataclass(frozen=True)
class Ingested:
    """The result of `sync`. `problems` are the attempts that could not be read, with the reason; they are tried again
    every time."""

    attempts: Annotated[int, "attempts that changed"] = 0
    events: int = 0
    damaged: Annotated[int, "damaged lines"] = 0
    gone: Annotated[int, "run directories that have disappeared since the last time"] = 0
    problems: tuple[str, ...] = ()

    def __add__(self, other: Ingested) -> Ingested:
        return Ingested(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(Ingested)))


def sync(engine: Engine, runs: Path, keys: Iterable[str] | None = None) -> Ingested:
    """Update the rows of all attempts under `runs`, or of those at the stages `keys`, from their journals.

    May run concurrently and may be killed. Raises StoreError if the database belongs to another project or cannot be
    written; what was stored before remains.
    """
    owner.claim(engine, runs)
    done = Ingested()
    known = _known(engine, keys)
    skipped: list[str] = []
    for folder, name, unchanged in _listed(runs, keys, skipped, dict(known)):
        before = known.pop((folder[-_KEY_DIGITS:], int(name)), None)
        if unchanged:
            continue
        attempt = AttemptDir(Path(folder, name))
        try:
            if not _has_news(attempt, before):
                continue
            done += _ingest(engine, attempt)
        except Unreadable as problem:
            done += Ingested(problems=(str(problem),))
    return done + Ingested(problems=tuple(skipped), gone=_mark_gone(engine, runs, known.values()))


def counted(stored: Stored) -> Ingested:
    """Return what was stored of an attempt as the result of a `sync`."""
    return Ingested(int(stored.changed), stored.events, stored.damaged)


def _ingest(engine: Engine, attempt: AttemptDir) -> Ingested:
    done = Ingested()
    complete = False
    while not complete:
        with session.writing(engine) as connection:
            stored = store_attempt(connection, attempt, TRANSACTION_BYTES)
        complete = stored.complete
        done += replace(counted(stored), attempts=int(stored.changed and not done.attempts))
    return done


def _listed(
    runs: Path, keys: Iterable[str] | None, skipped: list[str], known: Mapping[tuple[str, int], Journal]
) -> Iterator[tuple[str, str, bool]]:
    """Yield the folder of the stage and the name of every attempt, and whether its journal is as it was when it was
    read. As text: a project may have many thousands."""

    def attempts(key: str) -> list[tuple[str, str, bool]]:
        folder = str(rundir.stage_dir(runs, key))
        before = {name: known.get((key, int(name))) for name in rundir.attempt_names(folder, skipped)}
        return [
            (folder, name, old is not None and is_unchanged(f"{folder}/{name}/{rundir.JOURNAL}", old))
            for name, old in before.items()
        ]

    stages = rundir.all_keys(runs, skipped) if keys is None else sorted(set(keys))
    yield from chain.from_iterable(overlapped(attempts, stages))


def _known(engine: Engine, keys: Iterable[str] | None) -> dict[tuple[str, int], Journal]:
    a = AttemptRow
    statement = select(a.stage_key, a.number, a.id, a.directory, a.journal_offset, a.journal_mtime, a.gone)
    wanted = None if keys is None else set(keys)
    if wanted is not None and len(wanted) <= STATEMENT_PARAMETERS:
        statement = statement.where(a.stage_key.in_(wanted))
    with engine.connect() as connection:
        rows = connection.execute(statement).all()
    return {
        (row.stage_key, row.number): Journal(row.id, row.directory, row.journal_offset, row.journal_mtime, row.gone)
        for row in rows
        if wanted is None or row.stage_key in wanted
    }


def _has_news(attempt: AttemptDir, known: Journal | None) -> bool:
    if known is None or known.gone is not None:
        return True
    size, mtime = journal_stat(attempt)
    if size < known.offset or mtime != known.mtime:
        return True
    # A torn last line always remains after the offset: check it with a read, without a transaction.
    return size > known.offset and read_lines(attempt, known.offset, limit=1)[1] > known.offset


def _mark_gone(engine: Engine, runs: Path, rest: Iterable[Journal]) -> int:
    """Mark the attempts of `rest` whose directories are certainly gone; return how many.

    The rows of forgotten attempts are deleted, as a rebuilt database would not have them.
    """
    if not runs.is_dir():  # for example not mounted: nothing is known about any attempt
        return 0
    missing = [known for known in rest if rundir.is_gone(runs / known.directory)]
    folders = {known.id: runs / known.directory for known in missing}
    aside = {name: folder.parent / f"{rundir.FORGOTTEN}{folder.name}" for name, folder in folders.items()}
    forgotten = [name for name, folder in aside.items() if folder.is_dir()]
    gone = [known.id for known in missing if known.gone is None and known.id not in forgotten]
    if forgotten:
        with session.writing(engine) as connection:
            for attempt in forgotten:
                forget_attempt(connection, attempt)
    if gone:
        with session.writing(engine) as connection:
            connection.execute(_MARK_GONE, [{"attempt": attempt, "gone": time.time()} for attempt in gone])
    return len(gone)
