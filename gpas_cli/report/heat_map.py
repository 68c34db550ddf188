"""Draw a heat map for each series: layers to the right, the number of layers that a value spans upwards.

All maps share their colours. `report.figure` imports this module together with matplotlib.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

from gpas_cli.report.series import Series

SHADES = "viridis"
COLUMNS = 4  # maps beside each other
SHARE = (0.5, 0.62)  # of the figure's size that one of several maps has
TITLE_CHARACTERS = 8  # in an inch
TICKS = 8  # at most, on an axis


def canvas_size(series: Sequence[Series], size: tuple[float, float]) -> tuple[float, float]:
    """Return the size, in inches, of the maps of all series; `size` is that of one."""
    if len(series) == 1:
        return size
    columns = _columns(len(series))
    return columns * SHARE[0] * size[0], math.ceil(len(series) / columns) * SHARE[1] * size[1]


def draw(canvas: Any, series: Sequence[Series], *, title: str, x: str, y: str, shade: str) -> None:
    """Draw a map for each series on a matplotlib figure; `shade` is the title of the colour bar."""
    columns = _columns(len(series))
    axes = canvas.subplots(math.ceil(len(series) / columns), columns, squeeze=False, sharex=True, sharey=True)
    maps = [one.matrix() for one in series]
    values = [value for rows in maps for row in rows for value in row]
    limits = {"vmin": min(values), "vmax": max(values), "cmap": SHADES}
    drawn = [_draw_map(own, one, rows, limits) for own, one, rows in zip(axes.flat, series, maps, strict=False)]
    for unused in axes.flat[len(series) :]:
        unused.set_visible(False)
    canvas.colorbar(drawn[0], ax=axes, label=shade)
    canvas.supxlabel(x, fontsize="medium")
    canvas.supylabel(y, fontsize="medium")
    canvas.suptitle("\n".join(textwrap.wrap(title, int(TITLE_CHARACTERS * canvas.get_figwidth()))), fontsize="medium")


def _draw_map(axes: Any, series: Series, rows: Sequence[Sequence[float]], limits: dict[str, Any]) -> Any:
    """Draw one map, a triangle: fewer layers have so many layers after them. Return its mesh."""
    width = len(rows[0])
    padded = [[*row, *[math.nan] * (width - len(row))] for row in rows]
    edges = [i + 0.5 for i in range(width + 1)]
    mesh = axes.pcolormesh(edges, edges[: len(rows) + 1], padded, rasterized=True, **limits)
    ticks = range(1, width + 1, math.ceil(width / TICKS))
    axes.set_xticks(list(ticks))
    axes.set_yticks([tick for tick in ticks if tick <= len(rows)])
    axes.set_title(series.title, fontsize="small")
    axes.spines[["top", "right"]].set_visible(False)
    return mesh


def _columns(count: int) -> int:
    return min(COLUMNS, math.ceil(math.sqrt(count)) if count > 2 else count)
