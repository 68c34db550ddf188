"""Look up the stages in an SQLite database without SQLAlchemy, whose import takes longer than printing most tables.

Stages that are in the database and have no run directory count as never run. Their results are probably on a file
system that is not mounted; `describe_lost` returns the warning.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from gpas_cli.project import Project
from gpas_cli.store.rundir import stage_dir
from gpas_cli.store.sqlite_file import may_write, open_to_read
from gpas_cli.words import count

BUSY_SECONDS = 1.0


def known_stages(database: str, keys: Collection[str]) -> set[str] | None:
    """Return those of `keys` that have attempts in the SQLite file at the path `database`.

    None if this cannot be determined: the database is on a server, or the file is missing, locked, damaged or not ours.
    """
    if not database.startswith("/"):
        return None
    try:
        with closing(_open(Path(database))) as connection:
            found = {key for (key,) in connection.execute("SELECT DISTINCT stage_key FROM attempt")}
    except sqlite3.Error:
        return None
    return found.intersection(keys)


def lost_stages(runs: Path, known: Iterable[str]) -> list[str]:
    """Return those of the stages `known` to the database whose folders are not under `runs`."""
    return [key for key in known if not stage_dir(runs, key).exists()]


def describe_lost(project: Project, lost: Collection[str]) -> str:
    """Return the warning that the database knows the stages `lost`, "" if there are none."""
    if not lost:
        return ""
    what = f"the database knows {count(len(lost), 'stage')} whose run directories are not in {project.runs}"
    return (
        f"{what}, and shows no results of them until the directories are back (check that the file system is mounted)"
    )


def describe_missing_runs(project: Project, keys: Collection[str]) -> str:
    """Return the warning about those of the stages `keys` that the database knows, if the whole folder of run
    directories is missing; "" if it knows none."""
    return describe_lost(project, known_stages(project.database, keys) or ())


def _open(path: Path) -> sqlite3.Connection:
    if not may_write(path):
        return open_to_read(path, BUSY_SECONDS)
    return sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=BUSY_SECONDS)
