"""One `Sheet` -> HTML: a fragment without style, for a page to include.

The classes of cells are `ours` and `published`; lines with a rule above have the class `rule`.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence

from gpas_cli.report.tables.sheet import Sheet, Style
from gpas_cli.words import one_line


def _escape(text: str) -> str:
    return html.escape(one_line(text))


HTML = Style(
    _escape,
    lambda text: f"<strong>{text}</strong>",
    lambda text: f"<u>{text}</u>",
    minus="&minus;",
    infinity="∞",
    indent="&emsp;",
)


def to_html(sheet: Sheet) -> str:
    """Return a `table` element with the title as its caption, and the notes as a list with the class `notes`."""
    header, *lines = sheet.texts(HTML)
    parts = [
        "<table>",
        f"<caption>{_escape(sheet.title)}</caption>",
        f"<thead>\n<tr>{''.join(_headers(header, sheet.published))}</tr>\n</thead>",
        "<tbody>",
        *(_line(line, sheet.published, place in sheet.rules) for place, line in enumerate(lines, 1)),
        "</tbody>",
        "</table>",
    ]
    if sheet.notes:
        parts += ['<ul class="notes">', *(f"<li>{_escape(note.text)}</li>" for note in sheet.notes), "</ul>"]
    return "\n".join(parts) + "\n"


def _headers(texts: Sequence[str], published: frozenset[int]) -> Iterator[str]:
    for column, text in enumerate(texts):
        origin = f' class="{_origin(column, published)}"' if column else ""
        yield f'<th scope="col"{origin}>{text}</th>'


def _line(texts: Sequence[str], published: frozenset[int], rule: bool) -> str:
    cells = [f'<td class="{_origin(column, published)}">{text}</td>' for column, text in enumerate(texts[1:], 1)]
    opening = '<tr class="rule">' if rule else "<tr>"
    return f'{opening}<th scope="row">{texts[0]}</th>{"".join(cells)}</tr>'


def _origin(column: int, published: frozenset[int]) -> str:
    return "published" if column in published else "ours"
