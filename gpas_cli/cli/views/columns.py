"""Tables of many rows for a terminal. Each cell is measured once and printed verbatim.

It is worth its lines: a thousand rows of five columns take 0.03 s of CPU time, and 0.70 s as a table of rich, which
measures, wraps and pads every cell as a document (medians of seven, in turns). Columns that do not fit are left out or
continue in a further block; rich would cut them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import zip_longest

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from gpas_cli.structure import Frozen
from gpas_cli.words import printable

Cell = str | tuple[str, str]  # text; or text and its style
_GAPS = (2, 1)  # blanks between two columns: usually, and on a narrow terminal
_LEAST_FIRST = 12  # characters; the least width to which the first column is wrapped
_LEAST_LAST = 24  # characters; the least width to which the last column is wrapped
_GOOD_LAST = 40  # columns are dropped until the last is this wide
_BOLD = Style(bold=True)


class Columns(Frozen):
    """Rows under dim headers, with `title` above. Columns named in `right` are aligned right.

    Where a terminal is too narrow, columns in `droppable` are left out, in that order; then there is less padding; then
    the first and last column are wrapped, or without `wrapped` cut; then the other columns continue in further blocks,
    the first repeated. Numbers are never cut.
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    right: frozenset[str] = frozenset()
    droppable: Sequence[str] = ()
    wrapped: bool = True

    @classmethod
    def of(
        cls, rows: Sequence[Mapping[str, Cell]], right: Collection[str] | None = None, droppable: Sequence[str] = ()
    ) -> Columns:
        """Return a table of rows by header, without the columns that are empty in every row.

        By default all columns but the first are aligned right.
        """
        names = [name for name in rows[0] if any(_text(row[name]) for row in rows)]
        aligned = frozenset(names[1:] if right is None else right)
        return cls(names, [[row[name] for name in names] for row in rows], "", aligned, droppable)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.title:
            yield from (Segment(printable(self.title), _BOLD), Segment.line())
        yield from self.fitting(options.max_width)._body(console, options.max_width)

    def fitting(self, room: int) -> Columns:
        """Return the table without the droppable columns for which `room` is too narrow."""
        kept = list(range(len(self.headers)))
        widths = self._natural
        for header in self.droppable:
            # The last column may be narrower than its natural width.
            over = max(0, widths[kept[-1]] - _GOOD_LAST)
            if sum(widths[i] for i in kept) - over + _GAPS[0] * (len(kept) - 1) <= room:
                break
            kept = [i for i in kept if self.headers[i] != header]
        return self if len(kept) == len(self.headers) else self._only(kept)

    def _only(self, kept: Sequence[int]) -> Columns:
        rows = [[row[i] for i in kept] for row in self.rows]
        return replace(self, headers=[self.headers[i] for i in kept], rows=rows)

    def _body(self, console: Console, room: int) -> Iterator[Segment]:
        least = list(self._natural)
        least[0] = min(least[0], _LEAST_FIRST)
        if self.headers[-1] not in self.right:
            least[-1] = min(least[-1], _LEAST_LAST)
        gap = min(_GAPS, key=lambda gap: len(_blocks(least, room, gap)))
        for block in _blocks(least, room, gap):
            part = self if len(block) == len(least) else self._only(block)
            widths = part._widths(room, gap)
            for row in ([(header, "dim") for header in part.headers], *part.rows):
                yield from part._line(console, row, widths, gap)

    @cached_property
    def _natural(self) -> tuple[int, ...]:
        """The natural width of each column."""
        texts = ({header, *(_text(row[i]) for row in self.rows)} for i, header in enumerate(self.headers))
        return tuple(max(map(_width, column)) for column in texts)

    def _widths(self, room: int, gap: int) -> list[int]:
        *others, last = self._natural
        least_last = last if self.headers[-1] in self.right else min(last, _LEAST_LAST)
        over = sum(others) + gap * len(others) + least_last - room
        if over > 0 and others:
            others[0] = max(min(others[0], _LEAST_FIRST), others[0] - over)
        left = max(least_last, room - sum(others) - gap * len(others))
        return [*others, min(last, left)]

    def _line(self, console: Console, row: Sequence[Cell], widths: Sequence[int], gap: int) -> Iterator[Segment]:
        texts = [[_text(cell)] for cell in row]
        for i in (0, -1):
            texts[i] = self._folded(console, texts[i][0], widths[i])
        for line in zip_longest(*texts, fillvalue=""):
            for i, (header, cell, text) in enumerate(zip(self.headers, row, line, strict=True)):
                right, last = header in self.right, i == len(row) - 1
                shown = text if last and not right else _fit(text, widths[i], right)
                style = None if isinstance(cell, str) else console.get_style(cell[1])
                yield Segment(shown if last else shown + " " * gap, style)
            yield Segment.line()

    def _folded(self, console: Console, text: str, width: int) -> list[str]:
        """Return the lines of a cell that may be wrapped."""
        if _width(text) <= width and "\n" not in text:
            return [text]
        return _wrap(console, text, width) if self.wrapped else [_fit(" ".join(text.split()), width, False)]


def _blocks(widths: Sequence[int], room: int, gap: int) -> list[list[int]]:
    """Return the columns of each block that fits into `room`; every block begins with the first column."""
    blocks = [[0]]
    for column in range(1, len(widths)):
        if len(blocks[-1]) > 1 and sum(widths[i] + gap for i in (*blocks[-1], column)) - gap > room:
            blocks.append([0])
        blocks[-1].append(column)
    return blocks


def _text(cell: Cell) -> str:
    return printable(cell if isinstance(cell, str) else cell[0])


def _width(text: str) -> int:
    return len(text) if text.isascii() else cell_len(text)


def _fit(text: str, width: int, right: bool) -> str:
    space = width - _width(text)
    if space < 0:
        return f"{set_cell_size(text, width - 1)}…"
    return " " * space + text if right else text + " " * space


def _wrap(console: Console, text: str, width: int) -> list[str]:
    text = re.sub(rf"\S{{{width + 1},}}", lambda found: _broken(found[0], width), text)
    return [line.plain.rstrip() for line in Text(text).wrap(console, width, overflow="fold")] or [""]


def _broken(word: str, width: int) -> str:
    """Return a long word, such as the name of a cell, with line breaks after its punctuation where there is any."""
    lines = [""]
    for part in re.split(r"(?<=[-/+_.,=])", word):
        if lines[-1] and len(part) <= width < len(lines[-1] + part):
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)
