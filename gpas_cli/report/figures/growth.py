"""The law by which values grow from layer to layer, drawn beside the series of a figure."""

from __future__ import annotations

from dataclasses import replace

from gpas_cli.errors import GpasError
from gpas_cli.report.figures.figure import Figure, Line
from gpas_cli.report.figures.series import Series
from gpas_cli.statistics.growth import LEAST_POINTS, better

NOTE = "dashed: of a power law and an exponential, fitted to the logarithms, the one with the lower AIC"


def with_growth(figure: Figure) -> Figure:
    """Return the figure with the better law through the mean of each series, as a line that the legend names.

    Raises GpasError unless x counts layers. Series of too few layers, or with values that are not positive, have none.
    """
    if not figure.layers:
        raise GpasError("--growth fits a law over layers; choose a quantity by layer, at one update for each line")
    laws = [line for series in figure.series if (line := _law(series))]
    note = NOTE if laws else f"no law of growth: it needs positive values of {LEAST_POINTS} layers"
    return replace(figure, lines=(*figure.lines, *laws), note=note)


def _law(series: Series) -> Line | None:
    points = [(x, aggregate.mean) for x, aggregate in series.mean()]
    if not all(x > 0 and y > 0 for x, y in points):
        return None
    law = better(points)
    if law is None:
        return None
    fitted = tuple((x, law.at(x)) for x, _ in points)
    return Line(f"{series.title}: {law.words}", fitted, colour=series.colour, style=1, shade=series.shade)
