"""One `Table` -> rich, for a terminal. What does not fit the width beside the rest goes beneath it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.table import Table as RichTable
from rich.text import Text

from gpas_cli.report.notes import notes
from gpas_cli.report.render import Style, grid, titles
from gpas_cli.report.table import Table

STYLE = Style(escape, lambda text: f"[bold]{text}[/bold]", lambda text: f"[underline]{text}[/underline]")
BETWEEN, EDGES = 3, 2  # blanks that rich puts between two columns, and at both ends together, in this box


@dataclass(frozen=True)
class Drawn:
    """A table with its title above and its notes beneath. A column of ours is never parted from the published ones."""

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        lines = grid(self.table, STYLE)
        widths = [max(Text.from_markup(line[i]).cell_len for line in lines) for i in range(len(lines[0]))]
        yield Text(self.table.spec.title, style="italic")
        for chunk in self._chunks(widths, options.max_width):
            yield _draw([[line[i] for i in (0, *chunk)] for line in lines])
        for i, note in enumerate(notes(self.table), 1):
            yield Text(f"{i}. {note.text}", style="dim")

    def _chunks(self, widths: list[int], room: int) -> list[list[int]]:
        """Indices of the text columns of each part, as many groups in one as `room` characters hold."""
        groups, start = [], 1
        for column in self.table.columns:
            groups.append(list(range(start, start + len(titles(self.table, column)))))
            start = groups[-1][-1] + 1
        chunks = [groups[0]]
        for group in groups[1:]:
            wanted = widths[0] + sum(BETWEEN + widths[i] for i in (*chunks[-1], *group)) + EDGES
            if wanted <= room:
                chunks[-1] = [*chunks[-1], *group]
            else:
                chunks.append(group)
        return chunks


def _draw(lines: list[list[str]]) -> RichTable:
    drawn = RichTable(box=SIMPLE_HEAD, pad_edge=False)
    for i, header in enumerate(lines[0]):
        drawn.add_column(header, justify="right" if i else "left", no_wrap=True)
    for line in lines[1:]:
        drawn.add_row(*line)
    return drawn
