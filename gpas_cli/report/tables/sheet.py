"""A table as text: what every text format draws, from a header, lines and notes.

`fit` chooses how its columns fit into a width: with less padding, with wrapped headers, or in several blocks. Text is
never truncated. Widths are in characters.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gpas_cli.words import one_line

# The themes by which a terminal groups notes, with the kinds of each.
THEMES = {
    "reading": ("seeds", "best", "delta", "marks", "scores", "external"),
    "runs": ("cells", "diverged", "unfinished", "withheld", "pairs", "base", "mixture", "override", "origin"),
    "published": ("published", "compared", "budget", "remark", "gains"),
    "recipes": ("recipe",),
}
# Kinds of notes whose first word is capitalised in a sentence: it is never a name.
_CAPITALISED = (
    *("seeds", "best", "delta", "marks", "cells", "diverged", "unfinished", "withheld", "pairs", "base", "external"),
    *("compared", "gains"),
)
_NEVER_NAMES = ("the ", "guessing ", "no cell ")  # beginnings of notes of other kinds that are capitalised, too


@dataclass(frozen=True)
class Note:
    """A note. `brief` is its short form for a terminal, "" if there is none.

    `kind`: seeds, best, delta, marks, diverged, unfinished, withheld, pairs, base, mixture, scores, external, origin,
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
        named = self.kind not in _CAPITALISED and not self.text.startswith(_NEVER_NAMES)
        return f"{self.text if named else self.text[:1].upper() + self.text[1:]}."


@dataclass(frozen=True)
class Style:
    """How an output format writes text, emphasis and signs. `escape` also makes text printable.

    unfinished: what stands for a number that a run does not have yet, by default the state of the run.
    """

    escape: Callable[[str], str]
    bold: Callable[[str], str]
    underline: Callable[[str], str]
    minus: str = "-"
    plus_minus: str = "±"
    infinity: str = "inf"
    indent: str = "  "
    unfinished: str = ""


PLAIN = Style(one_line, str, str)


@dataclass(frozen=True)
class Sheet:
    """A table as text.

    texts: the lines in a style, the header first; every line has as many texts as the header, its title first.
    groups: columns, without the first, that belong together: ours, and the published ones beside it. published: the
    columns with published numbers. notes: below the table. rules: the lines, counted from 1 for the first after the
    header, that have a rule above.
    """

    title: str
    texts: Callable[[Style], list[list[str]]]
    groups: Sequence[Sequence[int]]
    notes: Sequence[Note] = ()
    rules: frozenset[int] = field(default_factory=frozenset)
    published: frozenset[int] = field(default_factory=frozenset)


@dataclass(frozen=True)
class Spacing:
    """The space between two columns, and at both ends of a line together. `wrapped`: headers take several lines."""

    gap: int
    edges: int = 0
    wrapped: bool = False


@dataclass(frozen=True)
class _ColumnLayout:
    """The indices of the columns in each block of the table; column 0 comes first in each of them."""

    spacing: Spacing
    blocks: tuple[tuple[int, ...], ...]


def fit(
    groups: Sequence[Sequence[int]],
    widths: Sequence[float],
    wrapped_widths: Sequence[float],
    room: float,
    spacings: Sequence[Spacing],
) -> _ColumnLayout:
    """Return the layout with the fewest blocks; among equals, that of the first spacing at which all of them fit.

    groups: columns to keep together where possible; all but column 0. widths: of each column; wrapped_widths: the same
    with wrapped headers. A column that does not fit beside column 0 gets a block of its own, wider than `room`.
    """
    sizes = [wrapped_widths if spacing.wrapped else widths for spacing in spacings]
    layouts = [_ColumnLayout(s, _split(groups, w, room, s)) for s, w in zip(spacings, sizes, strict=True)]
    costs = [
        (len(layout.blocks), max(0, *(_width(block, w, layout.spacing) - room for block in layout.blocks)))
        for layout, w in zip(layouts, sizes, strict=True)
    ]
    return layouts[costs.index(min(costs))]


def _width(block: Sequence[int], widths: Sequence[float], spacing: Spacing) -> float:
    return spacing.edges + spacing.gap * (len(block) - 1) + sum(widths[i] for i in block)


def _split(
    groups: Sequence[Sequence[int]], widths: Sequence[float], room: float, spacing: Spacing
) -> tuple[tuple[int, ...], ...]:
    blocks: list[tuple[int, ...]] = [] if groups else [(0,)]
    for group in groups:
        # A group too wide for a block of its own is split.
        whole = _width((0, *group), widths, spacing) <= room
        for part in [tuple(group)] if whole else [(i,) for i in group]:
            if blocks and _width((*blocks[-1], *part), widths, spacing) <= room:
                blocks[-1] += part
            else:
                blocks.append((0, *part))
    return tuple(blocks)
