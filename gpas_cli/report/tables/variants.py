"""Which cells of a grid stand beside a published number that several of them match.

A variant is the cells that differ only in the seed. The variants nearest to the paper's recipe are taken: of those that
differ in a setting of which the paper reports the best (`best_of` in its recipe) all, and the best is shown.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from gpas_cli.grid.scalar import identity
from gpas_cli.report.papers import PublishedTable
from gpas_cli.report.papers.recipes import strays, tuned
from gpas_cli.report.tables.entry_status import EntryStatus
from gpas_cli.spec.stage import Metric
from gpas_cli.words import listed

if TYPE_CHECKING:
    from gpas_cli.grid import Entry

NAMED = 3  # axes in one reason


def by_variant(entries: Sequence[Entry], over: str) -> list[list[Entry]]:
    """Return the entries that differ only in the axis `over` together, in declared order."""
    found: dict[Hashable, list[Entry]] = {}
    for entry in entries:
        own = frozenset((axis, identity(label)) for axis, label in entry.axes.items() if axis != over)
        found.setdefault(own, []).append(entry)
    return list(found.values())


def nearest_to_recipe(entries: Sequence[Entry], table: PublishedTable, over: str) -> tuple[list[Entry], str]:
    """Return the entries for a number of `table` that all of them match; if there are none, with the reason."""
    variants = by_variant(entries, over)
    differing = [len(strays(variant[0], table)) for variant in variants]
    variants = [one for one, number in zip(variants, differing, strict=True) if number == min(differing)]
    if len({tuned(variant[0], table) for variant in variants}) == len(variants):
        return [entry for variant in variants for entry in variant], ""
    first = variants[0][0].axes
    axes = {axis for one in variants for axis in {**first, **one[0].axes} if first.get(axis) != one[0].axes.get(axis)}
    reason = f"{len(variants)} cells of {entries[0].grid} match it and differ in {listed(sorted(axes - {over}), NAMED)}"
    return [], f"{reason}; select one with --where"


def best_variant(variants: Sequence[Sequence[EntryStatus]], what: Metric) -> list[Sequence[EntryStatus]]:
    """Return the variants, the one with the best mean first and those without a number last."""

    def rank(statuses: Sequence[EntryStatus]) -> tuple[bool, float]:
        values = [status.value for status in statuses if status.value is not None]
        return not values, fmean(values) * (-1 if what.better == "higher" else 1) if values else 0.0

    return sorted(variants, key=rank)
