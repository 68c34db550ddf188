"""Completion in bash, which splits the command line at `=` and `:` too and replaces only the last piece.

gpas status --where norm=s<TAB>    bash asks about "--where", "norm", "=", "s", and replaces the last "s"
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO

_BREAKS = "=:"


def rejoined(words: list[str], current: int) -> tuple[list[str], int, str]:
    """Return the words of the command line, the number of the current one, and its part that bash does not replace."""
    joined: list[str] = []
    here = 0
    glued = False  # The next piece belongs to the word before it.
    for number, piece in enumerate(words):
        broken = bool(piece) and not piece.strip(_BREAKS)
        if joined and (glued or broken):
            joined[-1] += piece
        else:
            joined.append(piece)
        glued = broken
        if number == current:
            here = len(joined) - 1
            kept = joined[-1] if broken else joined[-1].removesuffix(piece)
    if current >= len(words):
        return [*joined, ""], len(joined), ""
    return joined[: here + 1], here, kept


@contextmanager
def whole_words() -> Iterator[None]:
    """Within, a request of bash for completions is one about whole words; its answers are what bash inserts."""
    if os.environ.get("_GPAS_COMPLETE") != "complete_bash":
        yield
        return
    words, current, kept = rejoined(os.environ["COMP_WORDS"].split("\n"), int(os.environ["COMP_CWORD"]))
    os.environ |= {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(current)}
    answers = StringIO()
    try:
        with redirect_stdout(answers):
            yield
    finally:
        print("\n".join(answer.removeprefix(kept) for answer in answers.getvalue().splitlines()))
