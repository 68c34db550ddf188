"""The page as one HTML file: content, style sheet and scripts, with nothing to fetch."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from gpas_cli.printable import one_line
from gpas_cli.report.page.encode import to_json
from gpas_cli.words import count, date_and_time

if TYPE_CHECKING:
    from gpas_cli.report.page.content import Content

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = ("elements.js", "theme.js", "details.js", "cells.js", "main.js")  # in the order in which they are joined


def to_html(content: Content) -> str:
    """Return the page as one HTML document, which makes no request and runs no script but its own."""
    script, style = _script(), (ASSETS / "page.css").read_text()
    return (
        _templates()
        .get_template("page.html")
        .render(
            content=content,
            cells=Markup(to_json(content.cells)),
            details=Markup(to_json(content.details)),
            script=Markup(script),
            style=Markup(style),
            policy=_policy(script, style),
        )
    )


@cache
def _script() -> str:
    """Return the scripts as one, in a function of its own so that nothing becomes global."""
    parts = "\n".join((ASSETS / name).read_text() for name in SCRIPTS)
    return f'(() => {{\n"use strict";\n{parts}}})();\n'


def _policy(script: str, style: str) -> str:
    """Return a Content-Security-Policy that forbids every request, and every script and style sheet but these."""
    return (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
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
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"date": date_and_time, "count": count}
    return made


def _printable(value: object) -> object:
    return one_line(value) if type(value) is str else value
