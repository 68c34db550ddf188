"""Leave out points of a curve without changing what it looks like."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

Point = TypeVar("Point", bound=tuple[float, ...])


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """Return at most `most` points (x, y, ...) of a curve: the first, the last, and those that shape it.

    Of each stretch of x, the point is kept that spans the largest triangle with the kept point before it and the mean
    of the next stretch (largest triangle three buckets, Steinarsson 2013).
    """
    if len(points) <= most or most < 3:
        return list(points)
    kept = [points[0]]
    bounds = [1 + (len(points) - 2) * i // (most - 2) for i in range(most - 1)]
    for number, (start, end) in enumerate(pairwise(bounds)):
        after = points[end : bounds[number + 2]] if number + 2 < len(bounds) else points[-1:]
        ahead = [sum(point[i] for point in after) / len(after) for i in (0, 1)]
        kept.append(max(points[start:end], key=lambda point: _area(kept[-1], point, ahead)))
    return [*kept, points[-1]]


def _area(a: Sequence[float], b: Sequence[float], c: Sequence[float]) -> float:
    """Return twice the area of a triangle."""
    return abs((b[0] - a[0]) * (c[1] - a[1]) - (c[0] - a[0]) * (b[1] - a[1]))
