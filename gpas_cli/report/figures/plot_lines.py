"""Draw series and lines of a plot on matplotlib's axes: means with bands, bars, markers of spikes, the final norm.

A scheme has one hue: with a gate a solid, heavy line, without a dashed, light one. Markers differ between hues, so that
lines can be distinguished in grey.
"""

from __future__ import annotations

import math
from typing import Any

from gpas_cli.report.figures.figure import Figure, Line
from gpas_cli.report.figures.series import Series
from gpas_cli.report.figures.ticks import is_log

# Colours that colour-blind readers can distinguish (Okabe and Ito, 2008, without yellow, plus grey).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1.2, 1, 1.2)))
WIDTHS = (1.5, 1.0, 1.2, 1.0)  # points, by line style
MARKERS = ("o", "s", "D", "P", "X", "*", "d", "p")  # no triangles, which mark spikes
SHADES = "viridis"  # for colours that represent numbers
BRIGHTEST = 0.85  # fraction of the shades that is dark enough on white paper
ALL_MARKED = 40  # points; longer curves have markers at some of them
MARKS = 6  # on a long curve
SPREAD = 0.8  # layers over which the final norm's values are spread, so that they do not overlap
FADED = 0.8  # of the opacity: how much lighter the last of many runs of a series is than the first
BAR_WIDTH = 0.8  # layers, of all bars at a layer
BAR_WEIGHTS = (1.0, 0.45, 0.7, 0.25)  # opacity of bars by line style: the series of one colour differ in weight


def draw_all(axes: Any, figure: Figure) -> list[tuple[str, Any]]:
    """Draw everything that a plot has and return the titles and artists of its legend."""
    draw = _draw_bars if figure.has_bars else _draw_series
    handles = [(_title(figure, series), draw(axes, figure, series)) for series in figure.series]
    drawn = [(line, _draw_line(axes, line, figure)) for line in figure.lines]
    _draw_final_norm(axes, figure)
    if figure.level is not None:
        axes.axhline(figure.level, color="0.4", linewidth=0.6, zorder=0)
    return [*handles, *((line.title, handle) for line, handle in drawn if line.in_legend)]


def _title(figure: Figure, series: Series) -> str:
    """Return the title of a series; if each of its runs is a line, with the labels of the runs."""
    if not figure.every_run or len(series.runs) < 2:
        return series.title
    over = series.runs[0].over
    return f"{series.title}, {over} {', '.join(str(run.entry.axes.get(over)) for run in series.runs)}"


def beyond(figure: Figure) -> float:
    """Return the x of the final norm, which is not a layer, to the right of the last layer."""
    return figure.layers + 1.5


def look(one: Series | Line, points: int) -> dict[str, Any]:
    """Return the colour, dashes, marker and width of a line of so many points."""
    colour: Any = COLOURS[one.colour % len(COLOURS)]
    if one.shade is not None:
        from matplotlib import colormaps

        colour = colormaps[SHADES](BRIGHTEST * one.shade)
    style = one.style % len(DASHES)
    every = max(1, points // MARKS)
    return {
        "color": colour,
        "linestyle": DASHES[style],
        "linewidth": WIDTHS[style],
        "marker": MARKERS[one.colour % len(MARKERS)] if one.shade is None else "",
        "markersize": 3.0,
        "markeredgewidth": 0.8,
        "markerfacecolor": "white" if one.style else colour,
        # Lines that lie on each other have their markers at different places.
        "markevery": 1 if points <= ALL_MARKED else ((one.colour * 5 + style * 3) % 12 * every // 12, every),
    }


def _draw_series(axes: Any, figure: Figure, series: Series) -> Any:
    """Draw one series and return the artist that represents it in the legend."""
    own = look(series, figure.longest())
    if figure.every_run:
        lines = [
            axes.plot(*zip(*run.points, strict=True), **own, alpha=1 - FADED * i / len(series.runs))
            for i, run in enumerate(series.runs)
        ]
        handle = lines[0][0]
    else:
        handle = _draw_mean(axes, figure, series, own)
    for run in series.runs:
        if run.marks:
            axes.plot(*zip(*run.marks, strict=True), linestyle="", marker="^", markersize=5, color=own["color"])
    return handle


def _draw_mean(axes: Any, figure: Figure, series: Series, own: dict[str, Any]) -> Any:
    means = series.mean()
    handle = axes.plot([x for x, _ in means], [s.mean for _, s in means], **own)[0]
    band = [(x, s.mean - s.std, s.mean + s.std) for x, s in means if s.std is not None]
    if band:
        # On a logarithmic axis, a band that reaches zero ends at the lowest value.
        lowest = min(y for run in series.runs for _, y in run.points)
        floor = lowest if is_log(figure) else -math.inf
        xs, low, high = zip(*band, strict=True)
        axes.fill_between(xs, [max(y, floor) for y in low], high, color=own["color"], alpha=0.18, linewidth=0)
    for tail in series.tails():
        axes.plot(*zip(*tail, strict=True), **{**own, "linewidth": 0.5, "marker": ""})
    return handle


def _draw_bars(axes: Any, figure: Figure, series: Series) -> Any:
    """Draw the bars of one series beside those of the others, and return the artist that represents it."""
    width = BAR_WIDTH / len(figure.series)
    shift = width * (figure.series.index(series) + 0.5) - BAR_WIDTH / 2
    means = series.mean()
    deviations = [summary.std or 0.0 for _, summary in means]
    axes.axhline(0, color="0.3", linewidth=0.6)
    return axes.bar(
        [x + shift for x, _ in means],
        [summary.mean for _, summary in means],
        width,
        yerr=deviations if any(deviations) else None,
        color=look(series, 0)["color"],
        alpha=BAR_WEIGHTS[series.style % len(BAR_WEIGHTS)],
        error_kw={"elinewidth": 0.6, "ecolor": "0.3"},
    )


def _draw_line(axes: Any, line: Line, figure: Figure) -> Any:
    """Draw one line and return the artist that represents it in the legend."""
    from matplotlib.lines import Line2D

    own = look(line, len(line.points))
    if line.band:
        xs, low, high = zip(*line.band, strict=True)
        axes.fill_between(xs, low, high, color=own["color"], alpha=0.12, linewidth=0)
    if line.form == "points":
        own["linestyle"] = ""
    drawn = {**own, "marker": ""} if line.form == "line" else own
    axes.plot(*zip(*line.points, strict=True), **drawn)
    # A line through points that are drawn by themselves has their marker in the legend.
    has_points = any(one.form == "points" and one.colour == line.colour for one in figure.lines)
    return Line2D([], [], **{**(own if has_points else drawn), "markevery": None})


def _draw_final_norm(axes: Any, figure: Figure) -> None:
    """Draw the values of the final norm to the right of the last layer."""
    shown = [series for series in figure.series if series.final_norm() is not None]
    for i, series in enumerate(shown):
        own = {**look(series, 0), "linestyle": "", "elinewidth": 0.6}
        summary = series.final_norm()
        assert summary is not None  # chosen so
        values = [run.final_norm for run in series.runs] if figure.every_run else [summary.mean]
        if not own["marker"]:
            own["marker"] = "o"
        axes.errorbar(
            [beyond(figure) + SPREAD * ((i + 0.5) / len(shown) - 0.5)] * len(values),
            values,
            yerr=None if figure.every_run or summary.std is None else [summary.std],
            **own,
        )
