"""Make text from experiments, journals and file names safe to print."""

from __future__ import annotations

import re

# Control characters except tab and newline, characters that break lines or reverse the text direction, and lone
# surrogates, which no encoding accepts.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_BREAKS = re.compile(r"[\t\n]+")


def printable(text: str) -> str:
    """Return `text` with control characters escaped, so that it cannot move the cursor or restyle a terminal.

    An escape character becomes the four characters "\\x1b". Tabs and newlines are kept.
    """
    return text if text.isprintable() else _UNPRINTABLE.sub(_spelled_out, text)


def one_line(text: str) -> str:
    """Return `printable(text)` with tabs and newlines replaced by spaces, for one cell of a table."""
    return text if text.isprintable() else _BREAKS.sub(" ", printable(text))


def _spelled_out(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")
