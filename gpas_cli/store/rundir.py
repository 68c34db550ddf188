"""Run directories: `runs/<key[:2]>/<key>/<NNN>/` holds the files of attempt NNN at the stage with content key `key`.

attempt.json   the record of what to run; written before the directory appears, then never changed
journal.jsonl  the events of the attempt (`store.journal`)
log.txt        the output of the job
exit.json      how the process ended, if that was observed
checkpoints/   one folder per checkpoint (`gpas_cli.checkpoints`)

`gpas forget` renames NNN to .forgotten-NNN: no reader sees the attempt any more, and its number is not used again.
"""

import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from gpas_cli.checkpoints import newest_first
from gpas_cli.errors import StoreError
from gpas_cli.files import overlapped, parse_json, read_regular, replace_file
from gpas_cli.store.records import AttemptRecord, ExitRecord
from gpas_cli.structure import Frozen, Record, from_mapping, to_mapping

_R = TypeVar("_R", bound=Record)
Listing = tuple[list[str], frozenset[str]]  # what `look_in` returns

_KEY = re.compile(r"[0-9a-f]{16}")
_PREFIX = re.compile(r"[0-9a-f]{2}")
_NUMBER = re.compile(r"[0-9]{3,9}")  # fits the 32-bit column of the database
FORGOTTEN = ".forgotten-"
JOURNAL = "journal.jsonl"
IMPORTED = "imported.json"  # where a copy of another project's attempt comes from


class AttemptDir(Frozen):
    """The directory of an attempt. Only attempt.json always exists; the other files may be missing."""

    path: Path

    @property
    def number(self) -> int:
        return int(self.path.name.removeprefix(FORGOTTEN))

    @property
    def key(self) -> str:
        return self.path.parent.name

    @property
    def relative(self) -> str:
        """The path relative to `runs`, with slashes, as in the database."""
        return "/".join(self.path.parts[-3:])

    @property
    def attempt_path(self) -> Path:
        return self.path / "attempt.json"

    @property
    def journal_path(self) -> Path:
        return self.path / JOURNAL

    @property
    def log_path(self) -> Path:
        return self.path / "log.txt"

    @property
    def exit_path(self) -> Path:
        return self.path / "exit.json"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def read_attempt(self) -> AttemptRecord:
        """Return the content of attempt.json. Raises OSError if it cannot be read, StoreError if it is damaged."""
        return read_record(AttemptRecord, self.attempt_path)

    def read_exit(self) -> ExitRecord:
        """Return the content of exit.json. Raises the same errors as `read_attempt`."""
        return read_record(ExitRecord, self.exit_path)


def stage_dir(runs: Path, key: str) -> Path:
    """Return the folder of the attempts at the stage `key` (16 hex digits). The folder may not exist.

    Raises ValueError if `key` is not a content key.
    """
    if not _KEY.fullmatch(key):
        raise ValueError(f"not a content key: {key!r}")
    return runs.joinpath(key[:2], key)


def attempts(runs: Path, key: str) -> list[AttemptDir]:
    """Return the attempts at a stage, oldest first."""
    stage = stage_dir(runs, key)
    return [AttemptDir(stage / name) for name in look_in(stage)[0]]


def forgotten_attempts(runs: Path, key: str) -> list[AttemptDir]:
    """Return the attempts at a stage that have been forgotten, oldest first."""
    stage = stage_dir(runs, key)
    names = (name.removeprefix(FORGOTTEN) for name in look_in(stage)[1] if name.startswith(FORGOTTEN))
    numbers = sorted((name for name in names if _NUMBER.fullmatch(name)), key=int)
    return [AttemptDir(stage / f"{FORGOTTEN}{name}") for name in numbers]


def look_in(stage: Path) -> Listing:
    """Return the names of the attempts in the folder of a stage, oldest first, and those of what else is there: files
    and the folders of forgotten attempts. One listing serves both."""
    try:
        with os.scandir(stage) as entries:
            folders = {entry.name: _is_folder(entry) for entry in entries}
    except (FileNotFoundError, NotADirectoryError):
        return [], frozenset()
    numbers = sorted((name for name, is_dir in folders.items() if is_dir and _NUMBER.fullmatch(name)), key=int)
    others = frozenset(n for n, is_dir in folders.items() if not is_dir or n.startswith(FORGOTTEN))
    return numbers, others


def checkpoints_of(runs: Path, key: str) -> list[Path]:
    """Return the checkpoints of all attempts at a stage, most updates first, then newest attempt first."""
    return newest_first(attempt.checkpoints for attempt in reversed(attempts(runs, key)))


