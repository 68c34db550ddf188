"""The journal of one attempt: an append-only file of events, one a line, with one writer.

    8 hex digits of crc32(JSON), a space, the JSON, a newline

    9c1f0a3e {"n":7,"t":1760000000.0,"kind":"step","step":10,"loss":4.5}

`n` counts the events of a journal from 0, so that a gap shows how many were lost; `t` is unix time. The checksum is
what makes a line trustworthy: a torn tail, a flipped bit or a block of zeros left by a power cut costs the lines it
touches and nothing else. JSON has no NaN, so non-finite floats are the strings "nan", "inf" and "-inf" (`float()`
accepts both spellings of a number).
"""

from __future__ import annotations

import errno
import json
import math
import os
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from gpas_cli.files import open_regular

PENDING_LIMIT = 10_000  # events kept in memory while the disk refuses them: a few MB
EXPENDABLE = ("step", "layers")  # what is dropped first when even that is not enough: dense and least missed
RESERVED = frozenset({"n", "t"})
STRETCH_BYTES = 4 << 20  # bytes taken into memory at a time: about 25,000 events
NEAR = 80  # bytes of a line that hold its checksum, number, time and kind
SYNCED = frozenset({"start", "evaluation", "checkpoint", "outcome"})  # rare; a network file system shows them at once


