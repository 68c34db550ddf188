"""Draw plots as PDF, SVG or PNG files: one, or the panels of a figure beside or below each other.

Needs matplotlib (the extra `figures`), which is imported only when a figure is drawn. The same data gives the same
file, without dates or random ids.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpas_cli.errors import GpasError, nearest
from gpas_cli.report.figures import heat_map
from gpas_cli.report.figures.figure import Figure
from gpas_cli.report.figures.plot_legend import LINE_HEIGHT, MOST_SHADES, Labelled, legend_beside, legends_below
from gpas_cli.report.figures.plot_lines import beyond, draw_all
from gpas_cli.report.figures.ticks import is_log, layer_axis, log_axis

FORMATS = (".pdf", ".svg", ".png")
PLOT_SIZE = (6.4, 4.0)  # inches, of a single plot of many lines
COLUMN_SIZE = (3.3, 2.3)  # inches, of a plot as wide as a column of a paper
PAGE_SIZE = (6.8, 2.4)  # inches, of one as wide as both columns
NARROW = 5.0  # inches; narrower panels are below each other, and narrower plots have their legend below
TITLE_CHARACTERS = 19  # in an inch
STYLE: dict[str, Any] = {
    # matplotlib includes a Times, as in the body of most papers; the second has the characters that this one has not.
    "font.family": ["STIXGeneral", "DejaVu Sans"],
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "svg.fonttype": "none",
    "pdf.fonttype": 42,  # TrueType: publishers refuse matplotlib's usual Type 3
    "text.parse_math": False,  # a dollar in a title is a dollar
}


@dataclass(frozen=True)
class Sheet:
    """What one file shows: panels, with a title above all of them."""

    panels: tuple[Figure, ...]
    title: str = ""

    @property
    def usual_size(self) -> tuple[float, float]:
        """The size in inches for a paper: a column for a single panel of few lines, else both columns; of several rows
        of panels, that of one."""
        if len(self.panels) > 1 or (self.panels[0].heat_map and len(self.panels[0].series) > 1):
            return PAGE_SIZE
        return COLUMN_SIZE if len(self.panels[0].series) + len(self.panels[0].lines) <= MOST_SHADES else PLOT_SIZE


def check_formats(paths: Sequence[Path]) -> None:
    """Raise GpasError unless every suffix names a format."""
    for path in paths:
        if path.suffix.lower() not in FORMATS:
            raise GpasError(f"{path}: unknown format '{path.suffix}'; {nearest(path.suffix.lower(), FORMATS)}")


def save(sheet: Sheet, paths: Sequence[Path], size: tuple[float, float] | None = None) -> None:
    """Write the sheet to `paths`, each in the format of its suffix; `size` is in inches, without a long legend.

    Raises GpasError without matplotlib, for an unknown suffix, or if there is nothing to draw.
    """
    check_formats(paths)
    if all(panel.is_empty for panel in sheet.panels):
        raise GpasError(f"{sheet.title or sheet.panels[0].title}: no such curve has been recorded")
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure as Canvas
    except ModuleNotFoundError as error:
        raise GpasError("figures need matplotlib: pip install 'gpas-cli[figures]'") from error
    settings: Any = {**STYLE, "svg.hashsalt": sheet.title or sheet.panels[0].title}
    with mpl.rc_context(settings):
        canvas = Canvas(layout="constrained")
        draw(canvas, sheet, size or sheet.usual_size)
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            dates = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}.get(path.suffix.lower())
            canvas.savefig(path, dpi=200, metadata=dates)


def draw(canvas: Any, sheet: Sheet, size: tuple[float, float]) -> None:
    """Draw the panels on a matplotlib figure and set its size: `size`, plus what legends below the plots need."""
    panels = [panel for panel in sheet.panels if not panel.is_empty]
    if len(panels) == 1 and panels[0].heat_map:
        canvas.set_size_inches(heat_map.canvas_size(panels[0].series, size))
        heat_map.draw(canvas, panels[0], sheet.title or panels[0].title)
        return
    below = size[0] < NARROW or len(panels) > 1
    rows, columns = (len(panels), 1) if size[0] < NARROW else _arranged(len(panels))
    width = size[0] / columns
    axes = []
    legends: list[Labelled] = []
    parts = canvas.subfigures(rows, columns, squeeze=False).flat if len(panels) > 1 else [canvas]
    for part, panel in zip(parts, panels, strict=False):
        axes.append(part.subplots())
        legends.append(Labelled(part, panel, _draw_panel(axes[-1], panel, width, titled=len(panels) > 1)))
    _scale(axes, panels)
    title = _wrapped(sheet.title or panels[0].title, size[0])
    if title:
        canvas.suptitle("\n".join(title), x=0.01, ha="left", fontsize=8, linespacing=1.1)
    plots = rows * size[1] + LINE_HEIGHT * max(0, len(title) - 1)
    if below:
        canvas.set_size_inches(size[0], plots + legends_below(canvas, legends, (size[0], width), rows))
    else:
        height, wider = legend_beside(canvas, legends[0])
        canvas.set_size_inches(size[0] + wider, max(plots, height))


def _arranged(panels: int) -> tuple[int, int]:
    """Return the rows and columns of so many panels."""
    columns = min(3, panels) if panels != 4 else 2
    return math.ceil(panels / columns), columns


def _draw_panel(axes: Any, panel: Figure, width: float, *, titled: bool) -> list[tuple[str, Any]]:
    handles = draw_all(axes, panel)
    axes.set_xlabel(panel.x)
    axes.set_ylabel("\n".join(textwrap.wrap(panel.y, 44)))
    if titled:
        axes.set_title("\n".join(_wrapped(panel.title, width)), loc="left")
    axes.grid(alpha=0.25, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    if panel.layers:
        layer_axis(axes, panel, beyond(panel))
    return handles


def _scale(axes: Sequence[Any], panels: Sequence[Figure]) -> None:
    """Give panels with the same y axis common limits, and logarithmic axes their ticks."""
    for title in {panel.y for panel in panels}:
        same = [own for own, panel in zip(axes, panels, strict=True) if panel.y == title]
        logarithmic = all(is_log(panel) for panel in panels if panel.y == title)
        if logarithmic:
            for own in same:
                own.set_yscale("log")
        limits = [own.get_ylim() for own in same]
        for own in same:
            own.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
            if logarithmic:
                log_axis(own.yaxis, "y")
    for own, panel in zip(axes, panels, strict=True):
        if panel.log_x:
            log_axis(own.xaxis, "x")


def _wrapped(text: str, width: float) -> list[str]:
    return textwrap.wrap(text, int(TITLE_CHARACTERS * width), break_on_hyphens=False)
