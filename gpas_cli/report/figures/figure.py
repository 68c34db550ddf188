"""A plot as data: series of runs and further lines, with the titles of its axes. `report.figures.plot` draws it.

This module does not need matplotlib; `as_json` returns a plot as a document.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypedDict

from gpas_cli.documents import From, filled
from gpas_cli.errors import GpasError
from gpas_cli.report.figures.curves import Selection
from gpas_cli.report.figures.series import CellCurve, Points, Series, make_series
from gpas_cli.report.labels import objective_title
from gpas_cli.spec.stage import BINS_END
from gpas_cli.statistics.stats import LEAST_POINTS, better
from gpas_cli.words import one_line

_MOST_BARS = 4  # beside each other at a layer
_NORMAL_COLOUR = 6


class _MeanJson(TypedDict):
    """A mean over the runs that a line stands for."""

    mean: float
    std: Annotated[float | None, "sample standard deviation; null for a single run"]
    n: int


class _PointJson(_MeanJson):
    """A mean at an update or, in curves by layer, at a layer counted from 1."""

    x: float


class _DrawnRunJson(TypedDict):
    """The curve of one cell; points and spikes are pairs of x and y."""

    name: Annotated[str, From("entry.id")]
    key: Annotated[str, From("entry.key")]
    over: Annotated[Any, "its label on the averaged axis: the seed", From("over_label")]
    points: Points
    spikes: Annotated[Points, From("marks")]
    final_norm: float | None


class _SeriesJson(TypedDict):
    """One line of a figure."""

    title: str
    labels: dict[str, Any]
    over: Annotated[str, "the averaged axis"]
    colour: Annotated[int, "hue: that of the scheme, or a number from 0"]
    style: Annotated[int, "line style: 0 with a gate, 1 without one"]
    shade: Annotated[float | None, "between 0 and 1 if colours represent numbers"]
    points: list[_PointJson]
    final_norm: Annotated[_MeanJson | None, "the value at the final norm, which is no layer"]
    matrix: Annotated[list[list[float]] | None, "means of a heat map, a list for each row from the lowest"]
    columns: Annotated[list[float] | None, "x of the heat map's columns"]
    runs: list[_DrawnRunJson]


class _FrameJson(TypedDict):
    """One plot without what is drawn in it."""

    title: str
    x: Annotated[str, "title of the x axis"]
    y: Annotated[str, "title of the y axis, with the unit"]
    log: Annotated[bool, "whether y is logarithmic where all values are positive"]
    log_x: bool
    layers: Annotated[int, "the number of layers if x counts layers, else 0"]
    level: Annotated[float | None, "a value of y that is marked, such as a ratio of 1"]
    bars: Annotated[bool, From("has_bars")]
    heat_map: Annotated[str, "title of the colours of a heat map, empty for lines"]
    note: str


class PlotJson(_FrameJson):
    """One plot: its axes, and what is drawn in it."""

    series: list[_SeriesJson]
    lines: list[Line]


@dataclass(frozen=True)
class Line:
    """A line that no run has recorded: a bound, published numbers, a fitted law."""

    title: str
    points: Annotated[Points, "pairs of x and y"]
    band: Annotated[tuple[tuple[float, float, float], ...], "x, low and high"] = ()
    colour: int = 0
    style: int = 0
    shade: float | None = None
    form: Literal["line", "points", "joined", "best"] = "line"  # best: a star
    in_legend: bool = True


@dataclass(frozen=True)
class Figure:
    """Series with the titles of the plot and its axes.

    log: y is logarithmic if all values are positive. log_x: so is x. layers: the number of layers if x counts layers,
    else 0. every_run: draw a line for each run instead of the mean with a band of one standard deviation on both sides.
    bars: draw bars instead of lines if there are at most MOST_BARS series. heat_map: the title of the colour bar if the
    series are drawn as heat maps, else "". lines: drawn beside the series. level: a value of y that is marked, such as
    a ratio of 1. note: what a reader must know, in one sentence.
    """

    title: str
    x: str
    y: str
    series: tuple[Series, ...] = ()
    log: bool = False
    layers: int = 0
    every_run: bool = False
    bars: bool = False
    heat_map: str = ""
    lines: tuple[Line, ...] = ()
    log_x: bool = False
    level: float | None = None
    note: str = ""

    @property
    def has_bars(self) -> bool:
        """Whether the series are drawn as bars."""
        return self.bars and not self.every_run and len(self.series) <= _MOST_BARS

    @property
    def drawn(self) -> tuple[Series | Line, ...]:
        """Everything that is drawn."""
        return (*self.series, *self.lines)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not self.drawn

    def values(self) -> list[float]:
        """Return all values of y."""
        own = [y for series in self.series for run in series.runs for _, y in run.points]
        return [*own, *(y for line in self.lines for _, y in line.points)]

    def longest(self) -> int:
        """Return the number of points of the longest curve."""
        curves = [run.points for series in self.series for run in series.runs]
        return max(map(len, [*curves, *(line.points for line in self.lines)]), default=0)


def make_figure(
    runs: Sequence[CellCurve],
    selection: Selection,
    title: str,
    *,
    y: str = "",
    every_run: bool = False,
    log: bool | None = None,
    ratio_to: str = "",
) -> Figure:
    """Return the plot of what was selected.

    y: the title of the y axis, by default the quantity's. log: whether y is logarithmic, by default as of the quantity.
    ratio_to: if the curves are ratios, what they were divided by.
    """
    quantity = selection.quantity
    y = y or quantity.axis
    if quantity.spans:
        x = f"first layer ({_when(runs)})"
        return Figure(one_line(title), x, "number of layers", make_series(runs), heat_map=quantity.axis)
    if quantity.bins:
        x = f"output, in standard deviations ({_when(runs)})"
        lines = (_normal(),) if runs else ()
        return Figure(one_line(title), x, "density", make_series(runs), every_run=every_run, lines=lines)
    if selection.map:
        return Figure(one_line(title), "update", "layer", make_series(runs), heat_map=y, log=quantity.log)
    x = "update"
    if selection.over_layers:
        each = any(run.variant and run.variant[-1][0] == "update" for run in runs)
        what = "number of layers" if quantity.groups else "layer"
        untrained = all(run.entry.cell.network for run in runs)
        x = what if each or untrained else f"{what} ({_when(runs)})"
    objectives = ", ".join(dict.fromkeys(objective_title(run.entry) for run in runs))
    mixed = quantity.of_targets and len({objective_title(run.entry) for run in runs}) > 1
    return Figure(
        title=one_line(title),
        x=x,
        y=f"{y}, ratio to {ratio_to}" if ratio_to else y,
        series=make_series(runs),
        log=quantity.log and not ratio_to if log is None else log,
        layers=max((run.entry.cell.model.size.layers for run in runs), default=0) if selection.over_layers else 0,
        every_run=every_run,
        bars=quantity.bars,
        level=1.0 if ratio_to else None,
        note=f"losses of different objectives ({objectives}) cannot be compared" if mixed else "",
    )


def _normal() -> Line:
    steps = 10
    values = [i / steps for i in range(int(-BINS_END * steps), int(BINS_END * steps) + 1)]
    points = tuple((x, math.exp(-x * x / 2) / math.sqrt(2 * math.pi)) for x in values)
    return Line("normal distribution", points, colour=_NORMAL_COLOUR, style=1)


def _when(runs: Sequence[CellCurve]) -> str:
    steps = {run.step for run in runs if run.step is not None}
    return f"at update {max(steps)}" if len(steps) == 1 else "at each run's last update"


def frame(figure: Figure) -> _FrameJson:
    """Return everything about a plot but its series and lines, as plain data: title, axes and kind."""
    return filled(_FrameJson, figure)


def as_json(figure: Figure) -> PlotJson:
    """Return a plot for JSON."""
    return filled(PlotJson, figure, series=[_series_json(one) for one in figure.series])


def _series_json(series: Series) -> _SeriesJson:
    matrix = series.matrix()
    return filled(
        _SeriesJson,
        series,
        over=series.runs[0].over,
        points=[filled(_PointJson, at, x=x) for x, at in series.mean()],
        final_norm=series.final_norm(),
        matrix=matrix or None,
        columns=list(series.columns()) if matrix else None,
    )


_GROWTH_NOTE = "dashed: of a power law and an exponential, fitted to the logarithms, the one with the lower AIC"


def with_growth(figure: Figure) -> Figure:
    """Return the figure with the better law through the mean of each series, as a line that the legend names.

    Raises GpasError unless x counts layers. Series of too few layers, or with values that are not positive, have none.
    """
    if not figure.layers:
        raise GpasError("--growth fits a law over layers; choose a quantity by layer, at one update for each line")
    laws = [line for series in figure.series if (line := _law(series))]
    note = _GROWTH_NOTE if laws else f"no law of growth: it needs positive values of {LEAST_POINTS} layers"
    return replace(figure, lines=(*figure.lines, *laws), note=note)


def _law(series: Series) -> Line | None:
    points = [(x, aggregate.mean) for x, aggregate in series.mean()]
    if not all(x > 0 and y > 0 for x, y in points):
        return None
    law = better(points)
    if law is None:
        return None
    fitted = tuple((x, law.at(x)) for x, _ in points)
    return Line(f"{series.title}: {law.words}", fitted, colour=series.colour, style=1, shade=series.shade)
