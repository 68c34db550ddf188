"""Numbers, sizes, times and lists, as text for people to read, and text that is safe to print.

count(1200, "cell")            1,200 cells
ordinal(22)                    22nd
abbreviated(1_340_000_000)     1.34B
fixed(33.486, 2)               33.49; from a million on 1.61e242
significant(33.486, 3)         33.5; 1,390; from a million on 1.61e242
byte_size(2_345_000_000)       2.3 GB
duration(12_300)               3.4 h
stopwatch(3723)                1:02:03
clock_time(moment)             14:05, or Sat 22 Nov 14:05 if that is not within half a day
date_and_time(moment)          2025-11-22 14:05:09
listed(["a", "b", "c"], 2)     a, b and 1 more
grouped([(1, "a"), (2, "b"), (1, "c")])   {1: ["a", "c"], 2: ["b"]}
printable(escape + "[1m")      \\x1b[1m
"""

import math
import re
import time
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

_HALF_A_DAY_SECONDS = 43_200.0

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")
# Control characters except tab and newline, characters that break lines or reverse the text direction, and lone
# surrogates, which no encoding accepts.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_BREAKS = re.compile(r"[\t\n]+")


def grouped(pairs: Iterable[tuple[_K, _V]]) -> dict[_K, list[_V]]:
    """Return the second parts of the pairs by the first ones, each in order."""
    found: dict[_K, list[_V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def count(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: "1 cell", "1,200 cells". `plural` is for nouns that take no s."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def verb(number: int, singular: str, plural: str) -> str:
    """Return the form of a verb that agrees with `number`: `verb(1, "is", "are")` is "is"."""
    return singular if number == 1 else plural


def ordinal(number: int) -> str:
    """Return an ordinal number: 1st, 2nd, 3rd, 4th, 11th."""
    endings = {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{endings.get(number % 10, 'th') if number % 100 not in (11, 12, 13) else 'th'}"


def abbreviated(number: float) -> str:
    """Return a number of parameters or tokens with three digits and a suffix: 307k, 71M, 1.34B."""
    for suffix, unit in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= unit:
            return f"{number / unit:.3g}{suffix}"
    return f"{number:g}"


def fixed(number: float, digits: int, sign: str = "") -> str:
    """Return a number with `digits` after the point, from a million on with an exponent: "33.49", "1.61e242".

    Without `digits` it is a count, and whole up to 10^15. With `sign` "+", positive numbers get a plus. Infinities and
    what is no number are "inf", "-inf" and "nan".
    """
    text = f"{number:{sign}.{digits}f}"
    if abs(float(text)) < (1e6 if digits else 1e15) or not math.isfinite(number):
        return text
    factor, power = f"{number:{sign}.2e}".split("e")
    return f"{factor}e{int(power)}"


def significant(number: float, digits: int) -> str:
    """Return a number with so many significant digits, or all before the point: "33.5", "1,390", "1.61e242"."""
    if 10**digits <= abs(number) < 1e6:
        return f"{number:,.0f}"
    return fixed(number, digits) if abs(number) >= 1e6 else f"{number:.{digits}g}"


def left_out(records: Mapping[str, float]) -> str:
    """Return how many malformed records were left out, and why: "3 malformed records left out (2 null, 1 not JSON)"."""
    reasons = ", ".join(f"{number:,.0f} {reason}" for reason, number in sorted(records.items()))
    return f"{count(int(sum(records.values())), 'malformed record')} left out ({reasons})"


def byte_size(number: float) -> str:
    """Return a number of bytes in decimal units: "512 B", "2.3 GB", "108 GB"."""
    for name, unit in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= unit:
            return f"{_rounded(number / unit)} {name}"
    return f"{number:.0f} B"


def duration(seconds: float) -> str:
    """Return a length of time in its largest unit: "45 s", "12 min", "3.4 h", from two days on "5.1 days"."""
    if round(seconds) < 60:
        return f"{seconds:.0f} s"
    if round(seconds / 60) < 60:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{_rounded(hours)} h" if hours < 48 else f"{_rounded(hours / 24)} days"


def stopwatch(seconds: float) -> str:
    """Return seconds as a stopwatch shows them: "2:03", "1:02:03"."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def clock_time(moment: float) -> str:
    """Return the local time of a unix time: "14:05", with the day if that is more than half a day away."""
    near = abs(moment - time.time()) <= _HALF_A_DAY_SECONDS
    return time.strftime("%H:%M" if near else "%a %d %b %H:%M", time.localtime(moment))


def date_and_time(moment: float) -> str:
    """Return the local date and time of a unix time: "2025-11-22 14:05:09"."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


def listed(items: Sequence[str], most: int = 3, separator: str = ", ") -> str:
    """Join the first `most` items and count the others: "a, b and 4 more", or separated by "; " "a; b; and 4 more"."""
    shown = separator.join(items[:most])
    if len(items) <= most:
        return shown
    return f"{shown}{' ' if separator == ', ' else separator}and {len(items) - most:,} more"


def _rounded(number: float) -> str:
    return f"{number:.1f}" if number < 99.95 else f"{number:,.0f}"


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
