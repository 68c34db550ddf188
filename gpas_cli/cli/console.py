"""Text and JSON output of commands, their questions, and what they show while they compute."""

import json
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment

from gpas_cli.errors import Exit, GpasError
from gpas_cli.period import Period
from gpas_cli.structure import Document, plain
from gpas_cli.words import printable

_LEAST_ROOM = 24  # characters of a fact in one line
LOG_SECONDS = 5.0  # between two lines about what is computed, if standard error is not a terminal


class _LiteralConsole(Console):
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


@dataclass
class _State:
    """The options that apply to the whole command."""

    config: Path | None = None
    check_reports: bool = False  # the mistakes of tables and claims are reported when the experiments file is read
    as_json: bool = False  # standard output holds one JSON document, and text goes to standard error


STATE = _State()


def warn(problem: str) -> None:
    """Print a problem that does not stop the command on standard error; "" prints nothing."""
    if problem:
        print(f"gpas: {problem}", file=sys.stderr)


def console() -> Console:
    """Return the console for text: standard output, or standard error if standard output holds JSON."""
    return _console(STATE.as_json)


def say(what: RenderableType, style: str | None = None, *, soft_wrap: bool | None = None) -> None:
    """Print a line of text, or a table or another part, where text goes."""
    console().print(what, style=style, soft_wrap=soft_wrap)


def say_fact(name: str, text: str, indent: int = 2, width: int = 13) -> None:
    """Print a fact after its name; on a terminal, its lines are wrapped in a column after the name, and long words,
    such as paths, stay whole.
    """
    for number, line in enumerate(wrapped(text, indent + width + 1)):
        say(f"{'':<{indent}}{'' if number else name:<{width}} {line}", soft_wrap=True)


def wrapped(text: str, indent: int) -> list[str]:
    """Return the lines of a text that follows `indent` characters: a single one unless it is for a terminal."""
    room = console().width - indent if console().is_terminal else len(text) + 1
    return textwrap.wrap(text, max(room, _LEAST_ROOM), break_on_hyphens=False, break_long_words=False) or [""]


@cache
def _console(stderr: bool) -> Console:
    """Return a console; piped text is laid out for 160 columns and not wrapped, so that tables are not truncated."""
    on_terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return _LiteralConsole(width=None if on_terminal else 160, soft_wrap=not on_terminal, stderr=stderr)


def print_json(document: Document) -> None:
    """Print one JSON document; numbers that are not finite become the strings "nan", "inf" and "-inf"."""
    print(json.dumps(plain(document), indent=2, allow_nan=False))


def confirm(question: str, yes: bool) -> None:
    """Ask for confirmation unless `yes`. Raises GpasError if standard input is not a terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise GpasError(f"{question} Standard input is not a terminal; add --yes to confirm.")
    if not typer.confirm(question, err=STATE.as_json):
        say("Nothing was done.")
        raise typer.Exit(Exit.INCOMPLETE)


@contextmanager
def working(doing: str) -> Iterator[Callable[[str], None]]:
    """Show a progress message on standard error and yield a function for the next: on a terminal one changing line, in
    a log a line at most every LOG_SECONDS."""
    errors = _LiteralConsole(stderr=True)
    if not errors.is_terminal:
        period = Period(LOG_SECONDS, at_once=True)

        def log(message: str) -> None:
            if period.is_over():
                errors.print(message, soft_wrap=True)

        yield log
        return
    with errors.status(doing) as status:
        yield lambda message: status.update(escape(message))
