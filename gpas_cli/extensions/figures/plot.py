"""Draw plots as PDF, SVG or PNG files: one, or the panels of a figure beside or below each other.

Needs matplotlib (the extra `figures`), which is imported only when a figure is drawn. The same data gives the same
file, without dates or random ids. A heat map is drawn for each series: layers over updates, or the number of layers
that a value spans by first layer; all maps share their colours.
"""

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

from gpas_cli.errors import GpasError, nearest
from gpas_cli.extensions.curves.series import Series
from gpas_cli.extensions.figures.figure import Figure, Line, is_log, layer_axis, log_axis, log_ticks, readable
from gpas_cli.files import replace_file
from gpas_cli.structure import Frozen

_FORMATS = (".pdf", ".svg", ".png")
_PLOT_SIZE = (6.4, 4.0)  # inches, of a single plot of many lines
_COLUMN_SIZE = (3.3, 2.3)  # inches, of a plot as wide as a column of a paper
_PAGE_SIZE = (6.8, 2.4)  # inches, of one as wide as both columns
_NARROW = 5.0  # inches; narrower panels are below each other
_TITLE_CHARACTERS = 19  # in an inch
# Of a line beside the y axis: viewers of an SVG file that lack its first font draw wider letters.
_Y_CHARACTERS = 30
STYLE: dict[str, Any] = {
    # matplotlib includes a Times, as in the body of most papers; the second has the characters that it lacks.
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

# Colours that colour-blind readers can distinguish (Okabe and Ito, 2008, without yellow, plus grey).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#000000", "#56B4E9", "#999999")
_DASHES: tuple[tuple[float, ...], ...] = ((), (4, 1.5), (1, 1.2), (5, 1.2, 1, 1.2))
_WIDTHS = (1.5, 1.0, 1.2, 1.0)  # points, by line style
_WIDER = 0.8  # of its width, by which the first of few solid lines is wider than the last, which may lie on it
_FEW = 4  # solid lines
_EDGE = 0.4  # points of white around dashes, which may lie on a solid line of the same colour
MARKERS = ("o", "s", "D", "P", "X", "*", "d", "p")  # no triangles, which mark spikes
_SHADES = "viridis"  # for colours that represent numbers
_BRIGHTEST = 0.85  # fraction of the shades that is dark enough on white paper
_ALL_MARKED = 40  # points; longer curves have markers at some of them
_MARKS = 6  # on a long curve
_SPREAD = 0.8  # layers over which the final norm's values are spread, so that they do not overlap
_BANDS = 1.5  # opacity of all bands together, at most
_FADED = 0.8  # of the opacity: how much lighter the last of many runs of a series is than the first
_BAR_WIDTH = 0.8  # layers, of all bars at a layer
_BAR_WEIGHTS = (1.0, 0.45, 0.7, 0.25)  # opacity of bars by line style: the series of one colour differ in weight
_LONGEST_LABEL = 34  # characters in a line of the legend
_MOST_SHADES = 6  # series that a legend names one by one if their colours represent numbers
_LINE_HEIGHT = 0.15  # inches, of a line of the legend or title
_CHARACTER_WIDTH = 0.062  # inches, of a character of the legend, at most
_HANDLE_WIDTH = 0.5  # inches, of the line in the legend and its margins
_BAR_TICKS = 12  # at most, on a colour bar
_MAP_WIDTH = 1.6  # inches, at least, of one of several
_MAP_TITLE_CHARACTERS = 16  # in an inch
_MOST_TICKS = 8  # on the axis of layers
_MOST_UPDATES = 4  # with a number below a map


class Sheet(Frozen):
    """What one file shows: panels, with a title above all of them."""

    panels: tuple[Figure, ...]
    title: str = ""

    @property
    def usual_size(self) -> tuple[float, float]:
        """The size in inches for a paper: a column for a single panel of few lines, else both columns; for several rows
        of panels, the size of one row."""
        if len(self.panels) > 1 or (self.panels[0].heat_map and len(self.panels[0].series) > 1):
            return _PAGE_SIZE
        return _COLUMN_SIZE if len(self.panels[0].series) + len(self.panels[0].lines) <= _MOST_SHADES else _PLOT_SIZE


def check_formats(paths: Sequence[Path]) -> None:
    """Raise GpasError unless every suffix names a format."""
    for path in paths:
        if path.suffix.lower() not in _FORMATS:
            raise GpasError(f"{path}: unknown format '{path.suffix}'; {nearest(path.suffix.lower(), _FORMATS)}")


def save(sheet: Sheet, paths: Sequence[Path], size: tuple[float, float] | None = None) -> None:
    """Write the sheet to `paths`, each in the format of its suffix; `size` is in inches, without the legend below.

    Raises GpasError without matplotlib, for an unknown suffix, or if there is nothing to draw.
    """
    check_formats(paths)
    if not any(panel.drawn for panel in sheet.panels):
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
            drawn = BytesIO()  # matplotlib raises other errors when a disk is full
            canvas.savefig(drawn, format=path.suffix.lower()[1:], dpi=300, metadata=dates)
            replace_file(path, drawn.getvalue(), durable=False)


def draw(canvas: Any, sheet: Sheet, size: tuple[float, float]) -> None:
    """Draw the panels on a matplotlib figure and set its size: `size`, plus what legends below the plots need."""
    panels = [panel for panel in sheet.panels if panel.drawn]
    if len(panels) == 1 and panels[0].heat_map:
        maps = len(panels[0].series)
        canvas.set_size_inches(size[0], math.ceil(maps / _map_columns(maps, size[0])) * size[1])
        _draw_maps(canvas, panels[0], sheet.title or panels[0].title)
        return
    columns = 1 if size[0] < _NARROW else 2 if len(panels) == 4 else min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    width = size[0] / columns
    axes = []
    legends: list[_Labelled] = []
    parts = canvas.subfigures(rows, columns, squeeze=False).flat if len(panels) > 1 else [canvas]
    for part, panel in zip(parts, panels, strict=False):
        axes.append(part.subplots())
        legends.append(_Labelled(part, panel, _draw_panel(axes[-1], panel, width, titled=len(panels) > 1)))
    _scale(axes, panels)
    title = _wrapped(sheet.title or panels[0].title, size[0])
    if title:
        canvas.suptitle("\n".join(title), x=0.01, ha="left", fontsize=8, linespacing=1.1)
    plots = rows * size[1] + _LINE_HEIGHT * max(0, len(title) - 1)
    canvas.set_size_inches(size[0], plots + _legends_below(canvas, legends, (size[0], width), rows))


def _draw_panel(axes: Any, panel: Figure, width: float, *, titled: bool) -> list[tuple[str, Any]]:
    handles = _draw_all(axes, panel)
    axes.set_xlabel(panel.x)
    axes.set_ylabel("\n".join(textwrap.wrap(panel.y, _Y_CHARACTERS)))
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
    return textwrap.wrap(text, int(_TITLE_CHARACTERS * width), break_on_hyphens=False)


def _draw_all(axes: Any, figure: Figure) -> list[tuple[str, Any]]:
    """Draw everything that a plot has and return the titles and artists of its legend."""
    draw = _draw_bars if figure.bars else _draw_series
    handles = []
    for series in figure.series:
        title = series.title
        if figure.every_run and len(series.runs) > 1:  # each is a line
            title += f", {series.runs[0].over} {', '.join(str(run.over_label) for run in series.runs)}"
        handles.append((title, draw(axes, figure, series)))
    drawn = [(line, _draw_line(axes, line, figure)) for line in figure.lines]
    _draw_final_norm(axes, figure)
    if figure.level is not None:
        axes.axhline(figure.level, color="0.4", linewidth=0.6, zorder=0)
    return [*handles, *((line.title, handle) for line, handle in drawn if line.in_legend)]


def beyond(figure: Figure) -> float:
    """Return the x of the final norm, which is not a layer, to the right of the last layer."""
    return figure.layers + 1.5


def look(one: Series | Line, points: int) -> dict[str, Any]:
    """Return the colour, dashes, marker and width of a line of so many points."""
    colour: Any = COLOURS[one.colour % len(COLOURS)]
    if one.shade is not None:
        from matplotlib import colormaps

        colour = colormaps[_SHADES](_BRIGHTEST * one.shade)
    style = one.style % len(_DASHES)
    every = max(1, points // _MARKS)
    symbol = one.colour + one.style // len(_DASHES) if one.shade is None else one.style
    return {
        "color": colour,
        "linestyle": (one.colour * 1.7, _DASHES[style]) if style else "-",  # dashes that lie on each other alternate
        "linewidth": _WIDTHS[style],
        "marker": MARKERS[symbol % len(MARKERS)] if one.shade is None or one.style >= len(_DASHES) else "",
        "markersize": 3.0,
        "markeredgewidth": 0.8,
        "markerfacecolor": "white" if one.style else colour,
        # Lines that lie on each other have their markers at different places.
        "markevery": 1 if points <= _ALL_MARKED else ((one.colour * 5 + style * 3) % 12 * every // 12, every),
        "zorder": 2.1 if style else 2,
    }


def _draw_series(axes: Any, figure: Figure, series: Series) -> Any:
    """Draw one series and return the artist that represents it in the legend."""
    from matplotlib.patheffects import withStroke

    own = look(series, max(map(len, figure.curves)))
    solid = [other for other in figure.series if not other.style]
    if series in solid and len(solid) <= _FEW:
        wider = 1 + _WIDER * (1 - (solid.index(series) + 1) / len(solid))
        own |= {"linewidth": own["linewidth"] * wider, "markersize": own["markersize"] * wider}
    elif series not in solid and series.colour in {other.colour for other in solid}:
        own["path_effects"] = [withStroke(linewidth=own["linewidth"] + 2 * _EDGE, foreground="white")]
    for raw in (run.raw for run in series.runs if run.raw):
        axes.plot(*zip(*raw, strict=True), color=own["color"], linewidth=0.5, alpha=0.3)
    if figure.every_run:
        lines = [
            axes.plot(*zip(*run.points, strict=True), **own, alpha=1 - _FADED * i / len(series.runs))
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
        alpha = min(0.18, _BANDS / len(figure.series))
        axes.fill_between(xs, [max(y, floor) for y in low], high, color=own["color"], alpha=alpha, linewidth=0)
    for tail in series.tails():
        axes.plot(*zip(*tail, strict=True), **{**own, "linewidth": 0.5, "marker": ""})
    return handle


def _draw_bars(axes: Any, figure: Figure, series: Series) -> Any:
    """Draw the bars of one series next to the others' bars, and return the artist that represents it."""
    width = _BAR_WIDTH / len(figure.series)
    shift = width * (figure.series.index(series) + 0.5) - _BAR_WIDTH / 2
    means = series.mean()
    deviations = [summary.std or 0.0 for _, summary in means]
    axes.axhline(0, color="0.3", linewidth=0.6)
    return axes.bar(
        [x + shift for x, _ in means],
        [summary.mean for _, summary in means],
        width,
        yerr=deviations if any(deviations) else None,
        color=look(series, 0)["color"],
        alpha=_BAR_WEIGHTS[series.style % len(_BAR_WEIGHTS)],
        error_kw={"elinewidth": 0.6, "ecolor": "0.3"},
    )


def _draw_line(axes: Any, line: Line, figure: Figure) -> Any:
    """Draw one line and return the artist that represents it in the legend."""
    from matplotlib.lines import Line2D

    own = look(line, len(line.points))
    if line.band:
        xs, low, high = zip(*line.band, strict=True)
        axes.fill_between(xs, low, high, color=own["color"], alpha=0.12, linewidth=0)
    if line.form in ("points", "best"):
        own["linestyle"] = ""
    if line.form == "best":
        own |= {"marker": "*", "markersize": 9.0}
    drawn = {**own, "marker": ""} if line.form == "line" else own
    axes.plot(*zip(*line.points, strict=True), **drawn)
    # A line through points that are drawn by themselves has their marker in the legend.
    has_points = any(one.form == "points" and one.colour == line.colour for one in figure.lines)
    return Line2D([], [], **{**(own if has_points else drawn), "markevery": None})


def _draw_final_norm(axes: Any, figure: Figure) -> None:
    """Draw the values of the final norm to the right of the last layer."""
    shown = [(series, summary) for series in figure.series if (summary := series.final_norm())]
    for i, (series, summary) in enumerate(shown):
        own = {**look(series, 0), "linestyle": "", "elinewidth": 0.6}
        values = [run.final_norm for run in series.runs] if figure.every_run else [summary.mean]
        if not own["marker"]:
            own["marker"] = "o"
        axes.errorbar(
            [beyond(figure) + _SPREAD * ((i + 0.5) / len(shown) - 0.5)] * len(values),
            values,
            yerr=None if figure.every_run or summary.std is None else [summary.std],
            **own,
        )


class _Labelled(Frozen):
    """A drawn panel: its part of the canvas, and the titles and artists of its legend."""

    part: Any
    panel: Figure
    handles: Sequence[tuple[str, Any]]


def _legends_below(canvas: Any, drawn: Sequence[_Labelled], widths: tuple[float, float], rows: int) -> float:
    """Draw one legend below all panels, or one below each if a title would be ambiguous. Return the inches it needs.

    widths: of the canvas and of a panel.
    """
    width, panel_width = widths
    panels = [one.panel for one in drawn]
    if all(map(_is_shaded, panels)):
        for one in drawn:
            _colour_bar(one)
        entries = {title: handle for one in drawn for title, handle in one.handles[len(one.panel.series) :]}
        for panel in panels:
            methods = {series.method: series for series in panel.series}
            entries |= {title: _uncoloured(series) for title, series in methods.items() if len(methods) > 1}
        return _below(canvas, entries, panels, width)
    looks = {
        artist.title: repr(look(artist, 0))
        for panel in panels
        for artist in panel.drawn
        if not isinstance(artist, Line) or artist.in_legend
    }
    if len(panels) == 1 or len(set(looks.values())) == len(looks):
        entries = {title: handle for one in drawn for title, handle in one.handles}
        return _below(canvas, entries, panels, width)
    alike = len({tuple(_explained(panel)) for panel in panels}) == 1
    needed = max(_below(one.part, dict(one.handles), [] if alike else [one.panel], panel_width) for one in drawn)
    return rows * needed + (_below(canvas, {}, panels, width) if alike else 0.0)


def _uncoloured(series: Series) -> Any:
    """Return what represents a line style in a legend, whatever its shade."""
    from matplotlib.lines import Line2D

    return Line2D([], [], **{**look(series, 0), "color": "0.3", "markerfacecolor": "0.3", "markevery": None})


def _below(part: Any, entries: Mapping[str, Any], panels: Sequence[Figure], width: float) -> float:
    """Draw a legend with these titles and artists below panels, and return the inches that it needs."""
    titles = ["\n".join(textwrap.wrap(title, _LONGEST_LABEL)) for title in entries]
    lines = [line for title in titles for line in title.split("\n")]
    explained = list(dict.fromkeys(line for panel in panels for line in _explained(panel)))
    if not titles and not explained and len(panels) == 1:
        return 0.0
    longest = max(map(len, lines), default=0)
    columns = max(1, min(len(titles), int(width / (_CHARACTER_WIDTH * longest + _HANDLE_WIDTH))))
    heading = textwrap.wrap("; ".join(explained), int(width / _CHARACTER_WIDTH))
    legend = part.legend(
        list(entries.values()),
        [str(i) for i in range(len(titles))],
        loc="outside lower left",
        ncols=columns,
        frameon=False,
        handlelength=2.4,
        columnspacing=1.0,
        labelspacing=0.3,
        title="\n".join(heading) or None,
        title_fontsize=6.5,
        alignment="left",
    )
    # Set afterwards: a label that begins with an underscore would be left out.
    for text, title in zip(legend.get_texts(), titles, strict=True):
        text.set_text(title)
    return _LINE_HEIGHT * (math.ceil(len(lines) / columns) + len(heading) + 0.8)


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


def _is_shaded(panel: Figure) -> bool:
    """Return whether colours represent numbers of more series than a legend should name."""
    shades = {series.shade for series in panel.series}
    return len(shades) > _MOST_SHADES and None not in shades and len(panel.lines) <= 1


def _colour_bar(one: _Labelled) -> None:
    from matplotlib import cm, colormaps, colors

    axis = one.panel.series[0].shaded
    numbers = sorted({float(str(own.labels[axis])) for own in one.panel.series})
    shades = colors.ListedColormap(colormaps[_SHADES]([_BRIGHTEST * i / 255 for i in range(256)]))
    # Shades are equally spaced by rank.
    scale = cm.ScalarMappable(colors.Normalize(0, len(numbers) - 1), shades)
    bar = one.part.colorbar(scale, ax=one.part.axes, label=axis, pad=0.02, aspect=30)
    ranks = range(0, len(numbers), math.ceil(len(numbers) / _BAR_TICKS))
    bar.set_ticks(list(ranks), labels=[f"{numbers[rank]:g}" for rank in ranks])
    bar.outline.set_linewidth(0.4)


def _draw_maps(canvas: Any, figure: Figure, title: str) -> None:
    """Draw a map for each series on a matplotlib figure, with one colour bar."""
    from matplotlib.colors import LogNorm, Normalize

    columns = _map_columns(len(figure.series), canvas.get_figwidth())
    rows = math.ceil(len(figure.series) / columns)
    axes = canvas.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    values = [value for matrix in (one.matrix() for one in figure.series) for row in matrix for value in row]
    norm = LogNorm if figure.log and min(values) > 0 else Normalize
    limits = {"norm": norm(min(values), max(values)), "cmap": "viridis"}
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
    lines = textwrap.wrap(title, int(_MAP_TITLE_CHARACTERS * canvas.get_figwidth()))
    canvas.suptitle("\n".join(lines), fontsize="medium")


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


def _map_columns(count: int, width: float) -> int:
    return min(max(1, int(width / _MAP_WIDTH)), math.ceil(math.sqrt(count)) if count > 2 else count)
