"""The time that jobs take on a number of slots."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def makespan(needs: Sequence[tuple[float, int]], slots: int) -> float:
    """Return the hours until the last of the jobs (hours, slots needed) ends. Jobs start in order as slots free up."""
    now = last = 0.0
    free = slots
    busy: list[tuple[float, int]] = []
    for hours, wanted in needs:
        wanted = min(wanted, slots)
        while free < wanted:
            now, returned = heapq.heappop(busy)
            free += returned
        heapq.heappush(busy, (now + hours, wanted))
        free -= wanted
        last = max(last, now + hours)
    return last
