"""A `Sheet` as a rich renderable, for a terminal of any width."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from gpas_cli.report.tables.sheet import THEMES, Note, Sheet, Spacing, Style, fit
from gpas_cli.words import one_line

# Emphasis as ANSI codes, which `Text.from_ansi` reads; escaped text has no control characters that could be misread.
_STYLE = Style(one_line, lambda text: f"\x1b[1m{text}\x1b[0m", lambda text: f"\x1b[4m{text}\x1b[0m")
_SPACINGS = (Spacing(3, edges=2), Spacing(2), Spacing(2, wrapped=True))
_NARROWEST_LABEL = 8  # characters to which row labels are wrapped when a number would not fit beside them


@dataclass(frozen=True)
class Drawn:
    """A table with its title above and its notes below. Columns that do not fit the width go into further blocks."""

    sheet: Sheet

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        sheet = self.sheet
        lines = [[Text.from_ansi(text) for text in line] for line in sheet.texts(_STYLE)]
        yield Text(one_line(sheet.title), style="italic")
        layout = fit(sheet.groups, _widths(lines), _wrapped_widths(lines), options.max_width, _SPACINGS)
        for block in layout.blocks:
            part = [[line[i] for i in block] for line in lines]
            yield _draw(part, layout.spacing, options.max_width, sheet.rules)
        if sheet.notes:
            yield _notes(sheet.notes)


def _widths(lines: Sequence[Sequence[Text]]) -> list[int]:
    return [max(text.cell_len for text in column) for column in zip(*lines, strict=True)]


def _wrapped_widths(lines: Sequence[Sequence[Text]]) -> list[int]:
    """Return the widths of the columns if headers are wrapped at every blank."""
    header, *body = lines
    return _widths([[max(text.split(" "), key=lambda word: word.cell_len, default=text) for text in header], *body])


def _notes(notes: Sequence[Note]) -> RenderableType:
    """Return the notes as a list for each theme."""
    drawn = RichTable.grid(padding=(0, 1, 0, 0))
    drawn.add_column()
    drawn.add_column()
    drawn.add_column(overflow="fold")
    for theme in THEMES:
        own = [note for note in notes if note.theme == theme]
        for i, note in enumerate(own):
            drawn.add_row("" if i else theme, "-", Text(one_line(note.brief or note.text)), style="dim")
    return drawn


def _draw(lines: Sequence[Sequence[Text]], spacing: Spacing, room: int, rules: frozenset[int]) -> RichTable:
    """Return one block, at most `room` wide; if a single column is too wide, labels and then numbers are wrapped.

    rules: the lines, counted from 1 for the first after the header, that have a rule above.
    """
    label, *widths = _wrapped_widths(lines) if spacing.wrapped else _widths(lines)
    left = room - spacing.edges - sum(spacing.gap + width for width in widths)
    # rich puts a character between two columns, besides the padding.
    padding = (0, 1) if spacing.edges else (0, spacing.gap - 1, 0, 0)
    drawn = RichTable(box=SIMPLE_HEAD, show_edge=spacing.edges > 0, pad_edge=False, padding=padding)
    for i, width in enumerate((max(min(label, left), _NARROWEST_LABEL), *widths)):
        drawn.add_column(lines[0][i], justify="right" if i else "left", vertical="bottom", overflow="fold", width=width)
    for place, line in enumerate(lines[1:], 1):
        drawn.add_row(*line, end_section=place + 1 in rules)
    return drawn
