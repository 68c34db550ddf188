"""Group curves of cells into one series per method: mean and standard deviation over seeds, title, colour, line style.

Colours distinguish schemes and whatever else varies, line styles gates, so that a scheme with and without GPAS has one
colour. This module does not need matplotlib.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

from gpas_cli.grid.scalar import Label
from gpas_cli.printable import one_line
from gpas_cli.report.labels import label_title, row_title, scheme_titles
from gpas_cli.report.stats import Aggregate, aggregate
from gpas_cli.spec.norm import SCHEMES

if TYPE_CHECKING:
    from gpas_cli.grid import Entry

Points = tuple[tuple[float, float], ...]

STYLES = 4  # distinguishable line styles; a grid with more gates gets a colour for each
METHOD = ("norm", "gate")  # axes that form the first part of a title


@dataclass(frozen=True)
class CellCurve:
    """The curve of one cell: finite points (x, y) in order of x, points marked as spikes, and the final norm's value.

    over: the axis that is averaged, usually `seed`. step: the update at which a curve by layer was recorded.
    matrix: for a heat map, the values over n = 1, 2, ... layers, by the layer where these begin.
    """

    entry: Entry
    over: str
    points: Points
    marks: Points = ()
    final_norm: float | None = None
    step: int | None = None
    matrix: tuple[tuple[float, ...], ...] = ()


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


def by_layer(entry: Entry, values: Mapping[int, float]) -> tuple[Points, float | None]:
    """Return points over layers, counted from 1, and the value of the final norm if there is one, from values by index.

    The value after the last layer's is the final norm's. If a layer has several values, such as the gates of its two
    sub-layers, the later ones are placed between it and the next layer.
    """
    layers = entry.cell.model.size.layers
    count = max(values, default=-1) + 1
    each = max(1, count // layers)
    inside = {index: value for index, value in values.items() if index < each * layers and math.isfinite(value)}
    final = values.get(layers) if each == 1 else None
    points = tuple((1 + index / each, value) for index, value in sorted(inside.items()))
    return points, final if final is None or math.isfinite(final) else None


def make_series(runs: Sequence[CellCurve]) -> tuple[Series, ...]:
    """Return a series for each set of runs that differ only on the averaged axis, in declared order.

    A cell that several grids share counts once.
    """
    # Reversed twice, so that the first of equal cells is kept.
    distinct = list({run.entry.cell.key: run for run in reversed(runs)}.values())[::-1]
    groups: dict[tuple[str, frozenset[tuple[str, Label]]], list[CellCurve]] = {}
    for run in distinct:
        groups.setdefault((run.entry.grid, frozenset(_labels(run).items())), []).append(run)
    titles = scheme_titles([run.entry for run in distinct])
    varying = _varying([_labels(group[0]) for group in groups.values()])
    found = [
        Series(_title(_labels(group[0]), varying, titles), _labels(group[0]), tuple(group)) for group in groups.values()
    ]
    return _coloured(_with_grids(found), varying)


def _labels(run: CellCurve) -> dict[str, Label]:
    return {axis: label for axis, label in run.entry.axes.items() if axis != run.over}


def _varying(labels: Sequence[Mapping[str, Label]]) -> list[str]:
    """Return the axes on which labels differ."""
    axes = dict.fromkeys(axis for mapping in labels for axis in mapping)
    return [axis for axis in axes if len({mapping.get(axis) for mapping in labels}) > 1]


def _title(labels: Mapping[str, Label], varying: Sequence[str], titles: Mapping[Label, str]) -> str:
    """Return the method and the labels of other varying axes: "Pre-LN + GPAS, optim.lr 0.001"."""
    method = [axis for axis in METHOD if axis in labels]
    words = [row_title(method, tuple(labels[axis] for axis in method), titles)] if method else []
    words += [label_title(axis, labels.get(axis), titles) or f"no {axis}" for axis in varying if axis not in METHOD]
    return one_line(", ".join(words))


def _with_grids(found: Sequence[Series]) -> list[Series]:
    """Return the series; titles that two grids share get the name of the grid."""
    counts = Counter(series.title for series in found)
    return [
        replace(series, title=f"{series.title} ({series.runs[0].entry.grid})") if counts[series.title] > 1 else series
        for series in found
    ]


def _coloured(found: Sequence[Series], varying: Sequence[str]) -> tuple[Series, ...]:
    styles = _styles([series.labels.get("gate", "none") for series in found])
    hued = [axis for axis in varying if axis != "gate" or len(styles) > STYLES]
    keys = [(*(series.labels.get(axis) for axis in hued), _grid(series, found)) for series in found]
    colours = _colours(keys, hued)
    shades = _shades([key[0] for key in keys]) if len(hued) == 1 and hued[0] not in METHOD else {}
    return tuple(
        replace(
            series,
            colour=colours[key],
            style=styles[series.labels.get("gate", "none")] if len(styles) <= STYLES else 0,
            shade=shades.get(key[0]),
        )
        for series, key in zip(found, keys, strict=True)
    )


def _grid(series: Series, found: Sequence[Series]) -> str:
    """Return the grid of a series if another series has the same labels, else ""."""
    alike = sum(other.labels == series.labels for other in found)
    return series.runs[0].entry.grid if alike > 1 else ""


def _styles(gates: Sequence[Label]) -> dict[Label, int]:
    """Return line styles by gate: the first gate is solid (0) and, if there are both, no gate is dashed (1)."""
    distinct = list(dict.fromkeys(gates))
    others = [gate for gate in distinct if gate != "none"]
    order = [*others[:1], "none", *others[1:]] if others and "none" in distinct else distinct
    return {gate: index for index, gate in enumerate(order)}


def _colours(keys: Sequence[tuple[object, ...]], hued: Sequence[str]) -> dict[tuple[object, ...], int]:
    """Return a colour for each key. A scheme has the same colour in every figure coloured by schemes alone."""
    distinct = list(dict.fromkeys(keys))
    if list(hued) == ["norm"] and all(key[0] in SCHEMES and not key[1] for key in distinct):
        return {key: list(SCHEMES).index(str(key[0])) for key in distinct}
    return {key: index for index, key in enumerate(distinct)}


def _shades(labels: Sequence[object]) -> dict[object, float]:
    """Return the ranks of numbers, scaled to 0 to 1; {} for words."""
    if not all(isinstance(label, int | float) and not isinstance(label, bool) for label in labels):
        return {}
    ranked = sorted({float(str(label)) for label in labels})
    return {label: ranked.index(float(str(label))) / max(1, len(ranked) - 1) for label in labels}
