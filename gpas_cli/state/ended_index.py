"""An index of stages that have ended, so that their attempts are not read again: `runs/.ended/<key[:2]>*.json`.

XX.json          the status that the attempts at a stage show
XX-hours.json    what its attempts have used
XX-results.json  its state, and its result as a database that has read its journals has it (`report.recorded`)

An entry contains the names of the files that decide it, and a hash of what `stat` returned for the stage's folder and
for these files before they were read. It is used only if `stat` returns the same inodes, sizes, modification times and
change times again, and the same files are missing. No program can set a change time, so it also changes when a file is
restored from a backup with its old modification time. The files that decide

- the status: the journals of the attempts from the newest to the one with the result (of a stage without a result, of
  all) and, without a result, the other files of the newest attempt;
- the hours: the attempt.json and the exit.json of each attempt, and the journal if the exit.json has no time;
- the result: all journals, because scores and spikes of every attempt count.

Further rules:

- only what an outcome or an exit.json has decided is indexed; locks, claims and requests to cancel are examined again;
- a stage with a request to run it again is not indexed, because the request may be edited in place;
- files that changed within the last SETTLED_SECONDS before the look began are not indexed, because another change at
  the same tick of the clock, or during the look, would not be seen;
- files that other users may not read are checked for permission;
- on a network file system each file is opened, which makes the client ask the server for its times;
- on file systems without lasting inodes and change times (SMB, FUSE) there is no index.

The index may be deleted at any time. Each file is replaced as a whole and has a checksum; of two processes that write
the same file the last wins, and what the other one added is read from the attempts once more. A user who may not write
to `runs` uses the index and does not extend it.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import gpas_cli
from gpas_cli import file_systems
from gpas_cli.files import replace_file
from gpas_cli.state import cancellation, rerun
from gpas_cli.state.progress import Progress
from gpas_cli.state.status import RESULTS, UNREADABLE, StageStatus
from gpas_cli.state.usage import Usage, exit_time
from gpas_cli.store.rundir import JOURNAL, AttemptDir, is_number, look_in

FOLDER = ".ended"
SETTLED_SECONDS = 10.0
FORMAT = [5, gpas_cli.__version__]  # another version may word the evidence differently
OPENED = frozenset({"nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "panfs"})  # network file systems with an index

ENDED = ("outcome", "exit")  # the evidence of a state that is indexed
NEWEST = ("attempt.json", "exit.json", "log.txt", cancellation.FILE)  # these also decide an attempt without a result

STATES, HOURS, RESULTS_OF = "", "-hours", "-results"  # at the end of the names of the files

Seen = tuple[int, int, int, int]  # inode, size, modification time and change time in nanoseconds
NOT_THERE = (0, 0, 0, 0)
Known = tuple[StageStatus, frozenset[str]]  # a status, and the files in the stage's folder that are not attempts
Files = list[tuple[str, Seen]]  # by path in the stage's folder, without spaces


@dataclass
class Proof:
    """What `stat` returned for a stage's folder and the files of its attempts, newest first, before they were read."""

    folder: Seen
    journals: list[tuple[int, str, Seen]] = field(default_factory=list)  # with the number of the attempt
    others: Files = field(default_factory=list)  # of the newest attempt


