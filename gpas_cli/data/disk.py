"""How this room writes: digests of plain data, files that appear whole or not at all, and one lock per folder."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from gpas_cli.errors import DataError

PREFIX = ".tmp-"
STALE_SECONDS = 86_400
ASK_SECONDS = 1.0


def digest(value: Any) -> str:
    """16 hexadecimal digits of the canonical JSON of `value`."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def write(path: Path, content: bytes) -> None:
    """Put `content` at `path` in one step: a reader sees the old file, the new one, or none.

    Raises DataError when the disk refuses.
    """
    try:
        _write(path, content)
    except OSError as error:
        raise DataError(
            f"cannot write {path}: {error.strerror or error}; free space there, or set GPAS_CACHE to another folder"
        ) from error


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=PREFIX, dir=path.parent)
    aside = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes private files; a cache is shared by whoever may enter its folder.
        aside.chmod(0o644)
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """`write` of indented JSON."""
    write(path, (json.dumps(value, indent=1, sort_keys=True) + "\n").encode())


def read_json(path: Path) -> dict[str, Any] | None:
    """The mapping in `path`; None where there is no such file or it is not a whole JSON mapping.

    Raises DataError where there is a file that may not be read.
    """
    try:
        # Reading a FIFO would wait for a writer.
        value = json.loads(path.read_bytes()) if path.is_file() else None
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    return value if isinstance(value, dict) else None


@contextmanager
def locked(folder: Path, until: Callable[[], bool] = lambda: False) -> Iterator[bool]:
    """Hold the folder's lock, waiting for it. The kernel releases it when the holder dies, however it dies.

    `until` is asked while waiting; when it says so, waiting ends without the lock. Yields whether the lock is held.
    The lock spares double work; correctness does not rest on it, as every writer would write the same bytes.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock", mode=0o666)
        held = _acquire(lock, until)
    except OSError as error:
        raise DataError(f"cannot use {folder}: {error.strerror or error}; set GPAS_CACHE to another folder") from error
    try:
        if held:
            _sweep(folder)
        yield held
    finally:
        if held:
            lock.release()


def _acquire(lock: FileLock, until: Callable[[], bool]) -> bool:
    while True:
        try:
            lock.acquire(timeout=ASK_SECONDS)
        except Timeout:
            if until():
                return False
        else:
            return True


def _sweep(folder: Path) -> None:
    """Remove what killed writers left; a day old, so that no writer of a file system without locks is disturbed."""
    for path in folder.glob(f"{PREFIX}*"):
        try:
            if time.time() - path.stat().st_mtime > STALE_SECONDS:
                path.unlink()
        except FileNotFoundError:
            continue
