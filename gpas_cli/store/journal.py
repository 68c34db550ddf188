"""The journal of one attempt: an append-only file of events, one per line, with one writer.

    8 hex digits of crc32(JSON), a space, the JSON, a newline

    7c38f78c {"n":7,"t":1760000000.0,"kind":"step","step":10,"loss":4.5}

`n` counts the events of a journal from 0, so that a gap shows how many were lost; `t` is unix time; `gpas_cli.events`
has the kinds and their fields. The checksum limits damage: a torn tail, a flipped bit or a block of zeros after a power
cut invalidates only the lines that it touches.
JSON has no NaN, so non-finite floats are the strings "nan", "inf" and "-inf", which `float()` accepts.
"""

import errno
import json
import os
import time
import weakref
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from gpas_cli import events
from gpas_cli.files import open_descriptor, open_regular, read_regular
from gpas_cli.structure import plain

PENDING_LIMIT = 10_000  # events kept in memory while the disk refuses writes: a few MB
_EXPENDABLE = (events.Step, events.Layers)  # dropped first beyond the limit: frequent and least important
STRETCH_BYTES = 4 << 20  # bytes read into memory at a time: about 25,000 events
_HEAD_BYTES = 80  # bytes at the start of a line that contain its checksum, number, time and kind
_COUNTING = (events.Step, events.Scoring, events.Outcome)
# Rare events, which are fsynced so that other hosts see them at once.
_SYNCED = (
    *(events.Started, events.Evaluation, events.Checkpoint, events.Removal, events.RemovalScore),
    *(events.Score, events.Outcome),
)


class Line:
    """A line of a journal: the number, the time and the kind of an event, and the event.

    The event is decoded when it is first used, because many readers need one kind of many. `values` is the JSON object.
    """

    __slots__ = ("_event", "values")

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        self._event: events.Event | None = None

    @property
    def n(self) -> int:
        """The number of the event in its journal, from 0."""
        return int(self.values["n"])

    @property
    def t(self) -> float:
        """The unix time at which the event was appended."""
        return float(self.values["t"])

    @property
    def kind(self) -> str:
        return str(self.values["kind"])

    @property
    def event(self) -> events.Event:
        """The event; `Unknown` or `Malformed` if this version cannot read it."""
        if self._event is None:
            self._event = events.event_of(self.values)
        return self._event


