"""`gpas schema`: the form of the JSON that a command prints."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from gpas_cli.cli.schemas import DOCUMENTS
from gpas_cli.errors import GpasError, nearest

HEAD = """\
# The JSON of the commands

Commands that read, and those that run, take `--json`: one document on standard output, everything else on standard
error. `gpas schema COMMAND` prints a document's JSON Schema. A number that is not finite is the word `nan`, `inf` or
`-inf`. Fields may be added at any time; `schema` grows when a field changes its meaning or goes.

This page is written by `make docs`.
"""


def _complete(incomplete: str) -> list[str]:
    return [name for name in DOCUMENTS if name.startswith(incomplete)]


def schema(
    command: Annotated[
        list[str] | None,
        typer.Argument(help="The command, e.g. status or data check; none lists them.", autocompletion=_complete),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the page docs/json.md instead.")] = False,
) -> None:
    """Print the JSON Schema of what a command prints with --json.

    Example: [bold]gpas schema status[/bold]
    """
    from gpas_cli.cli.schemas.jsonschema import json_schema

    name = " ".join(command or [])
    if markdown:
        print(page())
    elif not name:
        print("\n".join(DOCUMENTS))
    elif name not in DOCUMENTS:
        raise GpasError(f"no JSON of '{name}'; {nearest(name, DOCUMENTS)}")
    else:
        print(json.dumps(json_schema(DOCUMENTS[name]), indent=2))


def page() -> str:
    """docs/json.md, without the newline at its end."""
    from gpas_cli.cli.schemas.jsonschema import markdown

    lines = [HEAD]
    for document, names in _by_document().items():
        lines += [f"## {', '.join(f'`gpas {name}`' for name in names)}", "", " ".join((document.__doc__ or "").split())]
        lines += ["", *markdown(document), ""]
    return "\n".join(lines).rstrip()


def _by_document() -> dict[type, list[str]]:
    """The documents, each with the commands that print it."""
    found: dict[type, list[str]] = {}
    for name, document in DOCUMENTS.items():
        found.setdefault(document, []).append(name)
    return found
