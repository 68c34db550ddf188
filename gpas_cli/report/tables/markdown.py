"""One `Sheet` -> Markdown."""

from __future__ import annotations

from gpas_cli.report.tables.sheet import Sheet, Style
from gpas_cli.words import one_line

SPECIAL = ("\\", "|", "*", "_", "`", "<", "[")


def markdown_escape(text: str) -> str:
    """Return text that Markdown shows verbatim."""
    text = one_line(text)
    for special in SPECIAL:
        text = text.replace(special, f"\\{special}")
    return text


MARKDOWN = Style(markdown_escape, lambda text: f"**{text}**", lambda text: f"<u>{text}</u>", indent="&nbsp;&nbsp;")


def to_markdown(sheet: Sheet) -> str:
    """Return a pipe table with the notes as a list."""
    header, *lines = sheet.texts(MARKDOWN)
    rule = ["---", *["---:"] * (len(header) - 1)]
    parts = [
        f"**{markdown_escape(sheet.title)}**",
        "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *lines)),
    ]
    if sheet.notes:
        parts.append("\n".join(f"- {markdown_escape(note.text)}" for note in sheet.notes))
    return "\n\n".join(parts) + "\n"
