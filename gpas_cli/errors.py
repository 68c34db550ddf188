"""The errors a user can meet, and the exit code each one ends the program with.

    GpasError                     2   one clear message; never a traceback
    ├── InvalidExperiments        2   problems in experiments.yaml or in a cell, all of them at once
    ├── UnknownCell               2   a name or key prefix that fits no cell, or several
    ├── StoreError                2   the database is missing, older, locked or unwritable
    └── DataError                 2   a corpus or tokenizer cannot be had

What every exit code means is declared once, in `Exit`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum


class Exit(IntEnum):
    """The exit codes of all commands, with their meaning."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> Exit:
        made = int.__new__(cls, code)
        made._value_, made.meaning = code, meaning
        return made

    def __str__(self) -> str:
        return f"{int(self)} {self.meaning}"

    DONE = 0, "done"
    USAGE = 2, "usage: the command or a file that it reads must be changed; nothing was started"
    INCOMPLETE = 3, "incomplete: some cells have no result, or the user answered no"
    FAILED = 4, "failed or damaged: a cell failed, or a check found a problem"


class GpasError(Exception):
    """A user's mistake or a fact of the machine; `str()` of it is the whole message."""

    exit_code = Exit.USAGE


class UnknownCell(GpasError):
    """A name or key prefix that fits no cell, or more than one."""


class StoreError(GpasError):
    """The results database cannot be used as asked."""


class DataError(GpasError):
    """A corpus, tokenizer or token cache cannot be had."""


@dataclass(frozen=True)
class Problem:
    """One thing wrong in a specification.

    `path` locates the value inside the mapping it came from, e.g. ("gate", "activation").
    `where` is filled in by whoever knows the file: "experiments.yaml:12:5".
    """

    path: tuple[str | int, ...]
    message: str
    where: str = ""

    def __str__(self) -> str:
        dotted = ".".join(str(part) for part in self.path)
        head = ": ".join(part for part in (self.where, dotted) if part)
        return f"{head}: {self.message}" if head else self.message


class InvalidExperiments(GpasError):
    """Everything that is wrong in a specification, collected before anything runs."""

    def __init__(self, problems: Sequence[Problem]):
        self.problems = tuple(dict.fromkeys(problems))
        super().__init__("\n".join(str(problem) for problem in self.problems))


def nearest(word: object, valid: Iterable[str]) -> str:
    """A hint naming the valid word closest to `word`, or all valid words when none is close."""
    valid = [str(v) for v in valid]
    close = difflib.get_close_matches(str(word).lower(), valid, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"valid: {', '.join(valid)}" if valid else "nothing is valid here"
