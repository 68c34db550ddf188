"""The number that one run contributes to a claim, and the pairs of a subject with its base by seed.

A number is a metric, or a feature of a curve such as the highest variance. The effect of a seed is a number on the
scale on which it is tested: a difference, a value, or the logarithm of a ratio.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean, linear_regression

from gpas_cli.errors import GpasError
from gpas_cli.extensions.claims.checks import curve_of, state_metric
from gpas_cli.grid.declared import Comparison, Entry, Feature
from gpas_cli.grid.document import Label, identity, same, spelled
from gpas_cli.report.convergence import Losses, with_convergence
from gpas_cli.report.labels import stage_kinds
from gpas_cli.report.quantities import DIVERGED, Points, Quantity, by_layer
from gpas_cli.report.recorded import Recorded
from gpas_cli.report.tables.entry_status import EntryStatus, by_variant, entry_status
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.cost import flops_per_token, parameters
from gpas_cli.spec.stage import CONVERGENCE
from gpas_cli.statistics.arrivals import Arrival
from gpas_cli.statistics.power_law import fit, fit_offset
from gpas_cli.statistics.stats import aggregate, exponential_evidence
from gpas_cli.structure import Frozen
from gpas_cli.words import grouped

_ENDED = ("done", "unrecorded")  # states of a stage that ended normally, with or without a certain metric
_EARLY_SHARE = 0.2  # of the updates


class Measured(Frozen):
    """The number of one entry; None with the reason in `status.state`. A diverged run is worse than any number.

    others: the numbers among which it is the best, where the best of several cells counts.
    """

    status: EntryStatus
    value: float | None
    others: tuple[Measured, ...] = ()

    @property
    def diverged(self) -> bool:
        return self.status.state == DIVERGED

    @property
    def settled(self) -> bool:
        """Whether the run has its number, or diverged, which is an observation too."""
        return self.value is not None or self.diverged


def measure(entries: Sequence[Entry], feature: Feature, over: str, known: Recorded) -> dict[str, Measured]:
    """Return the number of each entry by its id.

    Raises GpasError for an unknown metric or curve, or an entry without the stage that reports it.
    """
    statuses = {}
    _, slash, task = feature.metric.partition("/")  # without a task, of all tasks together
    for entry in entries:
        what = state_metric(feature, [stage.declared for stage in entry.cell.stages])
        statuses[entry.id] = entry_status(entry, over, what, task if slash else None, known.states, known.results)
    if not feature.curve:
        return {name: _of_metric(status, feature) for name, status in statuses.items()}
    done = {status.key: status for status in statuses.values() if status.state in _ENDED}
    points = _points(list(done), curve_of(feature), feature, known)
    return {name: _of_curve(status, points.get(status.key), feature) for name, status in statuses.items()}


def _of_metric(status: EntryStatus, feature: Feature) -> Measured:
    if feature.metric == DIVERGED:
        ended = {**dict.fromkeys(_ENDED, 0.0), DIVERGED: 1.0}
        return Measured(status, ended.get(status.state))
    if status.state == DIVERGED:
        kinds = [stage.declared for stage in status.entry.cell.stages]
        better = state_metric(feature, kinds).better
        return Measured(status, math.inf if better == "lower" else -math.inf)
    return Measured(status, status.value)


def _of_curve(status: EntryStatus, points: Mapping[int, Mapping[int, float]] | None, feature: Feature) -> Measured:
    if status.state not in _ENDED:
        return Measured(status, None)
    if feature.take == "early-change":
        return Measured(status, _early_change(points or {}))
    chosen = _chosen(status.entry, points or {}, feature)
    return Measured(status, float(len(chosen)) if feature.take == "count" else _taken(chosen, feature.take))


def _points(
    keys: Sequence[str], drawn: Quantity, feature: Feature, known: Recorded
) -> Mapping[str, Mapping[int, Mapping[int, float]]]:
    from gpas_cli.report.query import LAST, curves, layer_curves

    if known.engine is None:
        return {}
    updates = {"last": LAST, "all": None}.get(str(feature.updates), feature.updates)
    # Counted events, such as spikes, are at any update; "last" would leave one of them.
    until = updates if isinstance(updates, int) and feature.take != "count" else None
    if drawn.by_layer or drawn.per_layer:
        layered = layer_curves(known.engine, keys, drawn.recorded_as, until=until)
        return {key: dict(recorded) for key, recorded in layered.items()}
    plain = curves(known.engine, keys, drawn.recorded_as, until=until)
    return {key: {step: {0: value} for step, value in recorded} for key, recorded in plain.items()}


def _chosen(entry: Entry, points: Mapping[int, Mapping[int, float]], feature: Feature) -> Points:
    """Return the finite points of the chosen layers, at all of the given updates."""
    if not curve_of(feature).by_layer:
        return tuple((step, at[0]) for step, at in sorted(points.items()) if math.isfinite(at[0]))
    inside = _layer_filter(entry, feature.layers)
    outputs = curve_of(feature).outputs
    found = [point for _, values in sorted(points.items()) for point in by_layer(entry, values, outputs=outputs)[0]]
    return tuple((x, y) for x, y in found if inside(int(x)))


def _layer_filter(entry: Entry, groups: Sequence[str | int]) -> Callable[[int], bool]:
    """Return whether a layer, counted from 1, is in all of the groups; of several numbers, whether it is one of them.

    A layer is of kind `post` if its gate's place is on the shortcut, as in Post-LN and DeepNorm, and else `pre`.
    """
    depth = entry.cell.model.size.layers
    scheme = entry.cell.model.norm
    numbers = [group for group in groups if isinstance(group, int)]
    tests: dict[str, Callable[[int], bool]] = {
        "all": lambda layer: True,
        "first": lambda layer: layer == 1,
        "later": lambda layer: layer > 1,
        "shallower": lambda layer: layer <= depth / 2,
        "deeper": lambda layer: layer > depth / 2,
        "post": lambda layer: scheme.wiring(layer, depth).home == "skip",
        "pre": lambda layer: scheme.wiring(layer, depth).home != "skip",
    }
    chosen = [tests[group] for group in groups if isinstance(group, str)]
    return lambda layer: (not numbers or layer in numbers) and all(test(layer) for test in chosen)


def _taken(points: Points, take: str) -> float | None:
    """Return one number of the points (x, y); None if there are too few."""
    values = [y for _, y in points]
    if not values:
        return None
    simple: dict[str, Callable[[Iterable[float]], float]] = {"mean": fmean, "max": max, "min": min}
    if take in simple:
        return simple[take](values)
    if take in ("first", "last"):
        return values[0 if take == "first" else -1]
    if take == "share-positive":
        return fmean(y > 0 for y in values)
    if take == "exponential-aic":
        return exponential_evidence(points) if min(min(point) for point in points) > 0 else None
    if take == "log-slope":
        return slope([(x, math.log(y)) for x, y in points], scale=1.0) if min(values) > 0 else None
    return slope(points)


def _early_change(points: Mapping[int, Mapping[int, float]]) -> float | None:
    """Return the share of all movement, summed over layers, that happened in the first fifth of the updates."""
    steps = sorted(points)
    moved = {
        step: math.fsum(abs(points[step][i] - points[before][i]) for i in points[step].keys() & points[before].keys())
        for before, step in pairwise(steps)
    }
    total = math.fsum(moved.values())
    return math.fsum(moved[step] for step in moved if step <= _EARLY_SHARE * steps[-1]) / total if total else None


def slope(points: Sequence[tuple[float, float]], scale: float = 0.0) -> float | None:
    """Return the slope of the least-squares line, 0 if all y are `stats.same`; None for fewer than two distinct x."""
    if len({x for x, _ in points}) < 2:
        return None
    if not aggregate([y for _, y in points], scale).std:
        return 0.0
    return linear_regression(*zip(*points, strict=True)).slope


_GroupKey = tuple[Label | None, ...]


class Pair(Frozen):
    """One seed: the numbers of the subject and, unless values are compared, of its base.

    With `across`, these are the numbers at the first label, and `other` has the numbers at the second. `effect` is None
    if a number is missing or NaN, has no logarithm where a ratio needs it, or both runs diverged, and infinite if one
    did.
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