class EndedIndex:
    """The index of the stages under `runs`, for one look at them. Nothing is written before `save`.

    The folder of a stage is examined by `find`, and not again by the next `find_usage` of the same look.
    """

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self._now = time.time()
        self._shards: dict[str, dict[str, Any]] = {}  # by the name of the file
        self._changed: dict[str, dict[str, Any]] = {}  # likewise, the new entries by key; None removes one
        self._folders: dict[str, Seen] = {}  # what `find` has seen of the stages' folders

    def find(self, key: str) -> Known | None:
        """Return the status that the attempts at a stage show, with the names of the files beside them.

        None if the stage is not indexed or has changed.
        """
        entry = self._entry(key, STATES)
        if entry is None:
            return None
        folder = self._folder(key)
        try:
            seen = self._seen(folder)
            if self._holds(folder, seen, entry[0], entry[1]):
                self._folders[key] = seen
                return _known(folder, *entry[2:])
        except UNREADABLE:
            pass  # an entry that another program has written
        self._drop(key, STATES)
        return None

    def find_usage(self, key: str) -> Usage | None:
        """Return the usage of the attempts at a stage, None if it is not indexed or has changed."""
        entry = self._entry(key, HOURS)
        if entry is None:
            return None
        folder = self._folder(key)
        try:
            seen = self._folders.pop(key, None) or self._seen(folder)
            if self._holds(folder, seen, entry[0], entry[1]):
                return Usage(*entry[2:])
        except UNREADABLE:
            pass
        self._drop(key, HOURS)
        return None

    def find_result(self, key: str) -> Sequence[Any] | None:
        """Return what `keep_result` was given for a stage, None if it is not indexed or has changed.

        Only the journals decide it: locks, claims and requests to cancel are not part of it.
        """
        entry = self._entry(key, RESULTS_OF)
        if entry is None:
            return None
        folder = self._folder(key)
        try:
            paths, proof, found = entry
            if type(found) is list and self._holds(folder, self._seen(folder), paths, proof):
                return found
        except UNREADABLE:
            pass
        self._drop(key, RESULTS_OF)
        return None

    def _entry(self, key: str, part: str) -> Any:
        name = key[:2] + part
        shard = self._shards.get(name)
        if shard is None:
            shard = self._shards[name] = _read(self._path(name)) if self._stat else {}
        return shard.get(key)

    def _drop(self, key: str, part: str) -> None:
        self._changed.setdefault(key[:2] + part, {})[key] = None

    def _folder(self, key: str) -> str:
        return f"{self._root}/{key[:2]}/{key}"

    def proof(self, key: str) -> Proof | None:
        """Return the proof of a stage's folder, before it is listed; None without an index or a folder."""
        seen = self._seen(self._folder(key)) if self._stat else NOT_THERE
        return Proof(seen) if seen != NOT_THERE else None

    def look_at(self, proof: Proof | None, attempts: Sequence[AttemptDir]) -> None:
        """Add the files of a stage's attempts to its proof, before they are read."""
        if proof is None or not attempts:
            return
        for attempt in reversed(attempts):
            seen = self._seen(str(attempt.journal_path))
            proof.journals.append((attempt.number, f"{attempt.path.name}/{JOURNAL}", seen))
        newest = attempts[-1].path
        proof.others = [(f"{newest.name}/{name}", self._seen(f"{newest}/{name}")) for name in NEWEST]

    def keep(self, key: str, status: StageStatus, files: frozenset[str], proof: Proof | None) -> None:
        """Index the status that the attempts at a stage show, if it cannot change unless the proof does.

        `files` are the names in the stage's folder other than attempts. A number among them is a link to nothing, which
        may become an attempt without a change of the folder.
        """
        if proof is None or status.source not in ENDED or status.attempt is None or not status.age:
            return  # an age of 0 is that of events in the future, by this host's clock
        ended = status.state in RESULTS
        deciding: Files = [(path, seen) for n, path, seen in proof.journals if n >= status.attempt or not ended]
        self._keep(key, STATES, files, proof.folder, deciding + ([] if ended else proof.others), *_plain(status, files))

    def used_files(self, attempts: Sequence[AttemptDir]) -> Files:
        """Return what `stat` returns for the files that show what attempts have used, before they are read."""
        found = [(attempt.path, name) for attempt in attempts for name in _used_names(attempt)]
        return [(f"{path.name}/{name}", self._seen(f"{path}/{name}")) for path, name in found]

    def keep_usage(self, key: str, usage: Usage, files: frozenset[str], proof: Proof | None, used: Files) -> None:
        """Index what the attempts at a stage have used; none of them is running. `files` are as for `keep`."""
        if proof is not None:
            self._keep(key, HOURS, files, proof.folder, used, usage.seconds, usage.gpu_hours, usage.core_hours)

    def keep_result(self, key: str, found: Sequence[Any]) -> None:
        """Index what was read of a stage's state and result, since this look began, from all of its journals."""
        proof = self.proof(key)
        tries, files = look_in(self.runs, key)
        self.look_at(proof, tries)
        if proof is not None and proof.journals:
            journals: Files = [(path, seen) for _, path, seen in proof.journals]
            self._keep(key, RESULTS_OF, files, proof.folder, journals, found)

    def _keep(self, key: str, part: str, files: frozenset[str], folder: Seen, deciding: Files, *said: Any) -> None:
        numbers = [number for seen in (folder, *(seen for _, seen in deciding)) for number in seen]
        settled = max(numbers[3::4]) / 1e9 < self._now - SETTLED_SECONDS
        if settled and rerun.FILE not in files and not any(map(is_number, files)):
            paths = " ".join(path for path, _ in deciding)
            self._changed.setdefault(key[:2] + part, {})[key] = [paths, hash(tuple(numbers)), *said]

    def save(self) -> None:
        """Write what is new. An index that cannot be written is left as it is."""
        for name, changed in self._changed.items():
            path = self._path(name)
            entries = {**_read(path), **changed}
            with suppress(OSError):
                path.parent.mkdir(exist_ok=True)
                body = json.dumps([FORMAT, {key: entry for key, entry in entries.items() if entry}]).encode()
                replace_file(path, b"%08x %s" % (zlib.crc32(body), body), durable=False)
        self._changed = {}
        self._shards = {}  # they are large

    def _path(self, name: str) -> Path:
        return self.runs / FOLDER / f"{name}.json"

    @cached_property
    def _root(self) -> str:
        return str(self.runs)

    @cached_property
    def _stat(self) -> Callable[[str], os.stat_result] | None:
        """Return the function that detects changes of a file, None on a file system where none does."""
        kind = file_systems.type_of(self.runs)
        return os.stat if kind in file_systems.LOCAL else _stat_opened if kind in OPENED else None

    def _seen(self, path: str) -> Seen:
        """Return what `stat` returns, NOT_THERE for a file that is not there or that this user may not read."""
        try:
            found = self._stat(path) if self._stat else None
        except OSError:
            return NOT_THERE
        if found is None or (found.st_mode & 0o444 != 0o444 and not os.access(path, os.R_OK)):
            return NOT_THERE
        return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    def _holds(self, folder: str, seen: Seen, paths: str, proof: int) -> bool:
        """Return whether `stat` returns the same for a folder, `seen`, and for the files in it."""
        numbers = list(seen)
        for path in paths.split():
            numbers += self._seen(f"{folder}/{path}")
        return hash(tuple(numbers)) == proof


