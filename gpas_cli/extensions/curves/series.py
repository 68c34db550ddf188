"""Read the curves of cells and group them into one series per method.

A curve is over updates or layers, at chosen updates, of chosen layers, or the ratio of two cells'. A series has the
mean and standard deviation over seeds, a title, a colour and a line style: colours distinguish schemes and whatever
else varies, line styles gates, so that a scheme beside others has one colour with and without GPAS.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cache, partial
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, NamedTuple

from gpas_cli.errors import GpasError
from gpas_cli.grid.declared import Entry
from gpas_cli.grid.document import Label
from gpas_cli.report.labels import has_labels, label_title, row_title, scheme_titles
from gpas_cli.report.quantities import QUANTITIES, Points, Quantity, by_layer
from gpas_cli.spec.cell import NETWORK, Stage
from gpas_cli.spec.norm import SCHEMES
from gpas_cli.spec.parse import flat
from gpas_cli.spec.stage import BINS, BINS_END
from gpas_cli.statistics.stats import Aggregate, aggregate
from gpas_cli.structure import HIDDEN, Frozen
from gpas_cli.words import one_line

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from gpas_cli.report.query import Curve, LayerCurve


_STYLES = 4  # distinguishable line styles; a grid with more gates gets a colour for each
_HUES = 8  # distinguishable colours
_METHOD = ("norm", "gate")  # axes that form the first part of a title
_NAMED_METHOD = "method"  # the label of curves whose method has a title
PART = "part"  # the label of curves of a part of the network: W_q
_ENTRIES_AT_ONCE = 100  # whose curves are in memory together


class CellCurve(Frozen):
    """The curve of one cell."""

    entry: Entry
    over: str  # the axis that is averaged, usually `seed`
    points: Points  # finite, (x, y) in order of x
    marks: Points = ()  # points marked as spikes
    final_norm: float | None = None  # the final norm's value
    step: int | None = None  # the update at which a curve by layer was recorded
    matrix: tuple[tuple[float, ...], ...] = ()  # the rows of a heat map, from the lowest
    columns: tuple[float, ...] = ()  # the x of the columns of `matrix`, by default 1, 2, ...
    stage: str = ""  # the key of the stage that recorded it, "" for other curves
    method: str = ""  # the title of the cell's method, "" to derive it from the cell's labels
    method_axes: tuple[str, ...] = ()  # the axes whose labels `method` replaces
    variant: tuple[tuple[str, Label], ...] = ()  # labels that distinguish several curves of one cell: (("layer", 3),)
    raw: Points = ()  # the points before they were smoothed

    @property
    def over_label(self) -> Label | None:
        """The cell's label on the averaged axis."""
        return self.entry.axes.get(self.over)

    @property
    def labels(self) -> dict[str, Label]:
        """The labels that distinguish this curve's method from others."""
        left_out = (self.over, *self.method_axes)
        own = {axis: label for axis, label in self.entry.axes.items() if axis not in left_out}
        return {**own, **({_NAMED_METHOD: self.method} if self.method else {}), **dict(self.variant)}


class Series(Frozen):
    """The runs of one method. `labels` are the ones that they share.

    If colours represent numbers of the axis `shaded`, `method` is the title without the number.
    """

    title: str
    labels: Mapping[str, Label]
    runs: tuple[CellCurve, ...] = field(metadata=HIDDEN)
    colour: Annotated[int, "hue: the scheme's, or a number from 0"] = 0
    style: Annotated[int, "line style: 0 with a gate, 1 without one; further ones where there are too few colours"] = 0
    shade: Annotated[float | None, "between 0 and 1 if colours represent numbers"] = None
    shaded: str = field(default="", metadata=HIDDEN)
    method: str = field(default="", metadata=HIDDEN)

    def mean(self) -> list[tuple[float, Aggregate]]:
        """Return the mean and standard deviation at every x that all runs have."""
        values = [dict(run.points) for run in self.runs]
        common = sorted(set.intersection(*(set(points) for points in values)))
        return [(x, aggregate([points[x] for points in values])) for x in common]

    def matrix(self) -> list[list[float]]:
        """Return the mean of the runs' matrices, of the rows that all of them have."""
        rows = zip(*(run.matrix for run in self.runs), strict=False)
        return [[fmean(values) for values in zip(*same, strict=False)] for same in rows]

    def columns(self) -> tuple[float, ...]:
        """Return the x of the matrix's columns."""
        rows = self.matrix()
        return self.runs[0].columns[: len(rows[0])] or tuple(float(i + 1) for i in range(len(rows[0])))

    def tails(self) -> list[Points]:
        """Return the parts of runs beyond the last x of the mean, where some run has not got that far."""
        common = self.mean()
        last = common[-1][0] if common else -math.inf
        tails = [tuple(point for point in run.points if point[0] >= last) for run in self.runs]
        return [tail for tail in tails if len(tail) > (1 if common else 0)]

    def final_norm(self) -> Aggregate | None:
        """Return the mean and standard deviation of the final norm's values, None unless all runs have one."""
        values = [run.final_norm for run in self.runs if run.final_norm is not None]
        return aggregate(values) if values and len(values) == len(self.runs) else None


