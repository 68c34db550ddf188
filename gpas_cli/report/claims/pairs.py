"""Find the subjects of a comparison and their bases among the entries, and pair their numbers by seed.

The effect of a seed is a number on the scale on which it is tested: a difference, a value, or the logarithm of a ratio.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpas_cli.errors import GpasError
from gpas_cli.grid.claim import Comparison
from gpas_cli.grid.document import Label, identity, spelled
from gpas_cli.report.claims.measure import Measured, measure, state_metric
from gpas_cli.report.tables.table import stage_kinds
from gpas_cli.report.tables.variants import by_variant

if TYPE_CHECKING:
    from gpas_cli.grid.entry import Entry
    from gpas_cli.report.recorded import Recorded

GroupKey = tuple[Label | None, ...]


@dataclass(frozen=True)
class Pair:
    """One seed: the numbers of the subject and, unless values are compared, of its base.

    With `across`, these are the numbers at the first label, and `other` has those at the second. `effect` is None if a
    number is missing or NaN, has no logarithm where a ratio needs it, or both runs diverged, and infinite if one did.
    """

    seed: Label | None
    own: Measured
    base: Measured | None
    effect: float | None
    other: Pair | None = None

    @property
    def measured(self) -> list[Measured]:
        """All numbers of the pair."""
        inner = self.other.measured if self.other else []
        return [one for own in (self.own, self.base) if own is not None for one in (own, *own.others)] + inner


@dataclass(frozen=True)
class Group:
    """The pairs of one combination of the axes `by`. `unpaired` are subjects without a declared base."""

    labels: Mapping[str, Label | None]
    pairs: tuple[Pair, ...]
    unpaired: tuple[Entry, ...] = ()


def groups(comparison: Comparison, known: Recorded) -> list[Group]:
    """Return the pairs of the comparison by the labels on its axes `by`, in declared order.

    Raises GpasError if two cells are subjects, or two are bases, for the same seed.
    """
    entries = [entry for entry in known.entries if entry.grid in comparison.grids]
    if comparison.across is None:
        return _plain(comparison, entries, known)
    axis, first, second = comparison.across
    plain = replace(comparison, across=None)
    near = _plain(plain, [entry for entry in entries if _is(entry, axis, first)], known)
    far = {_identity(group): group for group in _plain(plain, [e for e in entries if _is(e, axis, second)], known)}
    return [_interaction(group, far.get(_identity(group))) for group in near]


def _is(entry: Entry, axis: str, label: Label) -> bool:
    return axis in entry.axes and identity(entry.axes[axis]) == identity(label)


def _identity(group: Group) -> Hashable:
    return tuple(group.labels.items())


def _interaction(near: Group, far: Group | None) -> Group:
    others = {pair.seed: pair for pair in far.pairs} if far else {}
    pairs = []
    for pair in near.pairs:
        other = others.get(pair.seed)
        effects = (pair.effect, other.effect if other else None)
        both = effects[0] is not None and effects[1] is not None
        effect = _difference(effects[0] or 0.0, effects[1] or 0.0) if both else None
        pairs.append(replace(pair, effect=effect, other=other))
    return replace(near, pairs=tuple(pairs))


def _plain(comparison: Comparison, entries: Sequence[Entry], known: Recorded) -> list[Group]:
    subjects = [entry for entry in entries if comparison.is_subject(entry.axes)]
    candidates = [entry for entry in entries if comparison.is_base(entry.axes)] if comparison.against else []
    tried = _best(comparison, [*subjects, *candidates], known) if comparison.best else {}
    subjects, candidates = ([one for one in some if one.id in tried or not tried] for some in (subjects, candidates))
    bases = _bases(comparison, subjects, candidates)
    needed = {entry.id: entry for entry in [*subjects, *bases.values()]}
    numbers = tried or measure(list(needed.values()), comparison.value, comparison.over, known)
    by_group: dict[GroupKey, list[Entry]] = {}
    for entry in subjects:
        by_group.setdefault(tuple(entry.axes.get(axis) for axis in comparison.by), []).append(entry)
    return [_group(comparison, key, found, bases, numbers) for key, found in by_group.items()]


def _best(comparison: Comparison, entries: Sequence[Entry], known: Recorded) -> dict[str, Measured]:
    """Return the best number of the entries that differ only in the axis `best`, by its entry; an absent one wins."""
    numbers = measure(entries, comparison.value, comparison.over, known)
    sign = -1 if state_metric(comparison.value, stage_kinds(entries)).better == "higher" else 1
    found = {}
    for variant in by_variant(entries, comparison.best):
        tried = (numbers[entry.id] for entry in variant)
        first, *others = sorted(tried, key=lambda one: -math.inf if one.value is None else sign * one.value)
        found[first.status.entry.id] = replace(first, others=tuple(others))
    return found


def _group(
    comparison: Comparison,
    key: GroupKey,
    subjects: Sequence[Entry],
    bases: Mapping[str, Entry],
    numbers: Mapping[str, Measured],
) -> Group:
    paired = [entry for entry in subjects if entry.id in bases or not comparison.against]
    _refuse_repeated(comparison, paired)
    pairs = []
    for entry in paired:
        own = numbers[entry.id]
        base = numbers[bases[entry.id].id] if comparison.against else None
        pairs.append(Pair(entry.axes.get(comparison.over), own, base, _effect(comparison, own, base)))
    unpaired = tuple(entry for entry in subjects if comparison.against and entry.id not in bases)
    return Group(dict(zip(comparison.by, key, strict=True)), tuple(pairs), unpaired)


def _bases(comparison: Comparison, subjects: Sequence[Entry], candidates: Sequence[Entry]) -> dict[str, Entry]:
    """Return the base of each subject by its id: the cell that differs from it only in the axes of `against`.

    Axes that only some of the cells have, such as settings of the gate, are left out of the comparison.
    """
    axes = set.intersection(*(set(entry.axes) for entry in [*subjects, *candidates])) if candidates else set()
    shared = sorted(axes - {*comparison.against, comparison.best} - _free(comparison))
    found: dict[Hashable, Entry] = {}
    for entry in candidates:
        key = tuple(identity(entry.axes[axis]) for axis in shared)
        if key in found and found[key].cell.key != entry.cell.key:
            raise GpasError(
                f"{_place(comparison)}: {found[key].id} and {entry.id} are both bases for the same seed; "
                "name one of them in `against`"
            )
        found[key] = entry
    keys = {entry.id: tuple(identity(entry.axes[axis]) for axis in shared if axis in entry.axes) for entry in subjects}
    return {name: found[key] for name, key in keys.items() if key in found}


def _free(comparison: Comparison) -> set[str]:
    """Return the axes on which the subject has several labels that are not compared one by one."""
    return {axis for axis, labels in comparison.subject.items() if len(labels) > 1 and axis not in comparison.by} - {
        comparison.over
    }


def _refuse_repeated(comparison: Comparison, subjects: Sequence[Entry]) -> None:
    seen: dict[Hashable, Entry] = {}
    for entry in subjects:
        seed = identity(entry.axes[comparison.over]) if comparison.over in entry.axes else None
        first = seen.setdefault(seed, entry)
        if first is not entry:
            axes = [axis for axis in entry.axes if entry.axes[axis] != first.axes.get(axis)]
            raise GpasError(
                f"{_place(comparison)}: {first.id} and {entry.id} are both subjects with {comparison.over} "
                f"{spelled(entry.axes.get(comparison.over))}; add {' or '.join(axes)} to `by`, or to `subject`"
            )


def _place(comparison: Comparison) -> str:
    return str(comparison.mark)


def _effect(comparison: Comparison, own: Measured, base: Measured | None) -> float | None:
    """Return the effect of one seed on the scale of its test."""
    if own.value is None or (base is not None and base.value is None):
        return None
    if base is None or base.value is None:
        return None if math.isnan(own.value) else own.value
    if comparison.compare == "difference" or math.isinf(own.value) or math.isinf(base.value):
        return _difference(own.value, base.value)
    if min(own.value, base.value) <= 0:
        return None
    return _difference(math.log(own.value), math.log(base.value))


def _difference(a: float, b: float) -> float | None:
    """Return a - b; None for two infinite numbers, of two runs that diverged, and for NaN."""
    return None if math.isnan(a - b) or (math.isinf(a) and math.isinf(b)) else a - b
