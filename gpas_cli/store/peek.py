"""Look up the stages in an SQLite database without SQLAlchemy, whose import takes longer than printing most tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from gpas_cli.store.sqlite_file import may_write, open_to_read

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


def _open(path: Path) -> sqlite3.Connection:
    if not may_write(path):
        return open_to_read(path, BUSY_SECONDS)
    return sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=BUSY_SECONDS)
