"""Numbers and nouns in sentences."""

from __future__ import annotations


def count(number: int, noun: str, plural: str = "") -> str:
    """The number with its noun: "1 cell", "1,200 cells"; `plural` where an s does not make it."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def verb(number: int, singular: str, plural: str) -> str:
    """The form of a verb that agrees with so many: `verb(1, "is", "are")` is "is"."""
    return singular if number == 1 else plural
