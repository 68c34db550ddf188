"""The console of all commands: it prints text verbatim."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from gpas_cli.words import printable


class LiteralConsole(Console):
    """A console that does not interpret text.

    Titles, labels, paths and causes of failure come from users and other programs. Brackets in them are not parsed as
    markup, words between colons do not become emoji, and control characters are escaped. To style text, pass a
    `rich.text.Text` (`Text.assemble("plain ", ("bold", "bold"))`) or `style=`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of `renderable` with their text made printable."""
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else printable(segment.text)
            yield segment if text is segment.text else Segment(text, segment.style)
