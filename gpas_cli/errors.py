"""Exceptions that are shown to the user, each with the exit code of the program, and what errors of files mean.

    GpasError                     2   one clear message, no traceback
    ├── InvalidExperiments        2   problems in experiments.yaml or in a cell, all of them at once
    ├── UnknownCell               2   a name or key prefix that matches no cell, or several
    ├── StoreError                2   the database is missing, outdated, locked or not writable
    └── DataError                 2   a corpus, tokenizer or token cache is unavailable

`Exit` declares the meaning of every exit code. `explain` and `advise` say what is full or read-only, who owns a file,
and how several users can share a project.
"""

from __future__ import annotations

import difflib
import errno
import os
import pwd
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache
from pathlib import Path

from gpas_cli.words import grouped, listed

_MOST_VALID = 24  # names in a hint
_SHARING = (
    "to share a project, give all its users one group: `chgrp -R GROUP DIR; chmod -R g+rwX DIR; "
    "find DIR -type d -exec chmod g+s {} +`, and each of them sets `umask 002` and runs `gpas doctor --trust DIR`"
)
# What to do where nothing can be written or started.
_REMEDIES = {
    errno.EAGAIN: "no further process or thread can be started; raise the limit (`ulimit -u`) or end others",
    errno.ENOSPC: "free space on that file system; `gpas gc` shows what can be deleted",
    errno.EDQUOT: "the disk quota is used up; `gpas gc` shows what can be deleted",
    errno.EROFS: "name a file elsewhere; GPAS_RUNS_DIR, GPAS_CACHE and GPAS_DB do so for runs, cache and database",
}
_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE})


class Exit(IntEnum):
    """The exit codes of all commands and their meanings."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> Exit:
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member

    DONE = 0, "done"
    USAGE = 2, "usage: the command or a file that it reads must be changed; nothing was started"
    INCOMPLETE = 3, "incomplete: some cells have no result, or the user answered no"
    FAILED = 4, "failed or damaged: a cell failed, or a check found a problem"


class GpasError(Exception):
    """A user's mistake or a problem of the machine. `str(error)` is the whole message."""

    exit_code = Exit.USAGE


class UnknownCell(GpasError):
    """A name or key prefix that matches no cell, or more than one."""


class StoreError(GpasError):
    """The results database cannot be used."""


class DataError(GpasError):
    """A corpus, tokenizer or token cache is unavailable."""


@dataclass(frozen=True)
class Problem:
    """One problem in a specification."""

    path: tuple[str | int, ...]  # its place in the mapping, e.g. ("gate", "activation")
    message: str
    where: str = ""
    """The place of the value in the file, e.g. "experiments.yaml:12:5", or the word of the command line that set it,
    such as "optim.lr=abc"."""
    undeclared: tuple[str, str] | None = None
    """The kind and the name of what would have to be declared first, e.g. ("size", "tiny"). If its declaration is
    faulty, this problem only follows from that."""
    alone: bool = False  # the value is wrong whatever the other settings are
    absent: bool = False  # there is no value, and one is required
    unknown: bool = False  # there is no such setting, so that its name is at fault

    def __str__(self) -> str:
        dotted = ".".join(str(part) for part in self.path)
        named = self.where.startswith(f"{dotted}=")
        head = ": ".join(part for part in (self.where, "" if named else dotted) if part)
        return f"{head}: {self.message}" if head else self.message

    def under(self, *path: str | int) -> Problem:
        """Return the problem with `path`, the section or mapping of the value, before its own."""
        return replace(self, path=(*path, *self.path))


class InvalidExperiments(GpasError):
    """All problems in a specification, collected before anything runs."""

    def __init__(self, problems: Sequence[Problem]):
        self.problems = tuple(dict.fromkeys(problems))
        super().__init__("\n".join(str(problem) for problem in self.problems))