class Group(Frozen):
    """The pairs of one combination of the axes `by`. `unpaired` are subjects without a declared base."""

    labels: Mapping[str, Label | None]
    pairs: tuple[Pair, ...]
    unpaired: tuple[Entry, ...] = ()


def groups(comparison: Comparison, known: Recorded, losses: Losses) -> list[Group]:
    """Return the pairs of the comparison by the labels on its axes `by`, in declared order.

    losses: the smoothed training losses that a claim about a speed-up needs.

    Raises GpasError if two cells are subjects, or two are bases, for the same seed.
    """
    entries = [entry for entry in known.entries if entry.grid in comparison.grids]
    if comparison.value.metric in CONVERGENCE:
        own = replace(known, entries=tuple(entries))
        known = with_convergence(own, lambda e: comparison.is_base(e.axes), comparison.against, comparison.mark, losses)
    if comparison.across is None:
        return _plain(comparison, entries, known)
    axis, first, second = comparison.across
    plain = replace(comparison, across=None)
    near, far = (
        _plain(plain, [one for one in entries if axis in one.axes and same(one.axes[axis], label)], known)
        for label in (first, second)
    )
    others = {tuple(group.labels.items()): group for group in far}
    return [_interaction(group, others.get(tuple(group.labels.items()))) for group in near]


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
    everything = [*subjects, *candidates]
    tried = _best(comparison, everything, known) if comparison.best else {}
    tried = _fitted(comparison, everything, known) if comparison.value.along else tried
    subjects, candidates = ([one for one in some if one.id in tried or not tried] for some in (subjects, candidates))
    bases = _bases(comparison, subjects, candidates)
    needed = {entry.id: entry for entry in [*subjects, *bases.values()]}
    numbers = tried or measure(list(needed.values()), comparison.value, comparison.over, known)
    by_group = grouped((tuple(entry.axes.get(axis) for axis in comparison.by), entry) for entry in subjects)
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


