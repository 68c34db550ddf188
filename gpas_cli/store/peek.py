"""Read an SQLite database without SQLAlchemy, whose import takes longer than printing most tables.

Run directories decide every state; this only saves the import and the ingesting where the database already has what
they have. Whatever is wrong with the file, the caller does both and reports it.
"""

import os
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from gpas_cli.errors import StoreError
from gpas_cli.files import overlapped
from gpas_cli.project import Project
from gpas_cli.store.records import ProjectRecord
from gpas_cli.store.rundir import JOURNAL, Listing, look_in, read_record, stage_dir
from gpas_cli.structure import Frozen
from gpas_cli.words import count

HEAD = "0003"  # the last script in migrations/versions, whose names sort by age; checked by a test
BASELINE = "0003"  # the first script there
VERSION_TABLE = "gpas_alembic_version"  # our own, so that a Postgres database can be shared with other tools
PROJECT_FILE = ".project.json"  # in the run directories, see `store.owner`
LOG_SUFFIXES = ("-wal", "-shm")  # of the files that SQLite keeps beside a database
STATEMENT_PARAMETERS = 500  # in one statement; older SQLite refuses more than 999
PEEK_SECONDS = 1.0  # waiting for a lock

Rows = Callable[[str, Sequence[Any]], list[dict[str, Any]]]
"""Runs a statement with `?` for parameters and returns the rows; SQLite has JSON as text in them, and NaN as None."""


class Journal(NamedTuple):
    """What the database has recorded of an attempt: its row, and its journal when it was last read."""

    id: int
    directory: str
    offset: int
    mtime: int | None
    gone: float | None


class Survey(Frozen):
    """What the database knows of some stages: whether their journals have nothing new, and which of them have rows.

    listed: what `look_in` has returned for each stage, of all of them if `current`.
    """

    current: bool
    known: frozenset[str]
    listed: Mapping[str, Listing]


def may_write(path: Path) -> bool:
    """Return whether this process may write or create an SQLite file and the files that SQLite keeps beside it."""
    wanted = [path.parent, path] if path.exists() else [path.parent]
    return all(os.access(each, os.W_OK, effective_ids=os.access in os.supports_effective_ids) for each in wanted)


def open_to_read(path: Path, busy_seconds: float) -> sqlite3.Connection:
    """Open a file for reading without creating files beside it, which its owner could not write.

    Without a log, the file is complete and is opened as immutable.
    """
    log, shared = (path.with_name(path.name + suffix) for suffix in LOG_SUFFIXES)
    how = "mode=ro&readonly_shm=1" if log.exists() and (shared.exists() or log.stat().st_size) else "immutable=1"
    return sqlite3.connect(f"file:{quote(str(path))}?{how}", uri=True, timeout=busy_seconds, check_same_thread=False)


@contextmanager
def rows_of(project: Project) -> Iterator[Rows | None]:
    """Yield the rows of the project's database at one moment.

    None if the database is on a server, which takes SQLAlchemy, or if the file is missing, damaged, of another version
    or of another project. A statement may raise sqlite3.Error.
    """
    path = Path(project.database)
    try:
        connection = open_file(path) if path.is_absolute() else None
    except (OSError, sqlite3.Error):
        connection = None
    if connection is None:
        yield None
        return
    with closing(connection):

        def rows(statement: str, parameters: Sequence[Any]) -> list[dict[str, Any]]:
            found = connection.execute(statement, parameters)
            names = [name for name, *_ in found.description]
            return [dict(zip(names, row, strict=True)) for row in found]

        try:
            connection.execute("BEGIN")
            ours = _is_ours(rows, project.runs)
        except sqlite3.Error:
            ours = False
        yield rows if ours else None


def is_unchanged(journal_path: str, known: Journal) -> bool:
    """Return whether a journal was read to its end and has not changed since."""
    if known.gone is not None:
        return False
    try:
        found = os.stat(journal_path)  # noqa: PTH116 - a Path takes as long to make as this does
    except OSError:
        return False
    return found.st_mtime_ns == known.mtime and found.st_size == known.offset


def survey(rows: Rows, runs: Path, keys: Collection[str]) -> Survey:
    """Compare the rows of the stages `keys` with their run directories: each attempt costs a `stat`."""
    known: dict[str, dict[int, Journal]] = {}
    columns = "stage_key, number, id, directory, journal_offset, journal_mtime, gone"
    for row in rows_in(rows, f"SELECT {columns} FROM attempt WHERE stage_key IN ({{}})", keys):
        key, number, *others = row.values()
        known.setdefault(key, {})[number] = Journal(*others)
    listed: dict[str, Listing] = {}

    def is_current(key: str) -> bool:
        folder, before = stage_dir(runs, key), known.get(key, {})
        with suppress(OSError):
            names, _ = listed[key] = look_in(folder)
            return {int(name) for name in names} == before.keys() and all(
                is_unchanged(f"{folder}/{name}/{JOURNAL}", before[int(name)]) for name in names
            )
        return False

    return Survey(all(overlapped(is_current, keys)), frozenset(known), listed)


def rows_in(rows: Rows, statement: str, values: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the rows of a statement with `IN ({})`, which is run with as many of the values at a time as it takes."""
    return [row for part in parts(values) for row in rows(statement.format(", ".join("?" * len(part))), part)]


def parts(values: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield the distinct values in lists that fit into one statement."""
    distinct = list(dict.fromkeys(values))
    return (distinct[i : i + STATEMENT_PARAMETERS] for i in range(0, len(distinct), STATEMENT_PARAMETERS))


def lost_stages(runs: Path, known: Iterable[str]) -> list[str]:
    """Return the stages `known` to the database whose folders are not under `runs`."""
    return [key for key in known if not stage_dir(runs, key).exists()]


def describe_lost(project: Project, lost: Collection[str]) -> str:
    """Return the warning that the database knows the stages `lost`, "" if there are none."""
    if not lost:
        return ""
    what = f"the database knows {count(len(lost), 'stage')} whose run directories are not in {project.runs}"
    return (
        f"{what}, and shows no results of them until the directories are back (check that the file system is mounted)"
    )


def open_file(path: Path) -> sqlite3.Connection:
    """Open a database for reading. Raises OSError or sqlite3.Error."""
    if not may_write(path):
        return open_to_read(path, PEEK_SECONDS)
    return sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=PEEK_SECONDS)


def _is_ours(rows: Rows, runs: Path) -> bool:
    """Return whether the database has this version, and the same project's id as the run directories."""
    try:
        own = read_record(ProjectRecord, runs / PROJECT_FILE).id
    except (OSError, StoreError):
        return False
    versions = rows(f"SELECT version_num FROM {VERSION_TABLE}", ())
    owners = rows("SELECT id FROM gpas_project", ())
    return [row["version_num"] for row in versions] == [HEAD] and [row["id"] for row in owners] == [own]
