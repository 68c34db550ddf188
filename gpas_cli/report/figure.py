"""Draw the series of a grid as a PDF, SVG or PNG file.

Needs matplotlib (the extra `figures`), which is imported only when a figure is drawn. The same data gives the same
file, without dates or random ids.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpas_cli.errors import GpasError, nearest
from gpas_cli.report import heat_map
from gpas_cli.report.series import Series

FORMATS = (".pdf", ".svg", ".png")
# Colours that colour-blind readers can distinguish (Okabe and Ito, 2008, without yellow, plus grey).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1.2, 1, 1.2)))
MARKERS = ("o", "s", "^", "D", "v")  # one for each pass through the colours
SHADES = "viridis"  # for colours that represent numbers
BRIGHTEST = 0.85  # fraction of the shades that is dark enough on white paper
SIZE = (6.4, 4.0)  # inches, without what a long legend adds
LONGEST_LABEL = 34  # characters in a line of the legend
ROWS = 24  # entries in a column of the legend
LINE = 0.19  # inches; the height of a line of the legend or title
NARROW = 5.0  # inches; a narrower plot has its legend below
FEW = 40  # points; longer curves have no markers
SPREAD = 0.8  # layers over which the final norm's values are spread, so that they do not overlap
MOST_BARS = 4  # beside each other at a layer
BAR_WIDTH = 0.8  # layers, of all bars at a layer
BAR_WEIGHTS = (1.0, 0.45, 0.7, 0.25)  # opacity of bars by line style: the series of one colour differ in weight
TICKS = 4  # the least number of ticks on a logarithmic axis
STEPS = ((1,), (1, 3), (1, 2, 5), tuple(range(1, 10)))  # multiples of powers of ten, the coarsest first


@dataclass(frozen=True)
class Figure:
    """Series with the titles of the plot and its axes.

    log: y is logarithmic if all values are positive. layers: the number of layers if x counts layers, else 0.
    every_run: draw a line for each run instead of the mean with a band of one standard deviation on both sides.
    bars: draw bars instead of lines if there are at most MOST_BARS series. heat_map: the title of the colour bar if the
    series are drawn as heat maps, else "".
    """

    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    log: bool = False
    layers: int = 0
    every_run: bool = False
    bars: bool = False
    heat_map: str = ""

    @property
    def has_bars(self) -> bool:
        """Whether the series are drawn as bars."""
        return self.bars and not self.every_run and len(self.series) <= MOST_BARS


def check_formats(paths: Sequence[Path]) -> None:
    """Raise GpasError unless every suffix names a format."""
    for path in paths:
        if path.suffix.lower() not in FORMATS:
            raise GpasError(f"{path}: unknown format '{path.suffix}'; {nearest(path.suffix.lower(), FORMATS)}")


def save(figure: Figure, paths: Sequence[Path], size: tuple[float, float] = SIZE) -> None:
    """Write the figure to `paths`, each in the format of its suffix; `size` is in inches.

    Raises GpasError without matplotlib, for an unknown suffix, or if there is nothing to draw.
    """
    check_formats(paths)
    if not figure.series:
        raise GpasError(f"{figure.title}: no such curve has been recorded")
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure as Canvas
    except ModuleNotFoundError as error:
        raise GpasError("figures need matplotlib: pip install 'gpas-cli[figures]'") from error
    settings: Any = {
        "svg.hashsalt": figure.title,
        "svg.fonttype": "none",
        "pdf.fonttype": 42,  # TrueType: publishers refuse matplotlib's usual Type 3
        "text.parse_math": False,  # a dollar in a title is a dollar
    }
    with mpl.rc_context(settings):
        canvas = Canvas(figsize=_canvas_size(figure, size), layout="constrained")
        if figure.heat_map:
            heat_map.draw(canvas, figure.series, title=figure.title, x=figure.x, y=figure.y, shade=figure.heat_map)
        else:
            _draw(canvas, figure)
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            dates = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}.get(path.suffix.lower())
            canvas.savefig(path, dpi=200, metadata=dates)


def _canvas_size(figure: Figure, size: tuple[float, float]) -> tuple[float, float]:
    """Return the size including the legend, which may be taller than the plot or, if below, adds to its height."""
    if figure.heat_map:
        return heat_map.canvas_size(figure.series, size)
    lines = sum(len(textwrap.wrap(series.title, LONGEST_LABEL)) for series in figure.series)
    height = size[1] + LINE * max(0, len(_title_lines(figure, size[0])) - 1)
    if size[0] < NARROW:
        return size[0], height + LINE * (lines + 2)
    columns = math.ceil(len(figure.series) / ROWS)
    longest = max(min(len(series.title), LONGEST_LABEL) for series in figure.series)
    return size[0] + 0.075 * max(0, columns * (longest + 6) - 20), max(height, LINE * (lines / columns + 4))


def _title_lines(figure: Figure, width: float) -> list[str]:
    return textwrap.wrap(figure.title, int(8 * width))


def _draw(canvas: Any, figure: Figure) -> None:
    axes = canvas.subplots()
    draw = _draw_bars if figure.has_bars else _draw_series
    handles = [draw(axes, figure, series) for series in figure.series]
    _draw_final_norm(axes, figure)
    axes.set_xlabel(figure.x)
    axes.set_ylabel(figure.y)
    axes.set_title("\n".join(_title_lines(figure, canvas.get_figwidth())), fontsize="medium", loc="left")
    axes.grid(alpha=0.3, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if figure.layers:
        _layer_axis(axes, figure)
    if figure.log:
        _log_axis(axes, figure)
    _legend(canvas, figure, handles)


def _draw_series(axes: Any, figure: Figure, series: Series) -> Any:
    """Draw one series and return the artist that represents it in the legend."""
    look = {**_look(series), **({} if _few_points(figure) else {"marker": ""})}
    if figure.every_run:
        for run in series.runs:
            handle = axes.plot(*zip(*run.points, strict=True), **look)[0]
    else:
        handle = _draw_mean(axes, figure, series, look)
    for run in series.runs:
        if run.marks:
            axes.plot(*zip(*run.marks, strict=True), linestyle="", marker="^", markersize=6, color=look["color"])
    return handle


def _draw_bars(axes: Any, figure: Figure, series: Series) -> Any:
    """Draw the bars of one series beside those of the others, and return the artist that represents it."""
    width = BAR_WIDTH / len(figure.series)
    shift = width * (figure.series.index(series) + 0.5) - BAR_WIDTH / 2
    means = series.mean()
    look = _look(series)
    deviations = [summary.std or 0.0 for _, summary in means]
    axes.axhline(0, color="0.3", linewidth=0.8)
    return axes.bar(
        [x + shift for x, _ in means],
        [summary.mean for _, summary in means],
        width,
        yerr=deviations if any(deviations) else None,
        color=look["color"],
        alpha=BAR_WEIGHTS[series.style % len(BAR_WEIGHTS)],
        error_kw={"elinewidth": 0.8, "ecolor": "0.3"},
    )


def _draw_mean(axes: Any, figure: Figure, series: Series, look: dict[str, Any]) -> Any:
    means = series.mean()
    handle = axes.plot([x for x, _ in means], [s.mean for _, s in means], **look)[0]
    band = [(x, s.mean - s.std, s.mean + s.std) for x, s in means if s.std is not None]
    if band:
        # On a logarithmic axis, a band that reaches zero ends at the lowest value.
        lowest = min(y for run in series.runs for _, y in run.points)
        floor = lowest if _logarithmic(figure) else -math.inf
        xs, low, high = zip(*band, strict=True)
        axes.fill_between(xs, [max(y, floor) for y in low], high, color=look["color"], alpha=0.18, linewidth=0)
    for tail in series.tails():
        axes.plot(*zip(*tail, strict=True), **{**look, "linewidth": 0.6})
    return handle


def _few_points(figure: Figure) -> bool:
    return max(len(run.points) for series in figure.series for run in series.runs) <= FEW


def _draw_final_norm(axes: Any, figure: Figure) -> None:
    """Draw the values of the final norm, which is not a layer, to the right of the last layer."""
    shown = [series for series in figure.series if series.final_norm() is not None]
    for i, series in enumerate(shown):
        look = _look(series)
        summary = series.final_norm()
        assert summary is not None  # chosen so
        values = [run.final_norm for run in series.runs] if figure.every_run else [summary.mean]
        axes.errorbar(
            [_beyond(figure) + SPREAD * ((i + 0.5) / len(shown) - 0.5)] * len(values),
            values,
            yerr=None if figure.every_run or summary.std is None else [summary.std],
            **{**look, "linestyle": "", "elinewidth": 0.8},
        )


def _beyond(figure: Figure) -> float:
    return figure.layers + 1.5


def _look(series: Series) -> dict[str, Any]:
    """Return the colour, dashes, marker and width of a series' lines."""
    colour: Any = COLOURS[series.colour % len(COLOURS)]
    if series.shade is not None:
        from matplotlib import colormaps

        colour = colormaps[SHADES](BRIGHTEST * series.shade)
    marker = MARKERS[series.colour // len(COLOURS) % len(MARKERS)]
    return {
        "color": colour,
        "linestyle": DASHES[series.style % len(DASHES)],
        "linewidth": 1.3,
        "marker": marker,
        "markersize": 3.5,
        "markerfacecolor": "white" if series.style else colour,
    }


def _layer_axis(axes: Any, figure: Figure) -> None:
    """Label layers with integers, and the final norm, behind a vertical line, with its name."""
    step = math.ceil(figure.layers / 16)
    ticks: list[float] = list(range(1, figure.layers + 1, step))
    labels = [f"{tick:g}" for tick in ticks]
    if any(run.final_norm is not None for series in figure.series for run in series.runs):
        axes.axvline(figure.layers + 0.75, color="0.6", linewidth=0.8, linestyle=":")
        ticks.append(_beyond(figure))
        labels.append("final\nnorm")
    axes.set_xticks(ticks, labels)


def _logarithmic(figure: Figure) -> bool:
    """Return whether y is logarithmic: all values are positive."""
    return figure.log and all(y > 0 for series in figure.series for run in series.runs for _, y in run.points)


def _log_axis(axes: Any, figure: Figure) -> None:
    if not _logarithmic(figure):
        return
    from matplotlib.ticker import FixedLocator, NullLocator

    axes.set_yscale("log")
    ticks = log_ticks(*axes.get_ylim())
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: readable(value))


