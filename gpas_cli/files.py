"""Replace files atomically, open files where the path may be a link, a FIFO or a device, parse JSON, identify content.
Standard library only.
"""

import errno
import hashlib
import json
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from io import BufferedReader, FileIO
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

_T = TypeVar("_T")
_R = TypeVar("_R")

_NOT_REGULAR = "not a regular file"
_LINK = "a link, and gpas follows no link to a file here; put the file itself there"
_AT_ONCE = 8
_TRIED = 32  # items
_SLOW_SECONDS = 1e-3  # for an item: on a local disk, where one takes 0.2 ms, threads take more time than they save


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
    """Open a regular file for reading bytes. Raises OSError like `open_descriptor`."""
    return os.fdopen(open_descriptor(path), "rb")


def append_regular(path: Path) -> FileIO:
    """Open a regular file, created if it is absent, for appending bytes: what is written in one call stays whole.

    Raises OSError like `open_descriptor`.
    """
    return os.fdopen(open_descriptor(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab", buffering=0)


def read_regular(path: Path, last: int | None = None) -> tuple[bytes, int]:
    """Return the content of a regular file, or its `last` bytes, and the offset of the first of them. Takes a third of
    the time of a file object, which counts where a command reads thousands of small files. Raises OSError."""
    fd = open_descriptor(path)
    try:
        size = os.fstat(fd).st_size
        start = 0 if last is None else max(0, size - last)
        data = os.pread(fd, size - start, start)
        while start + len(data) < size and (more := os.pread(fd, size - start - len(data), start + len(data))):
            data += more
        return data, start
    finally:
        os.close(fd)


def open_descriptor(path: Path, flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
    """Return a descriptor of a regular file, which `flags` may create with the permissions `mode`.

    Raises OSError when it cannot be opened, and for anything else of that name: a FIFO or a device could block forever,
    and through a link, whoever can write to the folder could make this user read or change a file elsewhere. Folders on
    the way to the file may be links.
    """
    try:
        fd = os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):  # the second from a FIFO that nobody reads
            raise
        raise OSError(error.errno, _LINK if path.is_symlink() else _NOT_REGULAR, str(path)) from error
    found = os.fstat(fd).st_mode
    if stat.S_ISREG(found):
        return fd
    os.close(fd)
    raise OSError(errno.EISDIR if stat.S_ISDIR(found) else errno.EINVAL, _NOT_REGULAR, str(path))


def overlapped(function: Callable[[_T], _R], items: Iterable[_T]) -> Iterator[_R]:
    """Yield function(item) in order; where the first ones are slow, because they wait for the server of a file system,
    several at a time.

    Where every open, stat and listing takes a millisecond, the states of 2,000 cells take 1.5 s in place of 5.
    """
    rest, began = iter(items), time.perf_counter()
    first = [function(item) for item in islice(rest, _TRIED)]
    slow = time.perf_counter() - began > _SLOW_SECONDS * _TRIED
    yield from first
    if slow:
        from concurrent.futures import ThreadPoolExecutor  # a fiftieth of a command that does not need it

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            yield from pool.map(function, rest)
    yield from map(function, rest)


def digest_of(files: Mapping[str, bytes]) -> str:
    """Return 16 hexadecimal digits that identify the names and the content of files."""
    total = hashlib.sha256()
    for name in sorted(files):
        total.update(f"{name}\0{hashlib.sha256(files[name]).hexdigest()}\n".encode())
    return total.hexdigest()[:16]