def all_attempts(runs: Path, skipped: list[str] | None = None) -> Iterator[AttemptDir]:
    """Yield every attempt under `runs`, by key and number; folders with other names are ignored.

    A folder that cannot be read is skipped, and its path is added to `skipped` with the reason.
    """
    skipped = [] if skipped is None else skipped
    for key in all_keys(runs, skipped):
        stage = stage_dir(runs, key)
        yield from (AttemptDir(stage / name) for name in attempt_names(str(stage), skipped))


def attempt_names(stage: str, skipped: list[str]) -> list[str]:
    """Return the names of the attempts in the folder of a stage, oldest first; `skipped` is as for `all_attempts`."""
    return sorted(_folders(stage, _NUMBER, skipped), key=int)


def all_stages(runs: Path) -> Iterator[Path]:
    """Yield the folder of every stage under `runs`, by key."""
    return (stage_dir(runs, key) for key in all_keys(runs))


def all_keys(runs: Path, skipped: list[str] | None = None) -> Iterator[str]:
    """Yield the key of every stage under `runs`, sorted; `skipped` is as for `all_attempts`."""
    unread = [] if skipped is None else skipped

    def keys(prefix: str) -> list[str]:
        return sorted(key for key in _folders(f"{runs}/{prefix}", _KEY, unread) if key.startswith(prefix))

    yield from chain.from_iterable(overlapped(keys, sorted(_folders(str(runs), _PREFIX, unread))))


def is_gone(path: Path) -> bool:
    """Return whether `path` does not exist. A path that cannot be examined (permissions, a broken disk) is not gone."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def create_attempt(runs: Path, asked: AttemptRecord, fill: Callable[[Path], None] | None = None) -> AttemptDir:
    """Create the next attempt at the stage `asked.key`, with its number in attempt.json, and return its directory.

    `fill` is called with the folder before it gets its name, to put further files there.

    A single rename makes the complete directory appear under its number. It fails if another process has created that
    number meanwhile, so concurrent callers get different numbers, and no reader sees an attempt without its
    attempt.json. Raises OSError.
    """
    stage = stage_dir(runs, asked.key)
    stage.mkdir(parents=True, exist_ok=True)
    aside = stage / f".new-{os.urandom(8).hex()}"
    aside.mkdir()
    try:
        if fill:
            fill(aside)
        while True:
            taken = (*attempts(runs, asked.key), *forgotten_attempts(runs, asked.key))
            number = 1 + max((existing.number for existing in taken), default=0)
            write_record(aside / "attempt.json", replace(asked, number=number))
            target = stage / f"{number:03d}"
            if _rename(aside, target):
                return AttemptDir(target)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def read_record(cls: type[_R], path: Path) -> _R:
    """Return the record of class `cls` in the file `path`.

    Raises OSError if it cannot be read, StoreError with the name of the field if one is missing or has the wrong type.
    """
    return from_mapping(cls, read_json(path), path)


def write_record(path: Path, record: Record) -> None:
    """Replace `path` by a record as JSON, atomically and durably. Raises OSError."""
    write_json(path, to_mapping(record))


def write_json(path: Path, value: Any, *, indent: int | None = 1) -> None:
    """Replace `path` by `value` as JSON, atomically and durably. Raises OSError.

    With `indent=None` the JSON is on one line, and encoding is ten times as fast.
    """
    replace_file(path, json.dumps(value, indent=indent, ensure_ascii=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in `path`. Raises OSError if it cannot be read, StoreError if it is not a JSON object."""
    content, _ = read_regular(path)
    try:
        value = parse_json(content)
    except ValueError as error:
        raise StoreError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise StoreError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def _folders(path: str, name: re.Pattern[str], skipped: list[str]) -> list[str]:
    """Return the names of the folders in `path` that match."""
    try:
        with os.scandir(path) as entries:
            return [e.name for e in entries if name.fullmatch(e.name) and _is_folder(e, skipped)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        skipped.append(f"{path}: {error.strerror}")
        return []


def _is_folder(entry: os.DirEntry[str], skipped: list[str] | None = None) -> bool:
    """Return whether the entry is a folder or a link to one. A broken or circular link is neither."""
    try:
        return entry.is_dir()
    except OSError as error:
        if skipped is not None:
            skipped.append(f"{entry.path}: {error.strerror}")
        return False


def _rename(source: Path, target: Path) -> bool:
    """Rename `source` to `target`; return False if a non-empty directory exists there."""
    try:
        source.rename(target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True
