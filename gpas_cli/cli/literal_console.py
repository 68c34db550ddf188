"""The console of all commands: it prints text as it is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from gpas_cli.printable import printable


class LiteralConsole(Console):
    """A console on which text has no side effects.

    Titles, labels, paths and causes of failure come from users and from other programs. Brackets in them are not parsed
    as markup, words between colons are no emoji, and control characters are spelled out. What is to be styled is a
    `rich.text.Text` (`Text.assemble("plain ", ("bold", "bold"))`) or printed with `style=`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of `renderable` with their text made printable."""
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else printable(segment.text)
            yield segment if text is segment.text else Segment(text, segment.style)