def nearest(given: object, valid: Iterable[str]) -> str:
    """Return a hint: what other tools call `given`, the valid name closest to it, or the first _MOST_VALID names."""
    valid = [str(v) for v in valid]
    texts = _other_words().get(str(given).lower().replace("-", "_"), [])
    inside = any(text.partition(".")[0] in valid for text in texts if "." in text)  # a section that has the setting
    names = (name for text in texts for name in (text, text.rpartition(".")[2]) if name in valid)
    usual = "" if inside else next(names, "")
    if not usual and (sentence := next((text for text in texts if "." in text or " " in text), "")):
        return f"write {sentence}"
    if close := usual or closest(given, valid):
        return f"did you mean '{close}'?"
    return f"valid: {listed(valid, _MOST_VALID)}" if valid else "none is declared"


@cache
def _other_words() -> dict[str, list[str]]:
    """Return the words of other tools in other_words.txt, each with what to write here."""
    lines = Path(__file__).with_name("other_words.txt").read_text("utf-8").splitlines()
    rows = (line.partition(" = ") for line in lines if " = " in line)
    return grouped((word, text) for text, _, words in rows for word in words.split())


def closest(given: object, valid: Iterable[str]) -> str:
    """Return the valid name closest to `given` or the only one that begins with it, "" if there is none."""
    word, valid = str(given).lower(), list(valid)
    longer = [name for name in valid if len(word) > 2 and name.startswith(word)]
    return "".join(difflib.get_close_matches(word, valid, n=1, cutoff=0.6) or (longer if len(longer) == 1 else []))


def first_line(error: BaseException) -> str:
    """Return the first line of the exception's message, or its class if the message is empty."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def no_disk(error: BaseException | None) -> bool:
    """Return whether a disk is full, read-only or failing. That is a fault of the machine, so the job is retried."""
    return isinstance(error, OSError) and error.errno in _DISK


def explain(error: Exception) -> str:
    """Return the message of `error`, without its number, with the whole path of the file or folder.

    For a permission error, return the owner and mode of what denies access.
    """
    if not isinstance(error, PermissionError) or not error.filename:
        return _plain(error)
    path = Path(os.fsdecode(error.filename)).absolute()
    obstacle = _obstacle(path)
    try:
        found = obstacle.stat()
    except OSError:
        return _plain(error)
    what = "it" if obstacle == path else str(obstacle)
    whose = f"{what} belongs to {user_name(found.st_uid)} and is {stat.filemode(found.st_mode)}"
    return f"no permission for {path} as {user_name(os.geteuid())}: {whose}"


def advise(error: Exception) -> str:
    """Return `explain(error)`, followed for a permission error by how to share a project.

    A full or read-only file system is followed by what to do, and so is a limit on processes and threads.
    """
    message = explain(error)
    explained = isinstance(error, PermissionError) and message != _plain(error)
    number = errno.EAGAIN if message == "can't start new thread" else getattr(error, "errno", None)
    remedy = _SHARING if explained else _REMEDIES.get(number or 0, "")
    return f"{message}; {remedy}" if remedy else message


def _plain(error: Exception) -> str:
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    if not isinstance(error.filename, str | bytes):
        gone = error.errno == errno.ENOENT  # of no file: of `os.getcwd`
        return "the working directory was deleted; change to another" if gone else error.strerror
    return f"{Path(os.fsdecode(error.filename)).absolute()}: {error.strerror}"


def user_name(number: int) -> str:
    """Return the name of the user with this number, or the number if it has no name."""
    with suppress(KeyError):
        return pwd.getpwuid(number).pw_name
    return f"user {number}"


def _obstacle(path: Path) -> Path:
    """Return what denies access: the first folder above `path` that may not be entered, else `path` or its folder."""
    for folder in reversed(path.parents):
        if not _may(folder, os.X_OK):
            return folder
    return path if path.exists() and not _may(path, os.R_OK | os.W_OK) else path.parent


def _may(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)
