"""Ingest run directories into the database.

Ingesting is incremental, idempotent and resumable, because the database records how far each journal was read. A
transaction stores at most AT_ONCE attempts and `attempt_rows.STRETCH_BYTES` of their journals: the rows and the offsets
after them are stored together, and other writers need not wait for the end of a long journal. An attempt whose journal
has not changed costs one `stat`. If a journal has changed, its last bytes before the offset must be the same as before;
otherwise its rows are deleted and it is read again from the start.

An attempt whose run directory is gone keeps its rows and is marked as gone, so that its numbers are not shown as
results; the mark is removed when the directory is back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import fields
from itertools import chain, islice
from pathlib import Path
from typing import Annotated

from sqlalchemy import Connection, Engine, bindparam, select, update

from gpas_cli.files import overlapped
from gpas_cli.store import journal, owner, rundir, session
from gpas_cli.store.attempt_rows import Unreadable, forget_attempt, journal_stat, store_attempts
from gpas_cli.store.peek import STATEMENT_PARAMETERS, Journal, is_unchanged
from gpas_cli.store.rundir import AttemptDir
from gpas_cli.store.schema import AttemptRow
from gpas_cli.structure import Frozen

_KEY_DIGITS = 16
AT_ONCE = 100  # attempts in a transaction
_MARK_GONE = update(AttemptRow).where(AttemptRow.id == bindparam("attempt"))


class Ingested(Frozen):
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
    known = _known(engine, keys)
    problems: list[str] = []
    done = store(lambda: session.writing(engine), _changed(runs, keys, known, problems))
    return done + Ingested(problems=tuple(problems), gone=_mark_gone(engine, runs, known.values()))


def store(begin: Callable[[], AbstractContextManager[Connection]], attempts: Iterable[AttemptDir]) -> Ingested:
    """Store the rows of attempts, in as many of the transactions that `begin` opens as that takes.

    Within one, a savepoint keeps what was stored before from an attempt that cannot be read.
    """
    rest, waiting, changed, done = iter(attempts), list[AttemptDir](), set[AttemptDir](), Ingested()
    while waiting := [*waiting, *islice(rest, AT_ONCE - len(waiting))]:
        try:
            with begin() as connection, connection.begin_nested():
                stored = store_attempts(connection, waiting)
        except Unreadable as problem:
            alone = (store(begin, [one]) for one in waiting) if waiting[1:] else [Ingested(problems=(str(problem),))]
            done, waiting = sum(alone, done), []
        else:
            done += sum((Ingested(0, one.changes.events, one.changes.damaged) for one in stored), Ingested())
            changed |= {one.attempt for one in stored if one.changed}
            waiting = [one.attempt for one in stored if not one.complete] + waiting[len(stored) :]
    return done + Ingested(len(changed))


def _changed(
    runs: Path, keys: Iterable[str] | None, known: dict[tuple[str, int], Journal], problems: list[str]
) -> Iterator[AttemptDir]:
    """Yield the attempts that have news, and remove those that are there from `known`."""
    for folder, name, unchanged in _listed(runs, keys, problems, dict(known)):
        before = known.pop((folder[-_KEY_DIGITS:], int(name)), None)
        attempt = AttemptDir(Path(folder, name))
        try:
            if not unchanged and _has_news(attempt, before):
                yield attempt
        except OSError as problem:
            problems.append(f"{problem.filename or attempt.path}: {problem.strerror}")


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
    new = size < known.offset or mtime != known.mtime
    # A torn last line always remains after the offset: check it with a read, without a transaction.
    return new or (size > known.offset and journal.read_bytes(attempt.journal_path, known.offset, 1)[1] > known.offset)


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