_X: dict[str, Callable[[Cell], float]] = {
    "parameters": parameters,
    "flops": lambda cell: flops_per_token(cell) * _tokens(cell),
    "tokens": lambda cell: _tokens(cell),
    "layers": lambda cell: cell.model.size.layers,
    "length": lambda cell: cell.data.length,
}


def _tokens(cell: Cell) -> float:
    return cell.optim.updates * cell.optim.batch * cell.data.length


def _fitted(comparison: Comparison, entries: Sequence[Entry], known: Recorded) -> dict[str, Measured]:
    """Return the exponent or the offset of the law through the entries that differ only in the axes `along`, by the
    first of them; it has no number until all have one."""
    feature = comparison.value
    numbers = measure(entries, feature, comparison.over, known)
    found = {}
    for alike in grouped((entry.labels_without(*feature.along), entry) for entry in entries).values():
        own = [numbers[entry.id] for entry in alike]
        # A run without a number stands for all, so that its state says why there is none.
        first, *others = sorted(own, key=lambda one: one.value is not None and math.isfinite(one.value))
        value = None
        if first.value is not None and math.isfinite(first.value):
            points = [(_X[feature.x](entry.cell), numbers[entry.id].value or 0.0) for entry in alike]
            law = fit(points) if min(y for _, y in points) > 0 else None
            fitted = fit_offset(points) if feature.take == "offset" else law.exponent if law else None
            value = math.nan if fitted is None else fitted  # NaN is no evidence
        found[alike[0].id] = replace(first, value=value, others=tuple(others))
    return found


def _group(
    comparison: Comparison,
    key: _GroupKey,
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
    # Axes on which the subject has several labels that are not compared one by one.
    free = {axis for axis, labels in comparison.subject.items() if len(labels) > 1 and axis not in comparison.by}
    shared = sorted(axes - {*comparison.against, comparison.best, *comparison.value.along} - (free - {comparison.over}))
    found: dict[Hashable, Entry] = {}
    for entry in candidates:
        key = tuple(identity(entry.axes[axis]) for axis in shared)
        if key in found and found[key].cell.key != entry.cell.key:
            both = f"{found[key].id} and {entry.id} are both bases for the same seed"
            raise GpasError(f"{comparison.mark}: {both}; name one of them in `against`")
        found[key] = entry
    keys = {entry.id: tuple(identity(entry.axes[axis]) for axis in shared if axis in entry.axes) for entry in subjects}
    return {name: found[key] for name, key in keys.items() if key in found}


def _refuse_repeated(comparison: Comparison, subjects: Sequence[Entry]) -> None:
    seen: dict[Hashable, Entry] = {}
    for entry in subjects:
        seed = identity(entry.axes[comparison.over]) if comparison.over in entry.axes else None
        first = seen.setdefault(seed, entry)
        if first is not entry:
            axes = [axis for axis in entry.axes if entry.axes[axis] != first.axes.get(axis)]
            seed_words = f"{comparison.over} {spelled(entry.axes.get(comparison.over))}"
            both = f"{first.id} and {entry.id} are both subjects with {seed_words}"
            raise GpasError(f"{comparison.mark}: {both}; add {' or '.join(axes)} to `by`, or to `subject`")


def _effect(comparison: Comparison, own: Measured, base: Measured | None) -> float | None:
    """Return the effect of one seed on the scale of its test: infinite if the subject never arrives."""
    if own.value is None or (base is not None and base.value is None):
        return None
    if base is None or base.value is None:
        return None if math.isnan(own.value) else own.value
    if isinstance(own.value, Arrival) and not own.value.arrived:
        return -math.inf if own.value.speed else math.inf
    if not comparison.logarithmic or math.isinf(own.value) or math.isinf(base.value):
        return _difference(own.value, base.value)
    if min(own.value, base.value) <= 0:
        return None
    return _difference(math.log(own.value), math.log(base.value))


def _difference(a: float, b: float) -> float | None:
    """Return a - b; None for two infinite numbers, of two runs that diverged, and for NaN."""
    return None if math.isnan(a - b) or (math.isinf(a) and math.isinf(b)) else a - b
