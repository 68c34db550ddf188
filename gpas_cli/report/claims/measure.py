"""The number that one run contributes to a claim: a metric, or a feature of a curve such as the highest variance."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING

from gpas_cli.errors import GpasError
from gpas_cli.grid.claim import Feature
from gpas_cli.grid.document import Label
from gpas_cli.report.figures.quantities import Quantity, quantity
from gpas_cli.report.figures.series import Points, by_layer
from gpas_cli.report.labels import usual_label
from gpas_cli.report.metrics import metric
from gpas_cli.report.tables.entry_status import EntryStatus, entry_status
from gpas_cli.spec.stage import Metric, StageKind
from gpas_cli.statistics.growth import exponential_evidence
from gpas_cli.statistics.stats import aggregate

if TYPE_CHECKING:
    from gpas_cli.grid.entry import Entry
    from gpas_cli.report.recorded import Recorded

ENDED = ("done", "unrecorded")  # states of a stage that ended normally, with or without a certain metric
DIVERGED = "diverged"  # the metric that is 1 for a run that diverged and 0 for one that did not
# The metric whose state says whether the stage that records a curve has ended.
IMPORTANCE_CURVES = (
    *("importance", "importance_score", "angular_distance", "angular_distances", "stream_norm", "stability"),
)
# Spikes are recorded as curves; a claim counts them.
SPIKES = {f"spike_{of}": Quantity(f"spike_{of}", f"spikes of the {of}") for of in ("loss", "grad_norm")}
EARLY_SHARE = 0.2  # of the updates


@dataclass(frozen=True)
class Measured:
    """The number of one entry; None with the reason in `status.state`. A diverged run is worse than any number.

    others: the numbers among which it is the best, where the best of several cells counts.
    """

    status: EntryStatus
    value: float | None
    others: tuple[Measured, ...] = ()

    @property
    def diverged(self) -> bool:
        return self.status.state == DIVERGED


def state_metric(feature: Feature, kinds: Iterable[StageKind]) -> Metric:
    """Return the metric whose stage reports the feature. Raises GpasError for an unknown metric or curve."""
    if feature.metric and feature.metric != DIVERGED:
        return metric(feature.metric.partition("/")[0], kinds)
    if feature.curve:
        curve_of(feature)
    return metric("mean_importance" if feature.curve in IMPORTANCE_CURVES else "loss", kinds)


def stage_of(feature: Feature, kinds: Iterable[StageKind]) -> str:
    """Return the name of the stage that reports the feature. Raises GpasError for an unknown metric or curve."""
    return state_metric(feature, kinds).stage


def curve_of(feature: Feature) -> Quantity:
    """Return the curve that the feature is taken from. Raises GpasError with the nearest name."""
    return SPIKES[feature.curve] if feature.curve in SPIKES else quantity(feature.curve)


def measure(entries: Sequence[Entry], feature: Feature, over: str, known: Recorded) -> dict[str, Measured]:
    """Return the number of each entry by its id.

    Raises GpasError for an unknown metric or curve, or an entry without the stage that reports it.
    """
    statuses = {entry.id: _status(entry, feature, over, known) for entry in entries}
    if not feature.curve:
        return {name: _of_metric(status, feature) for name, status in statuses.items()}
    done = {status.key: status for status in statuses.values() if status.state in ENDED}
    points = _points(list(done), curve_of(feature), feature, known)
    return {name: _of_curve(status, points.get(status.key), feature) for name, status in statuses.items()}


def _status(entry: Entry, feature: Feature, over: str, known: Recorded) -> EntryStatus:
    what = state_metric(feature, [stage.declared for stage in entry.cell.stages])
    seed: Label | None = entry.axes.get(over)
    return entry_status(entry, seed, what, recorded_name(entry, feature, what), known.states, known.results)


def recorded_name(entry: Entry, feature: Feature, what: Metric) -> str:
    """Return the name under which an attempt reports the feature: METRIC/TASK, by default of all tasks together."""
    usual = usual_label(entry.cell, what)
    if usual is None or "/" in feature.metric:
        return feature.metric if what.by_task else what.name
    return what.recorded_as(usual)


def _of_metric(status: EntryStatus, feature: Feature) -> Measured:
    if feature.metric == DIVERGED:
        ended = {**dict.fromkeys(ENDED, 0.0), DIVERGED: 1.0}
        return Measured(status, ended.get(status.state))
    if status.state == DIVERGED:
        kinds = [stage.declared for stage in status.entry.cell.stages]
        better = state_metric(feature, kinds).better
        return Measured(status, math.inf if better == "lower" else -math.inf)
    return Measured(status, status.value)


def _of_curve(status: EntryStatus, points: Mapping[int, Mapping[int, float]] | None, feature: Feature) -> Measured:
    if status.state not in ENDED:
        return Measured(status, None)
    if feature.take == "early-change":
        return Measured(status, _early_change(points or {}))
    chosen = _chosen(status.entry, points or {}, feature)
    if feature.take == "count":
        return Measured(status, float(len(chosen)))
    return Measured(status, _taken(chosen, feature.take))


def _points(
    keys: Sequence[str], drawn: Quantity, feature: Feature, known: Recorded
) -> Mapping[str, Mapping[int, Mapping[int, float]]]:
    from gpas_cli.report.curves import LAST, curves, layer_curves

    if known.engine is None:
        return {}
    updates = {"last": LAST, "all": None}.get(str(feature.updates), feature.updates)
    # What is counted, such as spikes, lies at any update; "last" would leave one point of it.
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
    inside = layer_filter(entry, feature.layers)
    outputs = curve_of(feature).outputs
    found = [point for _, values in sorted(points.items()) for point in by_layer(entry, values, outputs=outputs)[0]]
    return tuple((x, y) for x, y in found if inside(int(x)))


def layer_filter(entry: Entry, groups: Sequence[str | int]) -> Callable[[int], bool]:
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
    return math.fsum(moved[step] for step in moved if step <= EARLY_SHARE * steps[-1]) / total if total else None


def slope(points: Sequence[tuple[float, float]], scale: float = 0.0) -> float | None:
    """Return the slope of the least-squares line, 0 if all y are `stats.same`; None for fewer than two distinct x."""
    if len({x for x, _ in points}) < 2:
        return None
    if not aggregate([y for _, y in points], scale).std:
        return 0.0
    centre = fmean(x for x, _ in points)
    height = fmean(y for _, y in points)
    spread = math.fsum((x - centre) ** 2 for x, _ in points)
    return math.fsum((x - centre) * (y - height) for x, y in points) / spread


def feature_fault(feature: Feature, kinds: Iterable[StageKind] = ()) -> str:
    """Return what is wrong with a declared feature, "" if nothing is. `kinds` are the stages that plugins add."""
    try:
        state_metric(feature, kinds)
    except GpasError as error:
        return str(error)
    if not feature.curve:
        return _task_fault(feature, kinds)
    drawn = curve_of(feature)
    if drawn.spans:
        return f"'{feature.curve}' has a value for every pair of layers; a claim needs one for every layer or update"
    if feature.layers != ("all",) and not drawn.by_layer:
        return f"'{feature.curve}' is not recorded by layer"
    if feature.take.endswith(("slope", "-aic")) and drawn.by_layer and feature.updates == "all":
        what = "slope" if feature.take.endswith("slope") else "law of growth"
        return f"a {what} over layers is taken at one update; write updates: last, or a number"
    if feature.take == "early-change" and feature.updates != "all":
        return "early-change compares updates; write updates: all"
    if feature.take == "count" and isinstance(feature.updates, int):
        return "a count is of all updates; leave out updates"
    return ""


def _task_fault(feature: Feature, kinds: Iterable[StageKind]) -> str:
    name, slash, _ = feature.metric.partition("/")
    if slash and not state_metric(feature, kinds).by_task:
        return f"'{name}' has no tasks; write {name}"
    return ""
