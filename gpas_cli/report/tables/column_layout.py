"""Fitting the columns of a table into a width: with less padding, with wrapped headers, or in several blocks.

Text is never truncated. Widths are in any unit: characters on a terminal, points on paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spacing:
    """The space between two columns, and at both ends of a line together. `wrapped`: headers take several lines."""

    gap: int
    edges: int = 0
    wrapped: bool = False


@dataclass(frozen=True)
class ColumnLayout:
    """The indices of the columns in each block of the table; column 0 comes first in each of them."""

    spacing: Spacing
    blocks: tuple[tuple[int, ...], ...]


def fit(
    groups: Sequence[Sequence[int]],
    widths: Sequence[float],
    wrapped_widths: Sequence[float],
    room: float,
    spacings: Sequence[Spacing],
) -> ColumnLayout:
    """Return the layout with the fewest blocks; among equals, that of the first spacing at which all of them fit.

    groups: columns to keep together where possible; all but column 0. widths: of each column; wrapped_widths: the same
    with wrapped headers. A column that does not fit beside column 0 gets a block of its own, wider than `room`.
    """
    sizes = [wrapped_widths if spacing.wrapped else widths for spacing in spacings]
    layouts = [ColumnLayout(s, _split(groups, w, room, s)) for s, w in zip(spacings, sizes, strict=True)]
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
