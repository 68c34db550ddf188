"""Draw legends beside or below plots, never over them, and colour bars for many series whose colours are numbers."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpas_cli.report.figures.figure import Figure, Line
from gpas_cli.report.figures.plot_lines import BRIGHTEST, SHADES, look
from gpas_cli.report.figures.series import Series

LONGEST_LABEL = 34  # characters in a line of the legend
LONGEST_COLUMN = 24  # entries of a legend
MOST_SHADES = 6  # series that a legend names one by one if their colours represent numbers
LINE_HEIGHT = 0.15  # inches, of a line of the legend or title
CHARACTER_WIDTH = 0.062  # inches, of a character of the legend, at most
HANDLE_WIDTH = 0.5  # inches, of the line in the legend and its margins
USUAL_LEGEND = 1.5  # inches of a plot's width that a legend beside it may take
BAR_TICKS = 12  # at most, on a colour bar


@dataclass(frozen=True)
class Labelled:
    """A drawn panel: its part of the canvas, and the titles and artists of its legend."""

    part: Any
    panel: Figure
    handles: Sequence[tuple[str, Any]]


def legends_below(canvas: Any, drawn: Sequence[Labelled], widths: tuple[float, float], rows: int) -> float:
    """Draw one legend below all panels, or one below each if a title would be ambiguous. Return the inches it needs.

    widths: those of the canvas and of a panel.
    """
    width, panel_width = widths
    panels = [one.panel for one in drawn]
    if all(map(_is_shaded, panels)):
        for one in drawn:
            _colour_bar(one)
        return 0.0
    looks = {artist.title: repr(look(artist, 0)) for panel in panels for artist in panel.drawn if _is_named(artist)}
    if len(set(looks.values())) == len(looks):
        entries = {title: handle for one in drawn for title, handle in one.handles}
        return _below(canvas, entries, panels, width)
    alike = len({tuple(_explained(panel)) for panel in panels}) == 1
    needed = max(_below(one.part, dict(one.handles), [] if alike else [one.panel], panel_width) for one in drawn)
    return rows * needed + (_below(canvas, {}, panels, width) if alike else 0.0)


def legend_beside(canvas: Any, one: Labelled) -> tuple[float, float]:
    """Draw a legend beside a single plot. Return the height that it needs and the width that it adds, in inches."""
    if _is_shaded(one.panel):
        _colour_bar(one)
        return 0.0, 0.0
    titles = _wrapped(dict(one.handles))
    explained = list(_explained(one.panel))
    if not titles and not explained:
        return 0.0, 0.0
    columns = math.ceil(len(titles) / LONGEST_COLUMN)
    _draw(canvas, dict(one.handles), titles, "outside right upper", columns, "\n".join(explained))
    lines = _lines(titles) / columns + len(explained) + 3
    return LINE_HEIGHT * lines, max(0.0, columns * (CHARACTER_WIDTH * _longest(titles) + HANDLE_WIDTH) - USUAL_LEGEND)


def _below(part: Any, entries: Mapping[str, Any], panels: Sequence[Figure], width: float) -> float:
    titles = _wrapped(entries)
    explained = list(dict.fromkeys(line for panel in panels for line in _explained(panel)))
    if not titles and not explained and len(panels) == 1:
        return 0.0
    columns = max(1, min(len(titles), int(width / (CHARACTER_WIDTH * _longest(titles) + HANDLE_WIDTH))))
    heading = textwrap.wrap("; ".join(explained), int(width / CHARACTER_WIDTH))
    _draw(part, entries, titles, "outside lower left", columns, "\n".join(heading))
    return LINE_HEIGHT * (math.ceil(_lines(titles) / columns) + len(heading) + 0.8)


def _draw(part: Any, entries: Mapping[str, Any], titles: Sequence[str], place: str, columns: int, heading: str) -> None:
    legend = part.legend(
        list(entries.values()),
        [str(i) for i in range(len(titles))],
        loc=place,
        ncols=columns,
        frameon=False,
        handlelength=2.4,
        columnspacing=1.0,
        labelspacing=0.3,
        title=heading or None,
        title_fontsize=6.5,
        alignment="left",
    )
    # Set afterwards: a label that begins with an underscore would be left out.
    for text, title in zip(legend.get_texts(), titles, strict=True):
        text.set_text(title)


def _wrapped(entries: Mapping[str, Any]) -> list[str]:
    return ["\n".join(textwrap.wrap(title, LONGEST_LABEL)) for title in entries]


def _longest(titles: Sequence[str]) -> int:
    return max((len(line) for title in titles for line in title.split("\n")), default=0)


def _lines(titles: Sequence[str]) -> int:
    return sum(title.count("\n") + 1 for title in titles)


def _explained(figure: Figure) -> Iterator[str]:
    """Yield what lines, bands and triangles represent."""
    if figure.note:
        yield figure.note
    if not figure.series:
        return
    sizes = sorted({len(series.runs) for series in figure.series})
    over = figure.series[0].runs[0].over
    if sizes[-1] > 1 and not figure.every_run:
        count = f"{sizes[0]} to {sizes[-1]}" if len(sizes) > 1 else f"{sizes[0]}"
        yield f"mean ± standard deviation over {count} {over}s"
    elif sizes[-1] > 1:
        yield f"a line for each {over}, the first the darkest"
    if not figure.every_run and any(series.tails() for series in figure.series):
        yield f"thin: not all {over}s"
    if any(run.marks for series in figure.series for run in series.runs):
        yield "triangles: spikes"


def _is_named(artist: Series | Line) -> bool:
    """Return whether the legend has an entry for it."""
    return not isinstance(artist, Line) or artist.in_legend


def _is_shaded(panel: Figure) -> bool:
    """Return whether colours represent numbers of more series than a legend should name."""
    shades = [series.shade for series in panel.series]
    alike = all(series.style == 0 for series in panel.series)
    return len(shades) > MOST_SHADES and None not in shades and alike and not panel.lines


def _colour_bar(one: Labelled) -> None:
    from matplotlib import cm, colormaps, colors

    series = one.panel.series
    axis = next(axis for axis in series[0].labels if len({own.labels.get(axis) for own in series}) > 1)
    numbers = sorted(float(str(own.labels[axis])) for own in series)
    shades = colors.ListedColormap(colormaps[SHADES]([BRIGHTEST * i / 255 for i in range(256)]))
    # Shades are equally spaced by rank.
    scale = cm.ScalarMappable(colors.Normalize(0, len(numbers) - 1), shades)
    bar = one.part.colorbar(scale, ax=one.part.axes, label=axis, pad=0.02, aspect=30)
    ranks = range(0, len(numbers), math.ceil(len(numbers) / BAR_TICKS))
    bar.set_ticks(list(ranks), labels=[f"{numbers[rank]:g}" for rank in ranks])
    bar.outline.set_linewidth(0.4)
