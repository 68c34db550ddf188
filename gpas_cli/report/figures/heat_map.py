"""Draw a heat map for each series: layers over updates, or the number of layers that a value spans by first layer.

All maps share their colours. `report.figures.plot` imports this module together with matplotlib.
"""

import math
import textwrap
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from gpas_cli.report.figures.figure import Figure, log_ticks, readable
from gpas_cli.report.figures.series import Series

_SHADES = "viridis"
_MAP_WIDTH = 1.6  # inches, at least, of one of several
_TITLE_CHARACTERS = 16  # in an inch
_MOST_TICKS = 8  # on the axis of layers
_MOST_UPDATES = 4  # with a number below a map


def canvas_size(series: Sequence[Series], size: tuple[float, float]) -> tuple[float, float]:
    """Return the size, in inches, of the maps of all series; `size` is that of a row of them."""
    return size[0], math.ceil(len(series) / _columns(len(series), size[0])) * size[1]


def draw(canvas: Any, figure: Figure, title: str) -> None:
    """Draw a map for each series on a matplotlib figure, with one colour bar."""
    from matplotlib.colors import LogNorm, Normalize

    columns = _columns(len(figure.series), canvas.get_figwidth())
    rows = math.ceil(len(figure.series) / columns)
    axes = canvas.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    values = [value for matrix in (one.matrix() for one in figure.series) for row in matrix for value in row]
    norm = LogNorm if figure.log and min(values) > 0 else Normalize
    limits = {"norm": norm(min(values), max(values)), "cmap": _SHADES}
    drawn = [_draw_map(own, one, limits) for own, one in zip(axes.flat, figure.series, strict=False)]
    for unused in axes.flat[len(figure.series) :]:
        unused.set_visible(False)
    for lowest in axes.flat[: len(figure.series)][-columns:]:
        lowest.tick_params(labelbottom=True)
    bar = canvas.colorbar(drawn[0], ax=axes, label=figure.heat_map)
    if figure.log:
        low, high = bar.ax.get_ylim()
        bar.set_ticks(log_ticks(low, high))
        bar.ax.yaxis.set_major_formatter(lambda value, _: readable(value))
        bar.minorticks_off()
    canvas.supxlabel(figure.x, fontsize="medium")
    canvas.supylabel(figure.y, fontsize="medium")
    canvas.suptitle("\n".join(textwrap.wrap(title, int(_TITLE_CHARACTERS * canvas.get_figwidth()))), fontsize="medium")


def _draw_map(axes: Any, series: Series, limits: dict[str, Any]) -> Any:
    """Draw one map and return its mesh. Rows may be shorter than the first: a triangle."""
    rows = series.matrix()
    width = len(rows[0])
    padded = [[*row, *[math.nan] * (width - len(row))] for row in rows]
    columns = series.columns()
    mesh = axes.pcolormesh(_edges(columns), [i + 0.5 for i in range(len(rows) + 1)], padded, rasterized=True, **limits)
    if series.runs[0].columns:
        axes.locator_params(axis="x", nbins=_MOST_UPDATES)
    else:
        axes.set_xticks(list(range(1, width + 1, math.ceil(width / _MOST_TICKS))))
    axes.set_yticks(list(range(1, len(rows) + 1, math.ceil(len(rows) / _MOST_TICKS))))
    axes.set_title(series.title, fontsize="small")
    axes.spines[["top", "right"]].set_visible(False)
    return mesh


def _edges(centres: Sequence[float]) -> list[float]:
    """Return the edges of columns with these centres."""
    if len(centres) == 1:
        return [centres[0] - 0.5, centres[0] + 0.5]
    inner = [(a + b) / 2 for a, b in pairwise(centres)]
    return [centres[0] - (inner[0] - centres[0]), *inner, centres[-1] + (centres[-1] - inner[-1])]


def _columns(count: int, width: float) -> int:
    return min(max(1, int(width / _MAP_WIDTH)), math.ceil(math.sqrt(count)) if count > 2 else count)
