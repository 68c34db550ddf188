"""Group curves of cells into one series per method: mean and standard deviation over seeds, title, colour, line style.

Colours distinguish schemes and whatever else varies, line styles gates, so that a scheme with and without GPAS has one
colour. This module does not need matplotlib.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from gpas_cli.grid.declared import Entry
from gpas_cli.grid.document import Label
from gpas_cli.report.labels import label_title, row_title, scheme_titles
from gpas_cli.spec.cell import NETWORK
from gpas_cli.spec.norm import SCHEMES
from gpas_cli.statistics.stats import Aggregate, aggregate
from gpas_cli.words import one_line

Points = tuple[tuple[float, float], ...]

_STYLES = 4  # distinguishable line styles; a grid with more gates gets a colour for each
_METHOD = ("norm", "gate")  # axes that form the first part of a title
_NAMED_METHOD = "method"  # the label of curves whose method has a title of its own
PART = "part"  # the label of curves of a part of the network: W_q


@dataclass(frozen=True)
class CellCurve:
    """The curve of one cell: finite points (x, y) in order of x, points marked as spikes, and the final norm's value.

    over: the axis that is averaged, usually `seed`. step: the update at which a curve by layer was recorded.
    matrix: the rows of a heat map, from the lowest. columns: the x of its columns, by default 1, 2, ...
    stage: the key of the stage that recorded it, "" for other curves. method: the title of the cell's method, "" to
    derive it from the cell's labels; method_axes: the axes whose labels this title replaces. variant: labels that
    distinguish several curves of one cell: (("layer", 3),).
    """

    entry: Entry
    over: str
    points: Points
    marks: Points = ()
    final_norm: float | None = None
    step: int | None = None
    matrix: tuple[tuple[float, ...], ...] = ()
    columns: tuple[float, ...] = ()
    stage: str = ""
    method: str = ""
    method_axes: tuple[str, ...] = ()
    variant: tuple[tuple[str, Label], ...] = ()

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


@dataclass(frozen=True)
class Series:
    """The runs of one method. `labels` are the ones that they share.

    `colour` and `style` count from 0; if colours represent ordered numbers, `shade` is between 0 and 1.
    """

    title: str
    labels: Mapping[str, Label]
    runs: tuple[CellCurve, ...]
    colour: int = 0
    style: int = 0
    shade: float | None = None

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


def by_layer(entry: Entry, values: Mapping[int, float], *, outputs: bool = False) -> tuple[Points, float | None]:
    """Return points over layers, counted from 1, and the value of the final norm if there is one, from values by index.

    The value after the last layer's is the final norm's. If a layer has several values, such as the gates of its two
    sub-layers, the later ones are placed between it and the next layer. outputs: values at the input of a layer are
    drawn as those at the output of the layer before it.
    """
    count = max(values, default=-1) + 1
    network = entry.cell.network
    layers = count if network and not network.layers else entry.cell.model.size.layers
    if outputs:
        return tuple((n, value) for n, value in sorted(values.items()) if n > 0 and math.isfinite(value)), None
    each = max(1, count // layers)
    inside = {index: value for index, value in values.items() if index < each * layers and math.isfinite(value)}
    final = values.get(layers) if each == 1 else None
    points = tuple((1 + index / each, value) for index, value in sorted(inside.items()))
    return points, final if final is None or math.isfinite(final) else None


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
    labels = [group[0].labels for group in groups.values()]
    axes = dict.fromkeys(axis for mapping in labels for axis in mapping)
    # Networks that were not trained here have names, and none of the labels of a training.
    trained = [mapping for mapping in labels if NETWORK not in mapping]
    varying = [axis for axis in axes if len({mapping.get(axis) for mapping in trained or labels}) > 1]
    variants = {axis for run in distinct for axis, _ in run.variant}
    names = [_title(group[0].labels, varying, variants, titles) for group in groups.values()]
    found = []
    for name, group in zip(names, groups.values(), strict=True):
        title = f"{name} ({group[0].entry.grid})" if names.count(name) > 1 else name  # two grids have it
        found.append(Series(title, group[0].labels, tuple(group)))
    return _coloured(found, varying if trained == labels else [*varying, NETWORK])


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


def _coloured(found: Sequence[Series], varying: Sequence[str]) -> tuple[Series, ...]:
    styles = _styles([series.labels.get("gate", "none") for series in found])
    hued = [axis for axis in varying if axis != "gate" or len(styles) > _STYLES]
    numbers = [series.labels.get(hued[0]) for series in found] if len(hued) == 1 and hued[0] not in _METHOD else []
    shades = _shades(numbers)
    return tuple(
        replace(
            series,
            colour=colour,
            style=styles[series.labels.get("gate", "none")] if len(styles) <= _STYLES else 0,
            shade=shades.get(series.labels.get(hued[0])) if shades else None,
        )
        for series, colour in zip(found, _colours(found, hued), strict=True)
    )


def _styles(gates: Sequence[Label]) -> dict[Label, int]:
    """Return line styles by gate: the first gate is solid (0) and, if there are both, no gate is dashed (1)."""
    distinct = list(dict.fromkeys(gates))
    others = [gate for gate in distinct if gate != "none"]
    order = [*others[:1], "none", *others[1:]] if others and "none" in distinct else distinct
    return {gate: index for index, gate in enumerate(order)}


def _colours(found: Sequence[Series], hued: Sequence[str]) -> list[int]:
    """Return a colour for each series. A scheme has the same colour in every figure coloured by schemes alone."""
    schemes = [str(series.labels.get("norm")) for series in found]
    keys = []
    for series in found:
        alike = sum(other.labels == series.labels for other in found) > 1  # of another grid
        grid = series.runs[0].entry.grid if alike else ""
        keys.append((*(series.labels.get(axis) for axis in hued), grid))
    if set(hued) <= {"norm"} and all(
        scheme in SCHEMES and not key[-1] for scheme, key in zip(schemes, keys, strict=True)
    ):
        return [list(SCHEMES).index(scheme) for scheme in schemes]
    distinct = list(dict.fromkeys(keys))
    return [distinct.index(key) for key in keys]


def _shades(labels: Sequence[object]) -> dict[object, float]:
    """Return the ranks of numbers, scaled to 0 to 1; {} for words."""
    if not all(isinstance(label, int | float) and not isinstance(label, bool) for label in labels):
        return {}
    ranked = sorted({float(str(label)) for label in labels})
    return {label: ranked.index(float(str(label))) / max(1, len(ranked) - 1) for label in labels}
