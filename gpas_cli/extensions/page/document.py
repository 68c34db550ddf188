"""The page as one HTML file: content, style sheet and scripts, with nothing to fetch.

Data is JSON inside the HTML. All text comes from files that others may have written.
"""

import base64
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from gpas_cli.extensions.page.content import FILTERS, Content
from gpas_cli.structure import Frozen, plain
from gpas_cli.words import count, date_and_time, one_line, printable

ASSETS = Path(__file__).parent / "assets"
# In the order in which they are joined.
SCRIPTS = (
    *("elements.js", "theme.js", "scales.js", "chart_parts.js", "chart.js", "heat_map.js", "figures.js"),
    *("details.js", "cells.js", "live.js", "main.js"),
)
# Characters that could end the element or begin another one.
_HTML = {ord(character): f"\\u{ord(character):04x}" for character in "<>&"}


class Document(Frozen):
    """An HTML document and its Content-Security-Policy."""

    html: str
    policy: str


def to_html(content: Content, refresh: float = 0.0, data: str = "") -> Document:
    """Return the page as a document that runs no script but its own and makes no request.

    refresh: the seconds after which a page that is served asks its server for new data, 0 for a file. data: the JSON of
    `to_mapping`, if it is known.
    """
    script, style = _script(), (ASSETS / "page.css").read_text("utf-8")
    policy = _policy(script, style, served=refresh > 0)
    page = _templates().get_template("page.html")
    html = page.render(
        content=content,
        data=Markup(data or to_json(to_mapping(content))),
        details=Markup(to_json(content.details or {})),
        script=Markup(script),
        style=Markup(style),
        policy=policy,
        refresh=refresh,
    )
    return Document(html, policy)


def to_mapping(content: Content) -> dict[str, Any]:
    """Return what changes while cells run: the HTML of the sections, the figures, and the list of cells."""

    def html(name: str, **values: Any) -> str:
        return _templates().get_template(f"{name}.html").render(values)

    grids = [
        {
            "name": grid.name,
            "anchor": grid.anchor,
            "title": grid.title,
            "summary": html("grid", content=content, grid=grid),
            "charts": grid.charts,
        }
        for grid in content.grids
    ]
    return {
        "made": round(content.made),
        "overview": html("overview", content=content),
        "claims": html("claims", content=content) if content.claims else "",
        "paper_tables": html("paper_tables", content=content) if content.paper_tables else "",
        "grids": grids,
        "figures": content.figures,
        "cells": content.cells,
    }


@cache
def _script() -> str:
    """Return the scripts as one, inside a function so that nothing becomes global."""
    parts = "\n".join((ASSETS / name).read_text("utf-8") for name in SCRIPTS)
    return f'(() => {{\n"use strict";\n{parts}}})();\n'


def _policy(script: str, style: str, *, served: bool) -> str:
    """Return a policy that forbids other scripts and style sheets, and requests except to the page's server."""
    source = "'self'" if served else "'none'"
    return (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; "
        f"connect-src {source}; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _templates() -> Environment:
    """Return the templates; everything that they insert is escaped, and an unknown name is an error."""
    made = Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: one_line(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"date": date_and_time, "count": count, **FILTERS}
    return made


def to_json(data: Any) -> str:
    """Return `data` as JSON in ASCII that contains neither markup nor control characters.

    Numbers that are not finite become the strings "nan", "inf", "-inf".
    """
    return json.dumps(plain(data, printable), separators=(",", ":"), allow_nan=False).translate(_HTML)
