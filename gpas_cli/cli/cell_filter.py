"""Selecting, sorting and limiting listed cells: `--state`, `--sort` and `--limit`."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from gpas_cli.errors import GpasError, nearest
from gpas_cli.state.status import CellStatus

# The states in the order in which cells are listed: what needs attention comes first.
ORDER = ("running", "failed", "unknown", "interrupted", "cancelled", "queued", "diverged", "missing", "done")


@dataclass(frozen=True)
class CellFilter:
    """Cells in one of `states`, sorted by `sort`, at most `limit`; None means all, in declared order."""

    states: Collection[str] | None = None
    sort: str | None = None
    limit: int | None = None

    def apply(self, cells: Sequence[CellStatus]) -> list[CellStatus]:
        """Return the cells to list, in order."""
        fitting = self.fitting(cells)
        return fitting if self.limit is None else fitting[: self.limit]

    def fitting(self, cells: Sequence[CellStatus]) -> list[CellStatus]:
        """Return all cells in the selected states, in order, without the limit."""
        fitting = [cell for cell in cells if self.states is None or cell.state in self.states]
        return sorted(fitting, key=SORTS[self.sort]) if self.sort else fitting


def check_states(text: str) -> tuple[str, ...]:
    """Return the states in a text such as "running,failed". Raises GpasError for an unknown state."""
    states = tuple(part.strip() for part in text.split(","))
    for state in states:
        if state not in ORDER:
            raise GpasError(f"--state: no state '{state}'; {nearest(state, ORDER)}")
    return states


def check_sort(column: str | None) -> str | None:
    """Return `column`. Raises GpasError when cells cannot be sorted by it."""
    if column is not None and column not in SORTS:
        raise GpasError(f"--sort: cells cannot be sorted by '{column}'; {nearest(column, SORTS)}")
    return column


def rest(hidden: Sequence[CellStatus]) -> str:
    """Return the line about cells that are not listed: "and 12 more: 10 queued, 2 failed"."""
    counts = Counter(cell.state for cell in hidden)
    parts = ", ".join(f"{counts[state]} {state}" for state in ORDER if counts[state])
    return f"and {len(hidden)} more: {parts}"


def _by_name(cell: CellStatus) -> list[Any]:
    """Return a sort key that compares numbers in names by value: s2 comes before s10."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", cell.entry.id)]


def _by_age(cell: CellStatus) -> float:
    return math.inf if cell.age is None else cell.age


def _by_perplexity(cell: CellStatus) -> float:
    value = float(cell.metrics.get("perplexity", math.inf))
    return math.inf if math.isnan(value) else value


SORTS: dict[str, Callable[[CellStatus], Any]] = {
    "state": lambda cell: ORDER.index(cell.state),
    "name": _by_name,
    "age": _by_age,
    "perplexity": _by_perplexity,
}