def over_updates(curve: Iterable[tuple[float, float]], scale: float = 1.0) -> Points:
    """Return the finite points of a curve, scaled."""
    return tuple((x, y * scale) for x, y in curve if math.isfinite(y))


def make_series(runs: Sequence[CellCurve]) -> tuple[Series, ...]:
    """Return a series for each set of runs that differ only on the averaged axis, in declared order.

    A cell that several grids share counts once, and so does a stage that cells of a series share.
    """
    # Reversed twice, so that the first of equal cells is kept.
    distinct = list({(run.entry.cell.key, run.variant): run for run in reversed(runs)}.values())[::-1]
    groups: dict[tuple[str, frozenset[tuple[str, Label]]], list[CellCurve]] = {}
    for run in distinct:
        group = groups.setdefault((run.entry.grid, frozenset(run.labels.items())), [])
        if not run.stage or run.stage not in [other.stage for other in group]:
            group.append(run)
    titles = scheme_titles([run.entry for run in distinct])
    axes = dict.fromkeys(axis for group in groups.values() for axis in group[0].labels)
    labels = [_completed(group[0], axes) for group in groups.values()]
    # Networks that were not trained here have names, and none of the labels of a training.
    trained = [mapping for mapping in labels if NETWORK not in mapping]
    varying = [axis for axis in axes if len({mapping.get(axis) for mapping in trained or labels}) > 1]
    variants = {axis for run in distinct for axis, _ in run.variant}
    names = [_title(own, varying, variants, titles) for own in labels]
    hued = [*varying, NETWORK] if len({mapping.get(NETWORK) for mapping in labels}) > 1 else varying
    shaded = _shaded_axis(labels, hued)
    found = []
    for name, own, group in zip(names, labels, groups.values(), strict=True):
        title = f"{name} ({group[0].entry.grid})" if names.count(name) > 1 else name  # two grids have it
        method = _title(own, [axis for axis in varying if axis != shaded], variants - {shaded}, titles)
        found.append(Series(title, own, tuple(group), shaded=shaded, method=method))
    return tuple(_coloured(found, hued, shaded))


def _completed(run: CellCurve, axes: Iterable[str]) -> dict[str, Label]:
    """Return the labels with the cell's own settings on those of `axes` that only other grids name."""
    absent = [axis for axis in axes if axis not in (*run.labels, run.over, *run.method_axes)]
    settings = flat(run.entry.cell.to_mapping()) if absent and run.entry.cell.network is None else {}
    own = {axis: settings[axis] for axis in absent if isinstance(settings.get(axis), Label)}
    return {**run.labels, **own}


def _title(
    labels: Mapping[str, Label], varying: Sequence[str], variants: Collection[str], titles: Mapping[Label, str]
) -> str:
    """Return the method and the labels of other varying axes: "Pre-LN + GPAS, optim.lr 0.001".

    If the curves differ only by variants, the method is left out: "layer 3".
    """
    if NETWORK in labels:
        return one_line(", ".join(str(labels[axis]) for axis in (NETWORK, *variants) if axis in labels))
    method = [axis for axis in _METHOD if axis in labels]
    others = [axis for axis in varying if axis not in (*_METHOD, _NAMED_METHOD)]
    words = [str(labels[_NAMED_METHOD])] if _NAMED_METHOD in labels else []
    words += [row_title(method, tuple(labels[axis] for axis in method), titles)] if method else []
    if others and set(varying) <= set(variants):
        words = []
    for axis in others:
        label = labels.get(axis)
        words.append(str(label) if axis == PART else label_title(axis, label, titles) or f"no {axis}")
    return one_line(", ".join(words))


