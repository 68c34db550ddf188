"""Digests of plain data, atomic writes, and one lock per folder: how the token cache is written."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gpas_cli.errors import DataError
from gpas_cli.files import parse_json, replace_file

_TEMPORARY_PREFIX = ".tmp-"
_STALE_SECONDS = 86_400  # age at which a temporary file is abandoned
POLL_SECONDS = 1.0  # between two calls of `until` while waiting for a lock


def digest(value: Any) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of the canonical JSON of `value`."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def write(path: Path, content: bytes) -> None:
    """Write `content` to `path` atomically: a reader sees the old file, the new one, or none.

    Raises DataError if it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A cache is shared by everyone who may enter its folder.
        replace_file(path, content, mode=0o644, prefix=_TEMPORARY_PREFIX)
    except OSError as error:
        raise DataError(
            f"cannot write {path}: {error.strerror or error}; free space there, or set GPAS_CACHE to another folder"
        ) from error


def write_json(path: Path, value: Any) -> None:
    """Write `value` to `path` atomically, as indented JSON. Raises DataError."""
    write(path, (json.dumps(value, indent=1, sort_keys=True) + "\n").encode())


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in `path`, or None if there is no such file or it is not a complete JSON object.

    Raises DataError if the file exists but may not be read.
    """
    try:
        # is_file: reading a FIFO would block until someone writes to it.
        value = parse_json(path.read_bytes()) if path.is_file() else None
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    return value if isinstance(value, dict) else None


@contextmanager
def locked(folder: Path, until: Callable[[], bool] = lambda: False) -> Iterator[bool]:
    """Wait for the folder's lock and hold it in the block. The kernel releases it when the holder dies.

    `until` is called while waiting; once it returns true, waiting ends without the lock. Yields whether the lock is
    held. The lock avoids duplicate work; correctness does not depend on it, as every writer writes the same bytes.
    """
    from filelock import FileLock, Timeout  # plans and states take no lock

    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock", mode=0o666)
        held = False
        while not held:
            with suppress(Timeout):
                lock.acquire(timeout=POLL_SECONDS)
                held = True
            if not held and until():
                break
    except OSError as error:
        raise DataError(f"cannot use {folder}: {error.strerror or error}; set GPAS_CACHE to another folder") from error
    try:
        if held:
            _sweep(folder)
        yield held
    finally:
        if held:
            lock.release()


def _sweep(folder: Path) -> None:
    """Remove temporary files of killed writers, a day old or more: on a file system without locks, younger ones may
    still be written to."""
    for path in folder.glob(f"{_TEMPORARY_PREFIX}*"):
        with suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                path.unlink()
