"""A plot as data: series of runs and further lines, with the titles of its axes. `plot` draws it.

This module does not need matplotlib; `as_json` returns a plot as a document. Ticks are round numbers on logarithmic
axes, written as 0.6 and not as 6 x 10^-1, and whole layers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import field, replace
from typing import Annotated, Any, Literal

from gpas_cli.errors import GpasError
from gpas_cli.extensions.curves.series import CellCurve, Selection, Series, make_series
from gpas_cli.report.labels import objective_title
from gpas_cli.report.quantities import Points
from gpas_cli.spec.stage import BINS_END
from gpas_cli.statistics.stats import LEAST_POINTS, Aggregate, better
from gpas_cli.structure import FLAT, HIDDEN, Document, Frozen
from gpas_cli.words import one_line

_MOST_BARS = 4  # beside each other at a layer
_NORMAL_COLOUR = 5
_NORMAL_STEPS = 10  # points of its curve in a standard deviation

_GROWTH_NOTE = "dashed: of a power law and an exponential, fitted to the logarithms, the one with the lower AIC"
_LEAST_TICKS = 4  # on a logarithmic axis
# Multiples of powers of ten, the coarsest first.
_STEPS: tuple[tuple[float, ...], ...] = ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7), tuple(range(1, 10)))
_ROUNDEST = "125347689"  # first digits of ticks, the preferred ones first
_LOG_RANGE = 5  # of the largest over the smallest value: beyond it the axis is logarithmic
_CLOSEST = 0.08  # of a logarithmic axis between two ticks
_MOST_LAYERS = 12  # with a number in a plot of usual width


class _PointJson(Document):
    """A mean at an update or, in curves by layer, at a layer counted from 1."""

    at: Aggregate = field(metadata=FLAT)
    x: float


class _DrawnRunJson(Document):
    """The curve of one cell; points and spikes are pairs of x and y."""

    name: str
    key: str
    over: Annotated[Any, "its label on the averaged axis: the seed"]
    points: Points
    spikes: Points
    final_norm: float | None


class _SeriesJson(Document):
    """One line of a figure."""

    look: Series = field(metadata=FLAT)
    over: Annotated[str, "the averaged axis"]
    points: Sequence[_PointJson]
    final_norm: Annotated[Aggregate | None, "the value at the final norm, which is no layer"]
    matrix: Annotated[Sequence[Sequence[float]] | None, "means of a heat map, a list for each row from the lowest"]
    columns: Annotated[Sequence[float] | None, "x of the heat map's columns"]
    runs: Sequence[_DrawnRunJson]


class Line(Frozen):
    """A line that no run has recorded: a bound, published numbers, a fitted law."""

    title: str
    points: Annotated[Points, "pairs of x and y"]
    band: Annotated[tuple[tuple[float, float, float], ...], "x, low and high"] = ()
    colour: int = 0
    style: int = 0
    shade: float | None = None
    form: Literal["line", "points", "joined", "best"] = "line"  # best: a star
    in_legend: bool = True


class Figure(Frozen):
    """One plot: its axes, and what is drawn in it."""

    title: str
    x: Annotated[str, "title of the x axis"]
    y: Annotated[str, "title of the y axis, with the unit"]
    series: tuple[Series, ...] = field(default=(), metadata=HIDDEN)
    log: Annotated[bool, "whether y is logarithmic where all values are positive"] = False
    layers: Annotated[int, "the number of layers if x counts layers, else 0"] = 0
    every_run: bool = field(default=False, metadata=HIDDEN)
    """Draw a line for each run instead of the mean with a band of one standard deviation on both sides."""
    bars: Annotated[bool, "whether the series are drawn as bars"] = False
    heat_map: Annotated[str, "title of the colours of a heat map, empty for lines"] = ""
    lines: tuple[Line, ...] = field(default=(), metadata=HIDDEN)
    """Drawn beside the series."""
    log_x: bool = False
    level: Annotated[float | None, "a value of y that is marked, such as a ratio of 1"] = None
    note: Annotated[str, "what a reader must know, in one sentence"] = ""
    noisy: Annotated[bool, "whether values of single updates are drawn, whose trend a moving average shows"] = False
    """An evaluation is a mean over much text."""

    @property
    def drawn(self) -> tuple[Series | Line, ...]:
        """Everything that is drawn."""
        return (*self.series, *self.lines)

    @property
    def curves(self) -> list[Points]:
        """The points of all runs and lines."""
        return [*(run.points for series in self.series for run in series.runs), *(line.points for line in self.lines)]


class PlotJson(Document):
    """One plot: its axes, and what is drawn in it."""

    frame: Figure = field(metadata=FLAT)
    series: Sequence[_SeriesJson]
    lines: Sequence[Line]


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
        x = f"first layer{_when(runs)}"
        return Figure(one_line(title), x, "number of layers", make_series(runs), heat_map=quantity.axis)
    if quantity.bins:
        x = f"output, in standard deviations{_when(runs)}"
        values = [i / _NORMAL_STEPS for i in range(int(-BINS_END * _NORMAL_STEPS), int(BINS_END * _NORMAL_STEPS) + 1)]
        points = tuple((x, math.exp(-x * x / 2) / math.sqrt(2 * math.pi)) for x in values)
        lines = (Line("normal distribution", points, colour=_NORMAL_COLOUR, style=1),) if runs else ()
        return Figure(one_line(title), x, "density", make_series(runs), every_run=every_run, lines=lines)
    if selection.map:
        return Figure(one_line(title), "update", "layer", make_series(runs), heat_map=y, log=quantity.log)
    x = "update"
    if selection.over_layers:
        each = any(run.variant and run.variant[-1][0] == "update" for run in runs)
        what = "number of layers" if quantity.groups else "layer"
        x = what if each else f"{what}{_when(runs)}"
    objectives = ", ".join(dict.fromkeys(objective_title(run.entry) for run in runs))
    mixed = quantity.of_targets and len({objective_title(run.entry) for run in runs}) > 1
    series = make_series(runs)
    return Figure(
        title=one_line(title),
        x=x,
        y=f"{y}, ratio to {ratio_to}" if ratio_to else y,
        series=series,
        log=quantity.log and not ratio_to if log is None else log,
        layers=max((run.entry.cell.model.size.layers for run in runs), default=0) if selection.over_layers else 0,
        every_run=every_run,
        bars=quantity.bars and not every_run and len(series) <= _MOST_BARS,
        level=1.0 if ratio_to else None,
        note=f"losses of different objectives ({objectives}) cannot be compared" if mixed else "",
        noisy=not quantity.by_layer and not quantity.name.startswith("eval_"),
    )


def _when(runs: Sequence[CellCurve]) -> str:
    """Return at which update the runs are shown, "" for networks that were not trained here."""
    steps = {run.step for run in runs if run.step is not None and not run.entry.cell.network}
    if len(steps) > 1:
        return " (at each run's last update)"
    return "".join(f" (at update {step})" if step else " (at initialisation)" for step in steps)


def as_json(figure: Figure) -> PlotJson:
    """Return a plot for JSON."""
    return PlotJson(frame=figure, series=list(map(_series_json, figure.series)), lines=figure.lines)


def _series_json(series: Series) -> _SeriesJson:
    matrix = series.matrix()
    return _SeriesJson(
        look=series, over=series.runs[0].over,
        points=[_PointJson(at=at, x=x) for x, at in series.mean()], final_norm=series.final_norm(),
        matrix=matrix or None, columns=series.columns() if matrix else None,
        runs=[
            _DrawnRunJson(
                name=run.entry.id, key=run.entry.key, over=run.over_label, points=run.points, spikes=run.marks,
                final_norm=run.final_norm,
            )
            for run in series.runs
        ],
    )  # fmt: skip


def _smoothed(run: CellCurve, weight: float) -> CellCurve:
    """Return the curve as the exponential moving average of its points, whose weights decay by `weight`.

    It is divided by the sum of the weights, so that it does not begin near zero.
    """
    points, total, weights = [], 0.0, 0.0
    for x, y in run.points:
        total, weights = weight * total + y, weight * weights + 1
        points.append((x, total / weights))
    return replace(run, points=tuple(points), raw=run.points)


def with_smoothing(figure: Figure, weight: float) -> Figure:
    """Return the figure with exponential moving averages of its runs; what was recorded is drawn faintly behind.

    Raises GpasError if it shows no values of single updates.
    """
    if not figure.noisy:
        raise GpasError("--smooth: evaluations, and what is recorded by layer, are drawn as they are")
    series = tuple(replace(one, runs=tuple(_smoothed(run, weight) for run in one.runs)) for one in figure.series)
    note = f"exponential moving averages, weight {weight:g}; faint: as recorded"
    return replace(figure, series=series, note="; ".join(filter(None, (figure.note, note))))


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
    law = better(points) if all(x > 0 and y > 0 for x, y in points) else None
    if law is None:
        return None
    fitted = tuple((x, law.at(x)) for x, _ in points)
    return Line(f"{series.title}: {law.words}", fitted, colour=series.colour, style=1, shade=series.shade)


def log_ticks(low: float, high: float) -> list[float]:
    """Return round numbers between `low` and `high` for a logarithmic axis: the fewest that show the scale."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in _STEPS:
        # Powers of whole numbers, so that 3e-5 is not 3.0000000000000004e-05.
        ticks = [tick for power in decades for step in steps if low <= (tick := float(f"{step}e{power}")) <= high]
        if len(ticks) >= _LEAST_TICKS:
            return apart(ticks[:: math.ceil(len(ticks) / (3 * _LEAST_TICKS))], _CLOSEST * math.log(high / low))
    return linear_ticks(low, high, _LEAST_TICKS + 2)


