"""Adjustment of p values for the number of tests in a family."""

from __future__ import annotations

from collections.abc import Sequence


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """Return Holm's adjusted p values (Holm 1979, "A simple sequentially rejective multiple test procedure").

    To call those at most `level` significant makes one false statement or more with a probability of at most `level`,
    whatever the dependence of the tests. None is a test without a result yet: it stays None and counts as one of the
    family, so that a result that arrives later never makes another p value larger than Holm's with all of them.
    """
    known = sorted((p, place) for place, p in enumerate(ps) if p is not None)
    adjusted: list[float | None] = [None] * len(ps)
    largest = 0.0
    for rank, (p, place) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(ps) - rank)))
        adjusted[place] = largest
    return adjusted
