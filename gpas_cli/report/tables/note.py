"""A note below a table."""

from __future__ import annotations

from dataclasses import dataclass

# The themes by which a terminal groups notes, with the kinds of each.
THEMES = {
    "reading": ("seeds", "delta", "marks", "scores", "external"),
    "runs": ("cells", "diverged", "unfinished", "withheld", "pairs", "base", "mixture", "override", "origin"),
    "published": ("published", "compared", "budget", "remark", "gains"),
    "recipes": ("recipe",),
}
# Kinds of notes whose first word is capitalised in a sentence: it is never a name.
CAPITALISED = (
    *("seeds", "delta", "marks", "cells", "diverged", "unfinished", "withheld", "pairs", "base", "external"),
    *("compared", "gains"),
)
NEVER_NAMES = ("the ", "guessing ", "no cell ")  # beginnings of notes of other kinds that are capitalised, too


@dataclass(frozen=True)
class Note:
    """A note. `brief` is its short form for a terminal, "" if there is none.

    `kind`: seeds, delta, marks, diverged, unfinished, withheld, pairs, base, mixture, scores, external, origin,
    override, published, compared, remark, recipe, budget, gains, or cells: which grid has the cells of a printed
    table.
    """

    kind: str
    text: str
    brief: str = ""

    @property
    def theme(self) -> str:
        """What the note is about: one of THEMES."""
        return next(theme for theme, kinds in THEMES.items() if self.kind in kinds)

    @property
    def sentence(self) -> str:
        """The note as a sentence, with a point."""
        named = self.kind not in CAPITALISED and not self.text.startswith(NEVER_NAMES)
        return f"{self.text if named else self.text[:1].upper() + self.text[1:]}."
