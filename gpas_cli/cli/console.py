"""Text and JSON output of commands, and their questions."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import typer
from rich.console import Console

from gpas_cli.cli.literal_console import LiteralConsole
from gpas_cli.documents import DocumentJson, plain
from gpas_cli.errors import Exit, GpasError


@dataclass
class _State:
    """The options that apply to the whole command."""

    config: Path | None = None
    as_json: bool = False  # standard output holds one JSON document, and text goes to standard error


STATE = _State()


def warn(problem: str) -> None:
    """Print a problem that does not stop the command on standard error; "" prints nothing."""
    if problem:
        print(f"gpas: {problem}", file=sys.stderr)


def console() -> Console:
    """Return the console for text: standard output, or standard error if standard output holds JSON."""
    return _console(STATE.as_json)


@cache
def _console(stderr: bool) -> Console:
    """Return a console; piped text is laid out for 160 columns and not wrapped, so that tables are not truncated."""

    on_terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return LiteralConsole(width=None if on_terminal else 160, soft_wrap=not on_terminal, stderr=stderr)


def print_json(document: DocumentJson) -> None:
    """Print one JSON document; numbers that are not finite become the strings "nan", "inf" and "-inf"."""
    print(json.dumps(plain(document), indent=2, allow_nan=False))


def confirm(question: str, yes: bool) -> None:
    """Ask for confirmation unless `yes`. Raises GpasError if standard input is not a terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise GpasError(f"{question} Standard input is not a terminal; add --yes to confirm.")
    if not typer.confirm(question, err=STATE.as_json):
        console().print("Nothing was done.")
        raise typer.Exit(Exit.INCOMPLETE)