def log_ticks(low: float, high: float) -> list[float]:
    """Return round numbers between `low` and `high` for a logarithmic axis: the fewest that show the scale."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in STEPS:
        # Powers of whole numbers, so that 3e-5 is not 3.0000000000000004e-05.
        ticks = [tick for power in decades for step in steps if low <= (tick := float(f"{step}e{power}")) <= high]
        if len(ticks) >= TICKS:
            return ticks[:: math.ceil(len(ticks) / (3 * TICKS))]
    return [float(f"{low + (high - low) * i / TICKS:.3g}") for i in range(TICKS + 1)]


def readable(value: float) -> str:
    """Return a tick's number: 0.003, 20, 10⁻⁶, 2×10⁵."""
    if 1e-4 < value < 1e5:
        return f"{value:g}"
    factor, power = f"{value:e}".split("e")
    raised = str(int(power)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{raised}" if float(factor) == 1 else f"{float(factor):g}\N{MULTIPLICATION SIGN}10{raised}"


def _legend(canvas: Any, figure: Figure, handles: Sequence[Any]) -> None:
    """Draw a legend of the series beside or below the plot."""
    below = canvas.get_figwidth() < NARROW
    legend = canvas.legend(
        handles,
        [str(i) for i in range(len(handles))],
        loc="outside lower left" if below else "outside right upper",
        ncols=1 if below else math.ceil(len(handles) / ROWS),
        frameon=False,
        fontsize="small",
        handlelength=2.4,
        title="\n".join(_explained(figure)) or None,
        title_fontsize="x-small",
        alignment="left",
    )
    # Set afterwards: a label that begins with an underscore would be left out.
    for text, series in zip(legend.get_texts(), figure.series, strict=True):
        text.set_text("\n".join(textwrap.wrap(series.title, LONGEST_LABEL)))


def _explained(figure: Figure) -> Iterator[str]:
    """Yield what lines, bands and triangles represent."""
    sizes = sorted({len(series.runs) for series in figure.series})
    over = figure.series[0].runs[0].over
    if sizes[-1] > 1 and not figure.every_run:
        count = f"{sizes[0]} to {sizes[-1]}" if len(sizes) > 1 else f"{sizes[0]}"
        yield "mean ± standard deviation"
        yield f"over {count} {over}s"
    elif sizes[-1] > 1:
        yield f"a line for each {over}"
    if not figure.every_run and any(series.tails() for series in figure.series):
        yield f"thin: not all {over}s"
    if any(run.marks for series in figure.series for run in series.runs):
        yield "triangles: spikes"
