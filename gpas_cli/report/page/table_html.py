"""A `Table` as an HTML fragment without style."""

from __future__ import annotations

from markupsafe import escape

from gpas_cli.printable import one_line
from gpas_cli.report.cell_text import Style, grid
from gpas_cli.report.notes import notes
from gpas_cli.report.table import Table


def to_html(table: Table) -> str:
    """Return a table element, with the notes as a list below it."""
    style = Style(_escaped, lambda text: f"<strong>{text}</strong>", lambda text: f"<u>{text}</u>", indent="&emsp;")
    header, *lines = grid(table, style)
    head = "".join(f'<th scope="col">{text}</th>' for text in header)
    body = "".join(_line(line) for line in lines)
    listed = "".join(f"<li>{_escaped(note.text)}</li>" for note in notes(table))
    caption = f"<caption>{_escaped(table.spec.title)}</caption>"
    made = f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'{made}<ul class="notes">{listed}</ul>'


def _line(cells: list[str]) -> str:
    first, *others = cells
    return f'<tr><th scope="row">{first}</th>{"".join(f"<td>{text}</td>" for text in others)}</tr>'


def _escaped(text: str) -> str:
    return str(escape(one_line(text)))
