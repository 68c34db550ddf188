"""Draw a heat map for each series: layers over updates, or the number of layers that a value spans by first layer.

All maps share their colours. `report.figures.plot` imports this module together with matplotlib.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from gpas_cli.report.figures.figure import Figure
from gpas_cli.report.figures.series import Series
from gpas_cli.report.figures.ticks import log_ticks, readable

SHADES = "viridis"
MAPS_PER_ROW = 4
MAP_SHARE = (0.5, 0.62)  # of the figure's size, for one of several maps
TITLE_CHARACTERS = 16  # in an inch
MOST_TICKS = 8  # on an axis


def canvas_size(series: Sequence[Series], size: tuple[float, float]) -> tuple[float, float]:
    """Return the size, in inches, of the maps of all series; `size` is that of one."""
    if len(series) == 1:
        return size
    columns = _columns(len(series))
    return columns * MAP_SHARE[0] * size[0], math.ceil(len(series) / columns) * MAP_SHARE[1] * size[1]


def draw(canvas: Any, figure: Figure, title: str) -> None:
    """Draw a map for each series on a matplotlib figure, with one colour bar."""
    columns = _columns(len(figure.series))
    rows = math.ceil(len(figure.series) / columns)
    axes = canvas.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    maps = [one.matrix() for one in figure.series]
    limits = {"norm": _norm([value for matrix in maps for row in matrix for value in row], figure), "cmap": SHADES}
    drawn = [_draw_map(own, one, limits) for own, one in zip(axes.flat, figure.series, strict=False)]
    for unused in axes.flat[len(figure.series) :]:
        unused.set_visible(False)
    bar = canvas.colorbar(drawn[0], ax=axes, label=figure.heat_map)
    if figure.log:
        low, high = bar.ax.get_ylim()
        bar.set_ticks(log_ticks(low, high))
        bar.ax.yaxis.set_major_formatter(lambda value, _: readable(value))
        bar.minorticks_off()
    canvas.supxlabel(figure.x, fontsize="medium")
    canvas.supylabel(figure.y, fontsize="medium")
    canvas.suptitle("\n".join(textwrap.wrap(title, int(TITLE_CHARACTERS * canvas.get_figwidth()))), fontsize="medium")


def _norm(values: Sequence[float], figure: Figure) -> Any:
    """Return the scale of the colours: logarithmic if the figure is and all values are positive."""
    from matplotlib.colors import LogNorm, Normalize

    scale = LogNorm if figure.log and min(values) > 0 else Normalize
    return scale(min(values), max(values))


def _draw_map(axes: Any, series: Series, limits: dict[str, Any]) -> Any:
    """Draw one map and return its mesh. Rows may be shorter than the first: a triangle."""
    rows = series.matrix()
    width = len(rows[0])
    padded = [[*row, *[math.nan] * (width - len(row))] for row in rows]
    columns = series.columns()
    mesh = axes.pcolormesh(_edges(columns), [i + 0.5 for i in range(len(rows) + 1)], padded, rasterized=True, **limits)
    if not series.runs[0].columns:
        axes.set_xticks(list(range(1, width + 1, math.ceil(width / MOST_TICKS))))
    axes.set_yticks(list(range(1, len(rows) + 1, math.ceil(len(rows) / MOST_TICKS))))
    axes.set_title(series.title, fontsize="small")
    axes.spines[["top", "right"]].set_visible(False)
    return mesh


def _edges(centres: Sequence[float]) -> list[float]:
    """Return the edges of columns with these centres."""
    if len(centres) == 1:
        return [centres[0] - 0.5, centres[0] + 0.5]
    inner = [(a + b) / 2 for a, b in pairwise(centres)]
    return [centres[0] - (inner[0] - centres[0]), *inner, centres[-1] + (centres[-1] - inner[-1])]


def _columns(count: int) -> int:
    return min(MAPS_PER_ROW, math.ceil(math.sqrt(count)) if count > 2 else count)