def _used_names(attempt: AttemptDir) -> Iterator[str]:
    """Yield the names of the files that show what an attempt has used."""
    yield from ("attempt.json", "exit.json")
    try:
        timed = exit_time(attempt) is not None
    except UNREADABLE:
        timed = False
    if not timed:
        yield JOURNAL


def forget_results(runs: Path) -> None:
    """Delete the indexed results, because the database may have other ones now."""
    for path in (runs / FOLDER).glob(f"*{RESULTS_OF}.json"):
        with suppress(OSError):
            path.unlink()


def _plain(status: StageStatus, files: Iterable[str]) -> tuple[Any, ...]:
    """Return the fields of a status for `_known`, with the time of the evidence instead of its age."""
    said = {name: own for name in _SAID if (own := getattr(status, name)) != getattr(_MISSING, name)}
    progress = [getattr(status.progress, name) for name in _PROGRESS] if status.progress else None
    return status.attempt, time.time() - (status.age or 0.0), said, progress, sorted(files)


def _known(
    folder: str, number: int, moment: float, said: Mapping[str, Any], progress: Sequence[Any], files: Sequence[str]
) -> Known:
    made = object.__new__(StageStatus)  # not by keyword: that takes five times as long
    own = made.__dict__
    own.update(_DEFAULTS)
    own.update(said)
    own["attempt"] = number
    own["age"] = max(0.0, time.time() - moment)
    own["folder"] = f"{folder}/{number:03d}"
    if progress:
        own["progress"] = _progress(progress)
    return made, frozenset(files) if files else _NO_FILES


def _progress(values: Sequence[Any]) -> Progress:
    made = object.__new__(Progress)
    made.__dict__.update(zip(_PROGRESS, values, strict=True))
    made.__dict__["losses"] = tuple(made.losses)
    return made


_MISSING = StageStatus(state="", evidence="")
_DEFAULTS = vars(_MISSING)
_SAID = ("state", "evidence", "outcome", "cause", "metrics", "source", "submission", "signal", "stands", "grid")
_PROGRESS = tuple(own.name for own in fields(Progress))
_NO_FILES: frozenset[str] = frozenset()


def _read(path: Path) -> dict[str, Any]:
    """Return the entries in a file of the index, {} if it is missing, damaged or of another version."""
    try:
        content = path.read_bytes()
        if content[:9] != b"%08x " % zlib.crc32(content[9:]):
            return {}
        version, entries = json.loads(content[9:])
    except (OSError, ValueError, TypeError, RecursionError):
        return {}
    return entries if version == FORMAT and isinstance(entries, dict) else {}


def _stat_opened(path: str) -> os.stat_result:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)
