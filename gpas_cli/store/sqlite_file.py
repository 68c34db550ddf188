"""An SQLite file and the files that SQLite keeps beside it: write permission, and opening for reading only."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from urllib.parse import quote

LOG_SUFFIXES = ("-wal", "-shm")  # of the files that SQLite keeps beside a database


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
