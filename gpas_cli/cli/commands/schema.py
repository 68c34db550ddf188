"""`gpas schema`: the JSON Schema of what a command prints with --json."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from gpas_cli.cli.schemas import DOCUMENTS
from gpas_cli.errors import GpasError, nearest


def _complete(incomplete: str) -> list[str]:
    return [name for name in DOCUMENTS if name.startswith(incomplete)]


def schema(
    command: Annotated[
        list[str] | None,
        typer.Argument(help="A command, e.g. status or data check; by default, list them.", autocompletion=_complete),
    ] = None,
) -> None:
    """Print the JSON Schema of what a command prints with --json.

    Example: [bold]gpas schema status[/bold]
    """
    from gpas_cli.cli.schemas.jsonschema import json_schema

    name = " ".join(command or [])
    if not name:
        print("\n".join(DOCUMENTS))
    elif name not in DOCUMENTS:
        raise GpasError(f"no JSON of '{name}'; {nearest(name, DOCUMENTS)}")
    else:
        print(json.dumps(json_schema(DOCUMENTS[name]), indent=2))
