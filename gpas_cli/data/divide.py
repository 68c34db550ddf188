"""Divide one long text into many documents, so that it can be split into training and validation text.

A piece ends at the first blank line after `length` characters; if none follows within another `length`, at a line end;
else at white space; else after exactly `length` characters. The concatenated pieces are the text. They depend only on
the text and its size, so every machine divides a text in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from gpas_cli.errors import DataError

# A .txt file is divided if it has more bytes than this, or if it is the only file of its corpus, than the second.
DIVIDED_BYTES = 2**20
DIVIDED_BYTES_ALONE = 2**15
# A small file is cut into about this many pieces, about ten of them validation text; a large file into longer pieces.
PIECES = 128
SHORTEST_CHARACTERS = 512
LONGEST_CHARACTERS = 16_384
_READ_CHARACTERS = 2**20
_BLANK_LINE = re.compile(r"\n[ \t\r]*\n\s*")
_LINE_END = re.compile(r"\n")
_SPACE = re.compile(r"\s")


def is_divided(path: Path, *, alone: bool) -> bool:
    """Return whether a .txt file is divided; `alone`: it is the only file of its corpus. Raises DataError."""
    try:
        return path.stat().st_size > (DIVIDED_BYTES_ALONE if alone else DIVIDED_BYTES)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def length_of(size: int) -> int:
    """Return the length of a piece in characters, for a file of `size` bytes."""
    return max(SHORTEST_CHARACTERS, min(LONGEST_CHARACTERS, size // PIECES))


def pieces_of(path: Path) -> Iterator[str]:
    """Yield the pieces of a UTF-8 file in order, with at most a few MB of it in memory.

    Raises DataError if it cannot be read.
    """
    try:
        length = length_of(path.stat().st_size)
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield from pieces(iter(lambda: file.read(_READ_CHARACTERS), ""), length)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as UTF-8 text: {error}") from error


def pieces(chunks: Iterator[str], length: int) -> Iterator[str]:
    """Yield the pieces of the concatenated `chunks`, of `length` to 2 `length` characters; the last may be shorter."""
    text = ""
    start = 0
    for chunk in chunks:
        text = text[start:] + chunk
        start = 0
        # Three lengths: the white space of a blank line may continue in the next chunk.
        while len(text) - start > 3 * length:
            end = _end(text, start + length, start + 2 * length)
            yield text[start:end]
            start = end
    while start < len(text):
        end = _end(text, start + length, start + 2 * length) if len(text) - start > 2 * length else len(text)
        yield text[start:end]
        start = end


def _end(text: str, earliest: int, latest: int) -> int:
    """Return where the piece ends, between `earliest` and `latest` at the best boundary there."""
    for boundary in (_BLANK_LINE, _LINE_END, _SPACE):
        if found := boundary.search(text, earliest, latest):
            return found.end()
    return earliest
