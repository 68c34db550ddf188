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
from gpas_cli.report.render import Style, grid, parts
from gpas_cli.report.table import Table

STYLE = Style(escape, lambda text: f"[bold]{text}[/bold]", lambda text: f"[underline]{text}[/underline]")
BETWEEN, EDGES = 3, 2  # blanks that rich puts between two columns, and at both ends together, in this box


@dataclass(frozen=True)
class Drawn:
    """A table with its title above and its notes beneath."""

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        lines = grid(self.table, STYLE)
        widths = [max(Text.from_markup(line[i]).cell_len for line in lines) for i in range(len(lines[0]))]
        yield Text(self.table.spec.title, style="italic")
        for chunk in parts(self.table, widths, options.max_width - EDGES, BETWEEN):
            yield _draw([[line[i] for i in (0, *chunk)] for line in lines])
        for i, note in enumerate(notes(self.table), 1):
            yield Text(f"{i}. {note.text}", style="dim")


def _draw(lines: list[list[str]]) -> RichTable:
    drawn = RichTable(box=SIMPLE_HEAD, pad_edge=False)
    for i, header in enumerate(lines[0]):
        drawn.add_column(header, justify="right" if i else "left", no_wrap=True)
    for line in lines[1:]:
        drawn.add_row(*line)
    return drawn
