"""Which of many cells are listed, and in what order: `--state`, `--sort` and `--limit`."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpas_cli.errors import GpasError, nearest

if TYPE_CHECKING:
    from gpas_cli.state.status import CellStatus

# What a reader wants to see first.
ORDER = ("running", "queued", "failed", "unknown", "interrupted", "cancelled", "diverged", "missing", "done")


@dataclass(frozen=True)
class CellFilter:
    """What to list: cells in one of `states`, by `sort`, at most `limit`; None leaves all, in the order declared."""

    states: Collection[str] | None = None
    sort: str | None = None
    limit: int | None = None

    def apply(self, cells: Sequence[CellStatus]) -> list[CellStatus]:
        """The cells to list, in order."""
        fitting = self.fitting(cells)
        return fitting if self.limit is None else fitting[: self.limit]

    def fitting(self, cells: Sequence[CellStatus]) -> list[CellStatus]:
        """All cells in the wanted states, in order, without regard to the limit."""
        fitting = [cell for cell in cells if self.states is None or cell.state in self.states]
        return sorted(fitting, key=SORTS[self.sort]) if self.sort else fitting


def check_states(text: str) -> tuple[str, ...]:
    """The states named in "running,failed". Raises GpasError for one that does not exist."""
    words = tuple(word.strip() for word in text.split(","))
    for word in words:
        if word not in ORDER:
            raise GpasError(f"--state: no state '{word}'; {nearest(word, ORDER)}")
    return words


def check_sort(word: str | None) -> str | None:
    """`word` itself. Raises GpasError when cells cannot be sorted by it."""
    if word is not None and word not in SORTS:
        raise GpasError(f"--sort: cells cannot be sorted by '{word}'; {nearest(word, SORTS)}")
    return word


def rest(hidden: Sequence[CellStatus]) -> str:
    """What is not listed, in words: "and 12 more: 10 queued, 2 failed"."""
    counts = Counter(cell.state for cell in hidden)
    parts = ", ".join(f"{counts[state]} {state}" for state in ORDER if counts[state])
    return f"and {len(hidden)} more: {parts}"


def _by_name(cell: CellStatus) -> list[Any]:
    """Numbers in names by their value: s2 comes before s10."""
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
