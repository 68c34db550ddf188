"""One long text as many documents, so that it can be split into training and validation text.

A piece ends at the first blank line after `length` characters; where none follows within another `length`, at the end
of a line there; else at white space; else after exactly `length` characters. The pieces joined are the text. What the
pieces are follows from the text and its size alone, so every machine makes the same ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from gpas_cli.errors import DataError

# A .txt file of more than so many bytes is divided; the only file of a corpus from fewer on.
DIVIDED_FROM, ALONE_FROM = 2**20, 2**15
# About so many pieces of a small file, so that about ten of them are validation text; larger ones of a large file.
PIECES, SHORTEST, LONGEST = 128, 512, 16_384
_READ = 2**20
_BLANK_LINE, _LINE_END, _SPACE = (re.compile(text) for text in (r"\n[ \t\r]*\n\s*", r"\n", r"\s"))


def divided(path: Path, *, alone: bool) -> bool:
    """Whether a .txt file is divided; `alone`: it is the only file of its corpus. Raises DataError."""
    try:
        return path.stat().st_size > (ALONE_FROM if alone else DIVIDED_FROM)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def length_of(size: int) -> int:
    """The length of a piece, in characters, for a file of `size` bytes."""
    return max(SHORTEST, min(LONGEST, size // PIECES))


def pieces_of(path: Path) -> Iterator[str]:
    """The pieces of a file of UTF-8 text, in order; at most a few MB of it are in memory.

    Raises DataError when it cannot be read.
    """
    try:
        length = length_of(path.stat().st_size)
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield from pieces(iter(lambda: file.read(_READ), ""), length)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as UTF-8 text: {error}") from error


def pieces(chunks: Iterator[str], length: int) -> Iterator[str]:
    """The pieces of the joined `chunks`, `length` to 2 `length` characters each; the last may be shorter."""
    text, start = "", 0
    for chunk in chunks:
        text, start = text[start:] + chunk, 0
        # A blank line may have more than one line end, the rest of which is still to come.
        while len(text) - start > 3 * length:
            end = _end(text, start + length, start + 2 * length)
            yield text[start:end]
            start = end
    while start < len(text):
        end = _end(text, start + length, start + 2 * length) if len(text) - start > 2 * length else len(text)
        yield text[start:end]
        start = end


def _end(text: str, earliest: int, latest: int) -> int:
    """Where the piece ends that may end between the two places."""
    for boundary in (_BLANK_LINE, _LINE_END, _SPACE):
        if found := boundary.search(text, earliest, latest):
            return found.end()
    return earliest