def linear_ticks(low: float, high: float, most: int) -> list[float]:
    """Return at most so many round numbers between `low` and `high`, equally spaced."""
    rough = (high - low) / max(1, most)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{i * step:.6g}") for i in range(first, last + 1)]


def apart(ticks: Sequence[float], least: float) -> list[float]:
    """Return the ticks whose logarithms differ by `least`, preferring those that begin with 1, 2 or 5."""
    kept: list[float] = []
    for tick in sorted(ticks, key=lambda tick: _ROUNDEST.index(f"{tick:e}"[0])):
        if all(abs(math.log(tick / other)) >= least for other in kept):
            kept.append(tick)
    return sorted(kept)


def readable(value: float) -> str:
    """Return a tick's number: 0.003, 20, 150,000, 10⁻⁶, 2×10⁶."""
    if value == 0 or 1e-4 < abs(value) < 1e6:
        return f"{value:,g}"
    factor, power = f"{value:e}".split("e")
    raised = str(int(power)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{raised}" if float(factor) == 1 else f"{float(factor):g}\N{MULTIPLICATION SIGN}10{raised}"


def is_log(figure: Figure) -> bool:
    """Return whether y is logarithmic: all values are positive."""
    return figure.log and all(y > 0 for points in figure.curves for _, y in points)


def is_wide(values: Collection[float]) -> bool:
    """Return whether an axis of these values is logarithmic: they are positive, and the largest is much larger."""
    return min(values) > 0 and max(values) / min(values) > _LOG_RANGE


def log_axis(axis: Any, name: str) -> None:
    """Make an axis ("x" or "y") of matplotlib logarithmic, with round ticks between its limits."""
    from matplotlib.ticker import FixedLocator, NullLocator

    getattr(axis.axes, f"set_{name}scale")("log")
    axis.set_major_locator(FixedLocator(log_ticks(*sorted(getattr(axis.axes, f"get_{name}lim")()))))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: readable(value))


def layer_axis(axes: Any, figure: Figure, beyond: float) -> None:
    """Label layers with integers, and the final norm, after a vertical line at `beyond`, with its name."""
    step = math.ceil(figure.layers / _MOST_LAYERS)
    ticks: list[float] = list(range(1, figure.layers + 1, step))
    labels = [f"{tick:g}" for tick in ticks]
    if any(run.final_norm is not None for series in figure.series for run in series.runs):
        axes.axvline(figure.layers + 0.75, color="0.6", linewidth=0.6, linestyle=":")
        ticks.append(beyond)
        labels.append("final\nnorm")
    axes.set_xticks(ticks, labels)
