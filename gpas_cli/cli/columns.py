"""Tables of many rows for a terminal: each cell measured once, and drawn as it is.

rich's own table measures, wraps and pads every cell as if it were a document: a thousand rows take half a second.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

Cell = str | tuple[str, str]  # text; or text and its style
BETWEEN = 2
LEAST_FIRST, LEAST_LAST = 12, 24  # the first column is cut, and the last wrapped, no narrower than this
GOOD_LAST = 40  # columns are spared so that the last is this wide
DIM, BOLD, PLAIN = Style(dim=True), Style(bold=True), Style()


@dataclass(frozen=True)
class Columns:
    """Rows under dim headers, `title` above. Those named in `right` are set right, the last column wraps into the room
    that is left, or is cut off there unless `wrapped`. Where a terminal has too little, those in `spared` go, the first
    first, and then the first is cut."""

    headers: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    right: frozenset[str] = frozenset()
    spared: Sequence[str] = ()
    wrapped: bool = True

    @property
    def lines(self) -> int:
        """How many lines the table takes where no cell is wrapped."""
        return len(self.rows) + (2 if self.title else 1)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.title:
            yield from (Segment(self.title, BOLD), Segment.line())
        yield from self.fitting(options.max_width)._body(console, options.max_width)

    def fitting(self, room: int) -> Columns:
        """The table without the columns for which `room` is too narrow."""
        left, widths = list(self.spared), dict(zip(self.headers, self._natural(), strict=True))
        while left and sum(widths.values()) - _over(widths) + BETWEEN * (len(widths) - 1) > room:
            widths.pop(left.pop(0), None)
        kept = [i for i, header in enumerate(self.headers) if header in widths]
        rows = [[row[i] for i in kept] for row in self.rows] if len(kept) < len(self.headers) else self.rows
        return replace(self, headers=list(widths), rows=rows)

    def _body(self, console: Console, room: int) -> Iterator[Segment]:
        widths = self._widths(room)
        yield from self._line(console, [(header, "dim") for header in self.headers], widths)
        for row in self.rows:
            yield from self._line(console, row, widths)

    def _natural(self) -> list[int]:
        """How wide each column would like to be."""
        texts = ((header, *(_text(row[i]) for row in self.rows)) for i, header in enumerate(self.headers))
        return [max(map(_width, column)) for column in texts]

    def _widths(self, room: int) -> list[int]:
        *others, last = self._natural()
        over = sum(others) + BETWEEN * len(others) + min(last, LEAST_LAST) - room
        if over > 0:
            others[0] = max(min(others[0], LEAST_FIRST), others[0] - over)
        left = max(min(last, LEAST_LAST), room - sum(others) - BETWEEN * len(others))
        return [*others, min(last, left)]

    def _line(self, console: Console, row: Sequence[Cell], widths: Sequence[int]) -> Iterator[Segment]:
        *cells, last = row
        whole = _text(last)
        wrapped = [whole] if _width(whole) <= widths[-1] and "\n" not in whole else _wrap(console, whole, widths[-1])
        if not self.wrapped and len(wrapped) > 1:
            wrapped = [_fit(" ".join(whole.split()), widths[-1], False)]
        for i, text in enumerate(wrapped):
            for cell, width, header in zip(cells, widths, self.headers, strict=False):
                shown = _fit(_text(cell) if i == 0 else "", width, header in self.right)
                yield Segment(shown + " " * BETWEEN, _style(console, cell))
            shown = _fit(text, widths[-1], True) if self.headers[-1] in self.right else text
            yield Segment(shown, _style(console, last))
            yield Segment.line()


def _over(widths: Mapping[str, int]) -> int:
    """How much narrower than it would like the last column may well be."""
    return max(0, list(widths.values())[-1] - GOOD_LAST)


def _text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell[0]


def _style(console: Console, cell: Cell) -> Style:
    return PLAIN if isinstance(cell, str) else console.get_style(cell[1])


def _width(text: str) -> int:
    return len(text) if text.isascii() else cell_len(text)


def _fit(text: str, width: int, right: bool) -> str:
    space = width - _width(text)
    if space < 0:
        return f"{set_cell_size(text, width - 1)}…"
    return " " * space + text if right else text + " " * space


def _wrap(console: Console, text: str, width: int) -> list[str]:
    return [line.plain.rstrip() for line in Text(text).wrap(console, width, overflow="fold")] or [""]
