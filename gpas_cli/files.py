"""Replace files atomically, open files where the path may be a FIFO or a device, parse JSON. Standard library only."""

import errno
import json
import os
import stat
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import Any


def replace_file(
    path: Path, content: bytes | str, *, durable: bool = True, mode: int | None = None, prefix: str = ""
) -> None:
    """Replace the content of `path` in one step: write a file beside it, fsync it, rename it.

    Text is encoded as UTF-8. Without `durable` there is no fsync: other processes still see the old or the new content,
    but a power cut may lose both. `mode` is the file's permissions, whatever the umask. The file beside `path` is
    called `.NAME.HEX`, or PREFIX followed by digits where the caller sweeps what killed writers left.
    Raises OSError, and then leaves `path` as it was.
    """
    aside = path.with_name(f"{prefix or f'.{path.name}.'}{os.urandom(8).hex()}")
    try:  # whoever opens a file before `fchmod` could read it later
        with open(aside, "xb", opener=lambda name, flags: os.open(name, flags, mode or 0o666)) as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(content.encode() if isinstance(content, str) else content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        aside.replace(path)
    except BaseException as error:
        with suppress(OSError):  # where nothing can be written, a file that is not there cannot be removed either
            aside.unlink()
        if isinstance(error, OSError):
            error.filename = os.fspath(path)  # not the file beside it, nor none, as `write` says it
        raise


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text. Raises ValueError, also where `json` raises RecursionError."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def fsync(path: Path) -> None:
    """Fsync a file that has been written, or a folder whose entries have changed. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading bytes.

    Raises OSError when it cannot be opened, and for anything else of that name: reading a FIFO or a device could block
    forever.
    """
    return os.fdopen(_open(path)[0], "rb")


def read_regular(path: Path, last: int | None = None) -> tuple[bytes, int]:
    """Return the content of a regular file, or its `last` bytes, and the offset of the first of them. Takes a third of
    the time of a file object, which counts where a command reads thousands of small files. Raises OSError."""
    fd, size = _open(path)
    try:
        start = 0 if last is None else max(0, size - last)
        data = os.pread(fd, size - start, start)
        while start + len(data) < size and (more := os.pread(fd, size - start - len(data), start + len(data))):
            data += more
        return data, start
    finally:
        os.close(fd)


def _open(path: Path) -> tuple[int, int]:
    """Return the descriptor and the size of a regular file. Raises OSError like `open_regular`."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    found = os.fstat(fd)
    if stat.S_ISREG(found.st_mode):
        return fd, found.st_size
    os.close(fd)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "not a regular file", str(path))