class Journal:
    """The one writer of a journal; call it with an event.

    Raises OSError when the file cannot be opened: at that moment no training has been done. After that no call raises
    OSError: what the disk refuses is kept (`pending`, at most PENDING_LIMIT events), tried again at every call, and
    its loss, if it comes to that, is counted in `dropped` and journalled as a warning once the disk takes events again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.dropped = 0
        self._pending: list[tuple[str, bytes]] = []
        self._reported = 0
        self._lost: OSError | None = None
        self._n = _next_number(path)
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._torn = not _ends_in_newline(path)

    @property
    def pending(self) -> int:
        """How many events wait in memory for the disk."""
        return len(self._pending)

    def __call__(self, kind: str, **fields: Any) -> None:
        """Append one event. Raises TypeError for what JSON cannot hold, ValueError after `close`."""
        if self._fd < 0:
            raise ValueError(f"{self.path}: the journal is closed")
        self._append(kind, fields)
        try:
            self._flush()
        except OSError:
            self._shed()
        if kind in SYNCED:
            self._sync()

    def close(self) -> None:
        """Write what is pending and fsync. Raises OSError if events did not reach the disk. Again: nothing happens."""
        if self._fd < 0:
            return
        try:
            self._flush()
            os.fsync(self._fd)
        except OSError as error:
            raise OSError(
                error.errno, f"{self.pending} events could not be written: {error.strerror}", str(self.path)
            ) from error
        finally:
            os.close(self._fd)
            self._fd = -1
        if self._lost is not None:
            raise self._lost

    def _append(self, kind: str, fields: Mapping[str, Any]) -> None:
        if not RESERVED.isdisjoint(fields):
            raise TypeError(f"{', '.join(sorted(RESERVED & set(fields)))}: written by the journal itself")
        event = {"n": self._n, "t": time.time(), "kind": kind} | {name: plain(value) for name, value in fields.items()}
        self._pending.append((kind, encode(event)))
        self._n += 1

    def _flush(self) -> None:
        while self._pending:
            self._write(self._pending[0][1])
            del self._pending[0]
        if self.dropped > self._reported:
            self._reported, lost = self.dropped, self.dropped - self._reported
            self._append("warning", {"message": f"{lost} events were lost while the disk took none", "dropped": lost})
            self._flush()

    def _write(self, line: bytes) -> None:
        # A newline first ends what an interrupted write left behind, so that only that line is skipped on reading.
        data = b"\n" + line if self._torn else line
        written = os.write(self._fd, data)
        self._torn = data[:written][-1:] != b"\n" if written else self._torn
        # Only the newline is missing: the event itself is there, and writing it again would tell it twice.
        if written < len(data) - 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def _shed(self) -> None:
        while len(self._pending) > PENDING_LIMIT:
            expendable = (i for i, (kind, _) in enumerate(self._pending) if kind in EXPENDABLE)
            del self._pending[next(expendable, 0)]
            self.dropped += 1

    def _sync(self) -> None:
        try:
            os.fsync(self._fd)
        except OSError as error:  # told by `close`: the kernel reports a failed write-back once, and to this call
            self._lost = self._lost or error


def read(path: Path, offset: int = 0, limit: int = -1) -> tuple[list[dict[str, Any]], int, int]:
    """The events from byte `offset` on: (events, offset to go on from, number of damaged lines).

    An unfinished last line is left for the next call and not counted: its writer may be alive. `limit` bounds the bytes
    taken (to the end of the line it falls in); a caller goes on until the offset stands still. No file, no events.
    Raises OSError when the file is there and cannot be read, never for what is in it.
    """
    try:
        with open_regular(path) as file:
            file.seek(offset)
            data = file.read(limit) + (file.readline() if limit >= 0 else b"")
    except FileNotFoundError:
        return [], offset, 0
    end = data.rfind(b"\n") + 1
    if decode(data[end:]) is not None:  # whole but for its newline
        end = len(data)
    events, damaged = _decode_lines(data[:end])
    return events, offset + end, damaged


def stretches(path: Path, offset: int = 0) -> Iterator[tuple[list[dict[str, Any]], int, int]]:
    """`read` again and again until nothing is left, STRETCH_BYTES bytes at a time. Raises OSError like `read`."""
    while True:
        events, end, damaged = read(path, offset, STRETCH_BYTES)
        if end == offset:
            return
        yield events, end, damaged
        offset = end


def tail(path: Path, size: int = 65536, *, newest: Mapping[str, int] | None = None) -> list[dict[str, Any]]:
    """The events in the last `size` bytes; damaged ones and the cut first one are left out. No file, no events.

    Of the kinds in `newest`, only the first of all and that many of the last are decoded: most lines are of one kind.
    """
    try:
        with open_regular(path) as file:
            start = max(0, file.seek(0, os.SEEK_END) - size)
            file.seek(start)
            data = file.read(size)
    except FileNotFoundError:
        return []
    if start:
        data = data[data.find(b"\n") + 1 :] if b"\n" in data else b""
    return _decode_lines(data, newest or {})[0]


def encode(event: Mapping[str, Any]) -> bytes:
    """One line of a journal, newline included."""
    body = json.dumps(event, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


def decode(line: bytes) -> dict[str, Any] | None:
    """The event of a line without its newline, or None when the line is not exactly what was written."""
    head, body = line[:9], line[9:]
    if head != b"%08x " % zlib.crc32(body):
        return None
    try:
        event = _DECODER.decode(body.decode("ascii"))
    except (ValueError, RecursionError):
        return None
    valid = isinstance(event, dict) and isinstance(event.get("n"), int) and isinstance(event.get("kind"), str)
    return event if valid else None


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def plain(value: Any) -> Any:
    """`value` as JSON holds it: non-finite floats and paths as strings, tuples as lists, array scalars as numbers."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "item"):  # numpy and torch scalars, without importing either
        return plain(value.item())
    raise TypeError(f"a journal cannot hold {type(value).__name__}: {value!r}")


def _decode_lines(data: bytes, newest: Mapping[str, int] | None = None) -> tuple[list[dict[str, Any]], int]:
    # An empty line is what is left between a whole event that lacked its newline and the one its writer put next.
    lines = [line for line in data.split(b"\n") if line]
    for kind, count in (newest or {}).items():
        lines = _thin(lines, b'"kind":"%s"' % kind.encode(), count)
    decoded = [decode(line) for line in lines]
    events = [event for event in decoded if event is not None]
    return events, len(decoded) - len(events)


def _thin(lines: list[bytes], mark: bytes, count: int) -> list[bytes]:
    """`lines` without those that have `mark` near their start, the first and the last `count` of them excepted."""
    marked = [i for i, line in enumerate(lines) if line.find(mark, 0, NEAR) >= 0]
    dropped = set(marked[1:-count])
    return [line for i, line in enumerate(lines) if i not in dropped] if dropped else lines


def _next_number(path: Path) -> int:
    events = tail(path) or read(path)[0]
    return 1 + max((event["n"] for event in events), default=-1)


def _ends_in_newline(path: Path) -> bool:
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return True
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
