"""Draw a plot as text: lines of braille dots, with round ticks, and a key in every line that names it without colour.

The bands are not drawn. Needs neither matplotlib nor a terminal: `Plot` is a renderable of rich.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import Style
from rich.text import Text

from gpas_cli.extensions.figures.figure import Figure, Line, apart, is_log, linear_ticks, log_ticks, readable
from gpas_cli.report.quantities import Points
from gpas_cli.structure import Frozen
from gpas_cli.words import printable

_PLOT_LINES = 18  # without axes and legend
_WIDEST = 120  # characters; a wider plot has too flat lines
_TICK_EVERY = (14, 4)  # characters of x and lines of y between ticks, at least
_KEYS = "123456789abcdefghijklmnopqrstuvwxyz"
_KEYS_ON_CURVE = 4  # times that a curve has its key
# Okabe and Ito's colours, as in files; black and grey are the terminal's own colour.
_COLOURS = ((0, 114, 178), (213, 94, 0), (0, 158, 115), (204, 121, 167), (230, 159, 0), None, (86, 180, 233), None)


class _Curve(Frozen):
    """A line of the plot: its title, its points in the plot's coordinates and its look."""

    title: str
    points: Points
    colour: tuple[int, int, int] | None
    joined: bool


class Plot(Frozen):
    """A plot as wide as the console."""

    figure: Figure

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        figure = self.figure
        if figure.title:
            yield Text(printable(figure.title), Style(bold=True))
        if figure.heat_map:
            yield Text("A heat map is drawn in a file: -o map.png", "dim")
            return
        curves = _curves(figure)
        yield from _Frame.around(figure, curves, min(options.max_width, _WIDEST)).rows(curves)
        yield from _legend(curves, options.max_width)
        if figure.note:
            yield Text(printable(figure.note), "dim")