def _shaded_axis(labels: Sequence[Mapping[str, Label]], varying: Sequence[str]) -> str:
    """Return the axis whose numbers are shades, or "": the only one beside the gate or, of more lines than colours, the
    one with the most numbers, if they are as many as the methods."""
    others = [axis for axis in varying if axis != "gate"]
    columns = {axis: {own.get(axis) for own in labels} for axis in others if axis not in _METHOD}
    ordered = [axis for axis, found in columns.items() if all(type(label) in (int, float) for label in found)]
    lines = len({tuple(own.get(axis) for axis in others) for own in labels})
    first = max(ordered, key=lambda axis: len(columns[axis]), default="")
    return first if len(others) == 1 or len(columns.get(first, ())) ** 2 >= lines > _HUES else ""


def _coloured(found: Sequence[Series], varying: Sequence[str], shaded: str) -> Iterator[Series]:
    """Yield the series with their looks: no two are equal, as far as there are colours and styles."""
    gates = _styles([series.labels.get("gate", "none") for series in found])
    colours = _colours(found, [axis for axis in varying if axis != shaded and (axis != "gate" or not gates)])
    distinct = list(dict.fromkeys(colours))
    numbers = sorted({float(str(series.labels[shaded])) for series in found}) if shaded else []
    for series, colour in zip(found, colours, strict=True):
        gate = gates.get(series.labels.get("gate", "none"), 0)
        lap = distinct.index(colour) if shaded else colour // _HUES  # only styles distinguish methods of one shade
        yield replace(
            series,
            colour=colour if shaded or len(distinct) > 1 else colour + gate,
            style=gate + max(1, len(gates)) * lap,
            shade=numbers.index(float(str(series.labels[shaded]))) / max(1, len(numbers) - 1) if shaded else None,
        )


def _styles(gates: Sequence[Label]) -> dict[Label, int]:
    """Return line styles by gate: the first is solid, 0, and no gate beside it dashed, 1. {} if there are too many."""
    distinct = list(dict.fromkeys(gates))
    others = [gate for gate in distinct if gate != "none"]
    order = [*others[:1], "none", *others[1:]] if others and "none" in distinct else distinct
    return {gate: index for index, gate in enumerate(order)} if len(order) <= _STYLES else {}


def _colours(found: Sequence[Series], hued: Sequence[str]) -> list[int]:
    """Return a colour for each series. A scheme has the same colour in every figure coloured by schemes alone."""
    keys = []
    for series in found:
        alike = sum(other.labels == series.labels for other in found) > 1  # of another grid
        grid = series.runs[0].entry.grid if alike else ""
        keys.append((*(series.labels.get(axis) for axis in hued), grid))
    distinct = list(dict.fromkeys(keys))
    schemes = [str(series.labels.get("norm")) for series in found]
    if set(hued) <= {"norm"} and set(schemes) <= SCHEMES.keys() and not any(key[-1] for key in keys):
        own = [list(SCHEMES).index(scheme) % _HUES for scheme in schemes]
        if len(set(own)) == len(distinct):
            return own
    return [distinct.index(key) for key in keys]


class Selection(Frozen):
    """What is drawn of a quantity."""

    quantity: Quantity
    at: tuple[int, ...] = ()  # the updates at which a quantity by layer is drawn; () for the last recorded one
    planned: int = 0
    """The number of updates of the training that `at` refers to, scaled to each cell's own number; 0: `at` counts the
    cell's own updates."""
    layers: tuple[float, ...] | None = None
    """Draw a quantity by layer over updates, a curve for each of these layers; () for all of them, None to draw it over
    layers."""
    every: int = 1  # draw only the first, every n-th and the last of `layers`
    start: float = 0.0  # the first update that is drawn, or below 1 the fraction of the training that is left out
    map: bool = False  # draw layers over updates as a heat map

    def __post_init__(self) -> None:
        by_layers = self.at or self.layers is not None or self.map
        by_updates = self.quantity.by_layer and not self.quantity.spans
        if (by_layers and not by_updates) or (self.map and self.quantity.bins):
            raise GpasError(f"'{self.quantity.name}' is not recorded by layer over updates")

    @property
    def over_layers(self) -> bool:
        """Whether x counts layers."""
        return self.quantity.by_layer and self.layers is None and not self.map and not self.quantity.bins


def curves(
    engine: Engine | None,
    entries: Sequence[Entry],
    selection: Selection,
    averaged: Callable[[Entry], str] = lambda entry: "seed",
) -> list[CellCurve]:
    """Return the curves of the cells that have recorded them; `averaged` returns the averaged axis of an entry."""
    if engine is None:
        return []
    from gpas_cli.report import query

    # Only the ends of curves if nothing else is drawn.
    until = query.LAST if selection.over_layers and not selection.at else None
    found: list[CellCurve] = []
    for start in range(0, len(entries), _ENTRIES_AT_ONCE):
        part = entries[start : start + _ENTRIES_AT_ONCE]
        keys = [stage.key for entry in part for stage in _stages(entry, selection)]
        read_layers = partial(query.layer_curves, engine, keys, until=until)
        stored = _Stored(cache(partial(query.curves, engine, keys)), cache(read_layers))
        found += (run for entry in part for run in _cell_curves(stored, entry, averaged(entry), selection))
    return found


