"""Curves of a grid as SVG and PNG: loss by step, gates by layer, activation variance by layer.

Needs matplotlib (the extra `figures`), imported only here and only when a figure is drawn. The same data gives the same
SVG: no date, no random ids.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpas_cli.errors import GpasError

Points = Sequence[tuple[float, float]]

# Colours that colour-blind readers can tell apart (Okabe and Ito, 2008).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", ":", "-.")


@dataclass(frozen=True)
class Line:
    """One curve: its name in the legend, its points (x, y), and those at which something is to be marked."""

    title: str
    points: Points
    marks: Points = ()


@dataclass(frozen=True)
class Figure:
    """Lines with the words around them. `log` draws y logarithmically, and needs a positive y somewhere."""

    title: str
    x: str
    y: str
    lines: tuple[Line, ...]
    log: bool = False


def over_updates(curves: Mapping[str, Points], what: str = "loss", marks: Mapping[str, Points] | None = None) -> Figure:
    """Title -> `query.curve` called `what`, drawn as it is, and title -> its spikes. Losses are in nats per token."""
    title = f"{what.replace('_', ' ').capitalize()} during training"
    return Figure(title, "update", what, _lines(curves, marks or {}))


def by_layer(curves: Mapping[str, Sequence[tuple[int, Mapping[int, float]]]], what: str, log: bool = False) -> Figure:
    """Title -> `query.layer_curve`; the last recorded step of each is drawn over its layers, counted from 1."""
    last = {title: curve[-1][1] for title, curve in curves.items() if curve}
    points = {title: [(layer + 1, value) for layer, value in sorted(values.items())] for title, values in last.items()}
    return Figure(f"{what.capitalize()} by layer, at the end of training", "layer", what, _lines(points), log)


def save(figure: Figure, path: Path) -> tuple[Path, Path]:
    """Write `path` with the suffixes .svg and .png. Raises GpasError without matplotlib or without anything to draw."""
    if not any(line.points for line in figure.lines):
        raise GpasError(f"{figure.title}: nothing was recorded that could be drawn")
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure as Canvas
    except ModuleNotFoundError as error:
        raise GpasError("figures need matplotlib: pip install 'gpas-cli[figures]'") from error
    svg, png = path.with_suffix(".svg"), path.with_suffix(".png")
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"svg.hashsalt": figure.title, "svg.fonttype": "none"}):
        canvas = Canvas(figsize=(6.4, 4.0), layout="constrained")
        _draw(canvas, figure)
        canvas.savefig(svg, metadata={"Date": None})
        canvas.savefig(png, dpi=160)
    return svg, png


def _draw(canvas: Any, figure: Figure) -> None:
    axes = canvas.subplots()
    for i, line in enumerate(figure.lines):
        # Same colour, other dashes, once the colours run out.
        style = {"color": COLOURS[i % len(COLOURS)], "linestyle": DASHES[i // len(COLOURS) % len(DASHES)]}
        marker = "o" if len(line.points) <= 64 else None
        axes.plot(
            *zip(*line.points, strict=True), label=line.title, marker=marker, markersize=3, linewidth=1.3, **style
        )
        if line.marks:
            axes.plot(*zip(*line.marks, strict=True), linestyle="", marker="^", markersize=6, color=style["color"])
    axes.set(title=figure.title, xlabel=figure.x, ylabel=figure.y)
    axes.grid(alpha=0.3)
    if figure.log:
        axes.set_yscale("log")
    axes.legend(frameon=False, fontsize="small")


def _lines(curves: Mapping[str, Points], marks: Mapping[str, Points] | None = None) -> tuple[Line, ...]:
    """Curves without their holes: what is not finite cannot be drawn, and what is empty needs no legend."""
    finite = {title: _finite(points) for title, points in curves.items()}
    marked = {title: _finite(points) for title, points in (marks or {}).items()}
    return tuple(Line(title, points, marked.get(title, ())) for title, points in finite.items() if points)


def _finite(points: Points) -> Points:
    return [(x, y) for x, y in points if math.isfinite(y)]