class Journal:
    """The writer of a journal.

    Raises OSError if the file cannot be opened, before any training is done. `append` does not raise OSError: events
    that cannot be written are kept in memory (`pending`, at most PENDING_LIMIT) and retried at every call. Dropped
    events are counted in `dropped` and journalled as a warning once the disk accepts writes again. Steps and outcomes
    say how many warnings came before, so that readers of the end of a journal know.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.dropped = 0
        self._pending: list[tuple[events.Event, bytes]] = []
        self._reported = 0
        self._warnings = 0
        self._lost: OSError | None = None
        lines = tail(path) or read(path)[0]
        self._n = 1 + max((line.n for line in lines), default=-1)
        self._fd = open_descriptor(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        # Closes the file of a journal that an error leaves behind, too.
        self._release = weakref.finalize(self, os.close, self._fd)
        self._torn = read_regular(path, 1)[0] not in (b"", b"\n")

    @property
    def pending(self) -> int:
        """The number of events in memory that are not yet on disk."""
        return len(self._pending)

    def append(self, event: events.Event) -> None:
        """Append an event. Raises TypeError for values that JSON cannot represent, ValueError after `close`."""
        if self._fd < 0:
            raise ValueError(f"{self.path}: the journal is closed")
        self._keep(event)
        try:
            self._flush()
        except OSError:
            self._shed()
        if isinstance(event, _SYNCED):
            self._sync()

    def close(self) -> None:
        """Write pending events, fsync and close. A second call does nothing.

        Raises OSError if events did not reach the disk.
        """
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
            self._release()
            self._fd = -1
        if self._lost is not None:
            raise self._lost

    def _keep(self, event: events.Event) -> None:
        """Queue an event for writing."""
        if isinstance(event, events.Warned):
            self._warnings += 1
        elif self._warnings and isinstance(event, _COUNTING):
            event = replace(event, warnings=self._warnings)
        fields = events.fields_of(event)
        if not events.ENVELOPE.isdisjoint(fields):
            raise TypeError(f"{', '.join(sorted(events.ENVELOPE & set(fields)))}: written by the journal itself")
        values = {"n": self._n, "t": time.time(), "kind": event.kind}
        self._pending.append((event, encode(values | {name: plain(value) for name, value in fields.items()})))
        self._n += 1

    def _flush(self) -> None:
        while self._pending:
            self._write(self._pending[0][1])
            del self._pending[0]
        if self.dropped > self._reported:
            lost = self.dropped - self._reported
            self._reported = self.dropped
            self._keep(events.Warned(f"{lost} events were lost while the disk could not be written", dropped=lost))
            self._flush()

    def _write(self, line: bytes) -> None:
        # A newline ends the line that an interrupted write left behind, so that readers skip only that line.
        data = b"\n" + line if self._torn else line
        written = os.write(self._fd, data)
        self._torn = data[:written][-1:] != b"\n" if written else self._torn
        # If only the newline is missing, the event is complete and must not be written again.
        if written < len(data) - 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def _shed(self) -> None:
        while len(self._pending) > PENDING_LIMIT:
            expendable = (i for i, (event, _) in enumerate(self._pending) if isinstance(event, _EXPENDABLE))
            del self._pending[next(expendable, 0)]
            self.dropped += 1

    def _sync(self) -> None:
        try:
            os.fsync(self._fd)
        except OSError as error:  # raised by `close`: the kernel reports a failed write-back only once, to this call
            self._lost = self._lost or error


def read(path: Path, offset: int = 0, limit: int = -1) -> tuple[list[Line], int, int]:
    """Return (lines from byte `offset` on, offset for the next call, number of damaged lines).

    An unfinished last line is left for the next call and not counted, because its writer may be alive. `limit` bounds
    the bytes read, rounded up to the end of a line; repeat the call until the offset does not change. A missing file
    has no lines. Raises OSError if the file exists and cannot be read, but never because of its content.
    """
    data, end = read_bytes(path, offset, limit)
    raw = _raw_lines(data)
    lines = lines_in(raw)
    return lines, end, len(raw) - len(lines)


def read_bytes(path: Path, offset: int = 0, limit: int = -1) -> tuple[bytes, int]:
    """Return the lines that `read` decodes, as bytes, and the offset after them. Raises OSError like `read`."""
    try:
        with open_regular(path) as file:
            file.seek(offset)
            data = file.read(limit) + (file.readline() if limit >= 0 else b"")
    except FileNotFoundError:
        return b"", offset
    end = data.rfind(b"\n") + 1
    if decode(data[end:]) is not None:  # complete except for its newline
        end = len(data)
    return data[:end], offset + end


def decoded(data: bytes) -> Iterator[Line | None]:
    """Yield the lines in `data` one after the other, None for a damaged one."""
    for line in _raw_lines(data):
        values = decode(line)
        yield None if values is None else Line(values)


def stretches(path: Path, offset: int = 0) -> Iterator[tuple[list[Line], int, int]]:
    """Yield the results of `read`, STRETCH_BYTES bytes at a time, to the end. Raises OSError like `read`."""
    while True:
        lines, end, damaged = read(path, offset, STRETCH_BYTES)
        if end == offset:
            return
        yield lines, end, damaged
        offset = end


def tail(path: Path, size: int = 65536) -> list[Line]:
    """Return the lines in the last `size` bytes, without damaged ones. A missing file has no lines."""
    return lines_in(raw_tail(path, size))


def raw_tail(path: Path, size: int = 65536, *, newest: Mapping[str, int] | None = None) -> list[bytes]:
    """Return the lines in the last `size` bytes for `lines_in`. A missing file has no lines.

    `newest`: kind -> count, for frequent kinds; of the lines of such a kind only the first and the last `count` remain.
    """
    try:
        data, start = read_regular(path, size)
    except FileNotFoundError:
        return []
    if start:
        data = data[data.find(b"\n") + 1 :] if b"\n" in data else b""
    lines = _raw_lines(data)
    for kind, count in (newest or {}).items():
        lines = _thin(lines, b'"kind":"%s"' % kind.encode(), count)
    return lines


def lines_in(raw: Iterable[bytes]) -> list[Line]:
    """Return the lines, without damaged ones."""
    return [Line(values) for line in raw if (values := decode(line)) is not None]


def encode(values: Mapping[str, Any]) -> bytes:
    """Return a JSON object as a line of a journal, including the newline."""
    body = _ENCODER.encode(values).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


def decode(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object in a line (given without its newline), None if the line is damaged."""
    head, body = line[:9], line[9:]
    if head != b"%08x " % zlib.crc32(body):
        return None
    try:
        values, end = _DECODER.raw_decode(body.decode("ascii"))
    except (ValueError, RecursionError):
        return None
    return values if end == len(body) and isinstance(values, dict) and _has_envelope(values) else None


def _has_envelope(values: Mapping[str, Any]) -> bool:
    n, t, kind = values.get("n"), values.get("t"), values.get("kind")
    return isinstance(n, int) and isinstance(t, (float, int)) and isinstance(kind, str)


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def _raw_lines(data: bytes) -> list[bytes]:
    # A write that ended just before its newline makes the next event start with one, which leaves an empty line.
    return [line for line in data.split(b"\n") if line]


def _thin(lines: list[bytes], mark: bytes, count: int) -> list[bytes]:
    """Return `lines` without those with `mark` near their start, but keep the first and the last `count` of these."""
    marked = [i for i, line in enumerate(lines) if line.find(mark, 0, _HEAD_BYTES) >= 0]
    dropped = set(marked[1:-count])
    return [line for i, line in enumerate(lines) if i not in dropped] if dropped else lines