def recorded_quantities(engine: Engine | None, entries: Sequence[Entry]) -> list[str]:
    """Return the names of the quantities that any of the cells has recorded."""
    if engine is None:
        return []
    from gpas_cli.report.query import curve_names

    stages = [stage for entry in entries for stage in entry.cell.stages]
    over_updates, _ = curve_names(engine, [stage.key for stage in stages if stage.declared.trains])
    _, by_layers = curve_names(engine, [stage.key for stage in stages])
    places = {name: by_layers if one.by_layer or one.per_layer else over_updates for name, one in QUANTITIES.items()}
    return [name for name, found in places.items() if QUANTITIES[name].recorded_as in found]


def _stages(entry: Entry, selection: Selection) -> list[Stage]:
    """Return the stages whose curves may be drawn, in order of preference: the last first, but those that train before
    the others where updates are chosen or drawn."""
    last_first = list(reversed(entry.cell.stages))
    trainings = [stage for stage in last_first if stage.declared.trains]
    if not selection.quantity.by_layer:  # other stages have losses without a layer, one after the other
        return trainings
    if selection.over_layers and not selection.at:
        return last_first
    return [*trainings, *(stage for stage in last_first if not stage.declared.trains)]


class _Stored(NamedTuple):
    """Return the curves of some stages called a name, by stage key. Each is read from the database once."""

    curves: Callable[[str], Mapping[str, Curve]]
    layer_curves: Callable[[str], Mapping[str, LayerCurve]]


def _cell_curves(stored: _Stored, entry: Entry, over: str, selection: Selection) -> list[CellCurve]:
    """Return the curves of the cell's last stage that recorded any."""
    for stage in _stages(entry, selection):
        blank = CellCurve(entry, over, (), stage=stage.key)
        found = [run for run in _stage_curves(stored, stage.key, blank, selection) if run.points or run.matrix]
        if found:
            return found
    return []


def _stage_curves(stored: _Stored, key: str, blank: CellCurve, selection: Selection) -> Iterator[CellCurve]:
    quantity = selection.quantity
    start = selection.start
    first = start * blank.entry.cell.optim.updates if start < 1 else start
    if not (quantity.by_layer or quantity.per_layer):
        points = over_updates(stored.curves(quantity.recorded_as).get(key, []), quantity.scale)
        marks = stored.curves(quantity.spikes).get(key, []) if quantity.spikes else []
        yield replace(blank, points=_from(points, first), marks=_from(over_updates(marks, quantity.scale), first))
        return
    recorded = stored.layer_curves(quantity.recorded_as).get(key, [])
    if not recorded:
        return
    last, _ = recorded[-1]
    later = [row for row in recorded if row[0] >= first]
    if quantity.per_layer:
        points = over_updates(((step, at[0]) for step, at in recorded), quantity.scale)
        yield replace(blank, points=_from(points, first))
    elif quantity.spans:
        # The last recorded values over n = 1, 2, ... layers, by layer.
        further = [f"/{n}" for n in range(2, blank.entry.cell.model.size.layers + 1)]
        read = [stored.layer_curves(quantity.recorded_as + n).get(key, []) for n in ("", *further)]
        rows = tuple(tuple(value for _, value in sorted(of[-1][1].items())) if of else () for of in read)
        yield replace(blank, step=last, matrix=rows)
    elif quantity.bins:
        for layer in _chosen_layers(selection, [1 + index for index in recorded[-1][1]]):
            shares = stored.layer_curves(f"{quantity.name}/{layer:g}").get(key, [])
            yield from _densities(shares, replace(blank, variant=(_layer_label(layer),)), selection)
    elif selection.map:
        yield _layers_over_updates(later, blank, quantity)
    elif selection.layers is not None:
        yield from _curve_per_layer(later, blank, selection)
    else:
        yield from _curve_per_update(recorded, blank, selection)


def _from(points: Points, first: float) -> Points:
    return tuple(point for point in points if point[0] >= first)


