"""A note below a table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Note:
    """`kind`: seeds, delta, marks, diverged, unfinished, withheld, pairs, base, mixture, scores, external, origin,
    override, published, compared, remark, recipe, budget, gains, or cells: which grid has the cells of a printed
    table.
    """

    kind: str
    text: str
