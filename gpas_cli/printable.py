"""Text from experiments, journals and file names, made safe to print."""

from __future__ import annotations

import re

# Control characters but for tab and newline; characters that break lines or reverse the reading direction; lone
# surrogates, which no output can encode.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_BREAKS = re.compile(r"[\t\n]+")


def printable(text: str) -> str:
    """Return `text` with control characters spelled out, so that it cannot move the cursor or restyle a terminal.

    An escape character becomes the four characters "\\x1b". Tabs and newlines stay.
    """
    return text if text.isprintable() else _UNPRINTABLE.sub(_spelled_out, text)


def one_line(text: str) -> str:
    """Return `printable(text)` with a blank in place of tabs and newlines: text for one cell of a table."""
    return text if text.isprintable() else _BREAKS.sub(" ", printable(text))


def _spelled_out(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")
