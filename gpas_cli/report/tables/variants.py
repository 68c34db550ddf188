"""Which cells of a grid stand beside a published number that several of them match.

A variant is the cells that differ only in the seed. The variants nearest to the paper's recipe are taken: of those that
differ in a setting of which the paper reports the best (`best_of` in its recipe) all, and the best is shown.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import chain
from math import inf
from statistics import fmean
from typing import TYPE_CHECKING

from gpas_cli.grid.document import identity
from gpas_cli.report.papers import PublishedTable
from gpas_cli.report.papers.recipes import fit
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
    fits = [(*fit(variant[0], table), variant) for variant in by_variant(entries, over)]
    nearest = [(tuned, variant) for strays, tuned, variant in fits if strays == min(one[0] for one in fits)]
    variants = [variant for _, variant in nearest]
    if len({tuned for tuned, _ in nearest}) == len(variants):
        return [entry for variant in variants for entry in variant], ""
    first = variants[0][0].axes
    axes = {axis for one in variants for axis in {**first, **one[0].axes} if first.get(axis) != one[0].axes.get(axis)}
    reason = f"{len(variants)} cells of {entries[0].grid} match it and differ in {listed(sorted(axes - {over}), NAMED)}"
    return [], f"{reason}; select one with --where"


def best_variant(
    statuses: Sequence[EntryStatus], over: str, what: Metric
) -> tuple[tuple[EntryStatus, ...], tuple[EntryStatus, ...]]:
    """Return the statuses of the variant with the best mean, the first one if none has a number, and the others."""
    sign = -1 if what.better == "higher" else 1
    by_id = {status.entry.id: status for status in statuses}
    variants = [[by_id[entry.id] for entry in one] for one in by_variant([status.entry for status in statuses], over)]
    variants.sort(key=lambda own: fmean([sign * one.value for one in own if one.value is not None] or [inf]))
    return tuple(chain(*variants[:1])), tuple(chain(*variants[1:]))