class _Frame(Frozen):
    """The plot's limits, on linear or logarithmic scales, its size in characters and its ticks."""

    figure: Figure
    x: tuple[float, float]
    y: tuple[float, float]
    width: int
    ticks: tuple[float, ...]

    @classmethod
    def around(cls, figure: Figure, curves: Sequence[_Curve], room: int) -> _Frame:
        """Return the frame of all curves in so many characters."""
        xs = [x for curve in curves for x, _ in curve.points]
        ys = [y for curve in curves for _, y in curve.points]
        ys += [figure.level] if figure.level is not None else []
        y = _limits(ys)
        ticks = _ticks(*y, is_log(figure), _PLOT_LINES // _TICK_EVERY[1])
        margin = max(map(len, map(readable, _shown(ticks, figure))))
        x = _limits(xs, margin=0)
        return cls(figure, x, y, room - margin - 2, ticks)

    def rows(self, curves: Sequence[_Curve]) -> Iterator[Text]:
        """Yield the plot line by line, with its axes."""
        yield Text(printable(self.figure.y), "dim")
        low, high = self.y
        lines = {round((high - tick) / (high - low) * _PLOT_LINES - 0.5): tick for tick in self.ticks}
        shown = zip(lines, _shown(lines.values(), self.figure), strict=True)
        labels = {max(0, min(_PLOT_LINES - 1, line)): readable(value) for line, value in shown}
        margin = max(map(len, labels.values()))
        for i, row in enumerate(self._canvas(curves).split("\n")):
            yield Text.assemble(
                (f"{labels.get(i, ''):>{margin}}", "dim"), (" ┤" if i in labels else " │", "dim"), Text.from_ansi(row)
            )
        yield Text(f"{'':>{margin}} └{'─' * self.width}", "dim")
        yield Text(f"{'':>{margin}}  {self._x_labels()}", "dim")
        yield Text(f"{'':>{margin}}  {printable(self.figure.x):>{self.width}}", "dim")

    def _x_labels(self) -> str:
        line = [" "] * self.width
        low, high = self.x
        for tick in _ticks(low, high, self.figure.log_x, max(2, self.width // _TICK_EVERY[0])):
            text = readable(10**tick if self.figure.log_x else tick)
            at = round((tick - low) / (high - low) * (self.width - 1)) - len(text) // 2
            start = max(0, min(at, self.width - len(text)))
            line[start : start + len(text)] = text
        return "".join(line).rstrip()

    def _canvas(self, curves: Sequence[_Curve]) -> str:
        from plotille import Canvas

        canvas = Canvas(
            self.width, _PLOT_LINES, *(self.x[0], self.y[0], self.x[1], self.y[1]), mode="rgb", full_reset=True
        )
        if self.figure.level is not None:
            canvas.line(self.x[0], self.figure.level, self.x[1], self.figure.level, color=(128, 128, 128))
        for number, curve in enumerate(curves):
            self._draw(canvas, curve)
            if len(curves) > 1:
                count = len(curve.points)
                for i in range(_KEYS_ON_CURVE):  # at other places than on the curve before, and at the end
                    place = round((i + 0.3 + 0.17 * (number % 5)) * count / _KEYS_ON_CURVE)
                    x, y = curve.points[min(count - 1, place)]
                    canvas.text(x, y, _KEYS[number % len(_KEYS)], color=curve.colour)
        return str(canvas.plot("\n"))

    def _draw(self, canvas: Any, curve: _Curve) -> None:
        for before, after in pairwise(curve.points) if curve.joined else ():
            canvas.line(*before, *after, color=curve.colour)
        if not curve.joined or len(curve.points) == 1:
            for x, y in curve.points:
                canvas.text(x, y, "o", color=curve.colour)


def _curves(figure: Figure) -> list[_Curve]:
    """Return the curves in the coordinates of the plot: logarithms on a logarithmic axis."""
    log = is_log(figure)
    found = []
    for one in figure.drawn:
        points = one.points if isinstance(one, Line) else tuple((x, summary.mean) for x, summary in one.mean())
        placed = tuple(
            (math.log10(x) if figure.log_x else x, math.log10(y) if log else y)
            for x, y in points
            if (x > 0 or not figure.log_x) and math.isfinite(y)
        )
        joined = not isinstance(one, Line) or one.form not in ("points", "best")
        colour = _COLOURS[one.colour % len(_COLOURS)] if one.shade is None else _shade(one.shade)
        if placed:
            found.append(_Curve(one.title, placed, colour, joined))
    return found


def _shade(fraction: float) -> tuple[int, int, int]:
    """Return the colour of a number between 0 and 1, from violet to yellow-green, readable on black and on white."""
    return round(116 + 44 * fraction), round(84 + 106 * fraction), round(160 - 120 * fraction)


def _limits(values: Sequence[float], margin: float = 0.04) -> tuple[float, float]:
    low, high = min(values), max(values)
    extra = (high - low) * margin or (0.0 if high > low else abs(high) * 0.1 or 1.0)
    return low - extra, high + extra


def _ticks(low: float, high: float, log: bool, most: int) -> tuple[float, ...]:
    """Return at most so many round ticks, in the coordinates of the plot."""
    if log:
        ticks = apart(log_ticks(10**low, 10**high), (high - low) * math.log(10) / (most + 1))
        return tuple(math.log10(tick) for tick in ticks)
    return tuple(linear_ticks(low, high, most))


def _shown(ticks: Any, figure: Figure) -> list[float]:
    """Return the numbers of ticks of y."""
    return [float(f"{10**tick:.4g}") if is_log(figure) else tick for tick in ticks]


def _legend(curves: Sequence[_Curve], room: int) -> Iterator[Text]:
    """Yield the keys and titles of the curves, in columns."""
    if len(curves) < 2:
        return
    entries = [f"{_KEYS[i % len(_KEYS)]} {printable(curve.title)}" for i, curve in enumerate(curves)]
    width = max(map(len, entries)) + 5
    columns = max(1, room // width)
    for start in range(0, len(entries), columns):
        line = Text()
        for entry, curve in zip(entries[start : start + columns], curves[start:], strict=False):
            colour = Style(color=f"rgb({','.join(map(str, curve.colour))})") if curve.colour else Style()
            line.append("── " if curve.joined else "oo ", colour)
            line.append(f"{entry:<{width - 3}}")
        line.rstrip()
        yield line