def _layers_over_updates(recorded: LayerCurve, blank: CellCurve, quantity: Quantity) -> CellCurve:
    """Return the heat map: a row for each layer, a column for each update at which all layers have a value."""
    columns = [(step, dict(by_layer(blank.entry, at, outputs=quantity.outputs)[0])) for step, at in recorded]
    layers = max((len(values) for _, values in columns), default=0)
    complete = [(step, values) for step, values in columns if len(values) == layers]
    rows = tuple(zip(*([values[layer] for layer in sorted(values)] for _, values in complete), strict=True))
    return replace(blank, matrix=rows, columns=tuple(float(step) for step, _ in complete))


def _curve_per_layer(recorded: LayerCurve, blank: CellCurve, selection: Selection) -> Iterator[CellCurve]:
    outputs = selection.quantity.outputs
    rows = [(step, dict(by_layer(blank.entry, at, outputs=outputs)[0])) for step, at in recorded]
    known = sorted({layer for _, values in rows for layer in values})
    for layer in _chosen_layers(selection, known):
        points = tuple((float(step), values[layer]) for step, values in rows if layer in values)
        yield replace(blank, points=points, variant=(_layer_label(layer),))


def _chosen_layers(selection: Selection, known: Sequence[float]) -> Sequence[float]:
    """Return the layers to draw: by default the first of `known`, every n-th after it, and the last."""
    return selection.layers or sorted({*known[:: selection.every], *known[-1:]})


def _layer_label(layer: float) -> tuple[str, Label]:
    return "layer", int(layer) if layer == int(layer) else layer


def _densities(recorded: LayerCurve, blank: CellCurve, selection: Selection) -> Iterator[CellCurve]:
    """Yield the densities of a layer's outputs in standard deviations, at the middle of each bin between the ends."""
    width = 2 * BINS_END / BINS
    for step, shares, variant in _at_updates(recorded, blank, selection):
        inside = ((bin, share) for bin, share in shares.items() if 0 < bin <= BINS)
        points = tuple(((bin - 0.5) * width - BINS_END, share / width) for bin, share in inside)
        yield replace(blank, points=points, step=step, variant=(*blank.variant, *variant))


def _curve_per_update(recorded: LayerCurve, blank: CellCurve, selection: Selection) -> Iterator[CellCurve]:
    for step, values, variant in _at_updates(recorded, blank, selection):
        points, final = by_layer(blank.entry, values, outputs=selection.quantity.outputs)
        yield replace(blank, points=points, final_norm=final, step=step, variant=variant)


def _at_updates(
    recorded: LayerCurve, blank: CellCurve, selection: Selection
) -> Iterator[tuple[int, Mapping[int, float], tuple[tuple[str, Label], ...]]]:
    """Yield the recorded updates that are drawn, by default the last, with their values and what they are called."""
    steps = [step for step, _ in recorded]
    values = dict(recorded)
    scale = blank.entry.cell.optim.steps / selection.planned if selection.planned else 1.0
    for asked in selection.at or steps[-1:]:
        step = _nearest(steps, asked * scale if selection.at else asked)
        if step is not None:
            yield step, values[step], (("update", step),) if len(selection.at) > 1 else ()


def _nearest(steps: Sequence[int], wanted: float) -> int | None:
    """Return the recorded update next to `wanted`, None if recording ended or began further away than its interval."""
    nearest = min(steps, key=lambda step: abs(step - wanted))
    interval = max((after - before for before, after in pairwise(steps)), default=0)
    return nearest if abs(nearest - wanted) <= interval else None


def of_part(runs: Sequence[CellCurve], part: str) -> list[CellCurve]:
    """Return the curves labelled as a part of the network."""
    return [replace(run, variant=((PART, part), *run.variant)) for run in runs]


def ratios(runs: Sequence[CellCurve], against: Mapping[str, Label]) -> list[CellCurve]:
    """Return each curve divided by the curve of the cell with the labels `against` and otherwise equal ones.

    Curves without such a cell, points that only one of the two has or at which the divisor is zero, and the final norm
    are left out.
    """
    bases = {_position(run, against): dict(run.points) for run in runs if has_labels(run.entry, against)}
    own = [run for run in runs if not has_labels(run.entry, against)]
    made = [(run, bases.get(_position(run, against), {})) for run in own]
    divided = [
        replace(run, points=tuple((x, y / base[x]) for x, y in run.points if base.get(x)), marks=(), final_norm=None)
        for run, base in made
    ]
    return [run for run in divided if run.points]


def _position(run: CellCurve, against: Mapping[str, Label]) -> tuple[object, ...]:
    """Return what a curve and its divisor have in common."""
    return run.entry.grid, run.entry.labels_without(*against), run.variant
