"""A metric over an axis of numbers, such as the learning rate: a line per method, with its best value marked."""

import math
from dataclasses import replace

from gpas_cli.errors import GpasError, nearest
from gpas_cli.extensions.curves.series import CellCurve, Series, make_series
from gpas_cli.extensions.figures.figure import Figure, Line, is_wide
from gpas_cli.report.labels import stage_kinds
from gpas_cli.report.quantities import metric
from gpas_cli.report.recorded import Recorded
from gpas_cli.report.tables.entry_status import entry_status
from gpas_cli.spec.stage import Metric
from gpas_cli.words import grouped


def envelope(known: Recorded, axis: str, value: str, over: str, title: str) -> tuple[Figure, list[str]]:
    """Return the plot of the metric `value` over `axis`, and the ids of the cells that have no number yet.

    over: the axis that is averaged. A run that diverged has no point. Raises GpasError for an axis with other labels
    than numbers, or fewer than two, and for a metric without a better direction.
    """
    entries = known.entries
    what = metric(value, stage_kinds(entries))
    labels = [entry.axes.get(axis) for entry in entries]
    if axis not in (axes := dict.fromkeys(name for entry in entries for name in entry.axes)):
        raise GpasError(f"no cell has an axis '{axis}'; {nearest(axis, axes)}")
    numbers = {label for label in labels if isinstance(label, int | float) and not isinstance(label, bool)}
    if len(numbers) < 2 or len(numbers) < len(set(labels)):
        raise GpasError(f"--over {axis}: the cells need at least two values of it, all numbers")
    if not what.better:
        raise GpasError(f"--over {axis}: neither a lower nor a higher {what.name} is better")
    runs, missing = _runs(known, axis, what, over)
    series = make_series(runs)
    log_x = is_wide(numbers)
    stars = [(own, star) for own in series if (star := _best(own, axis, what))]
    return Figure(
        title,
        axis,
        what.heading,
        tuple(replace(own, title=star.title) for own, star in stars),
        lines=tuple(star for _, star in stars),
        log_x=log_x,
        note="stars: the best mean of each; runs that diverged have no point",
    ), missing


def _runs(known: Recorded, axis: str, what: Metric, over: str) -> tuple[list[CellCurve], list[str]]:
    """Return a curve over `axis` for each set of cells that differ in it alone, and the cells without a number."""
    distinct = {entry.id: entry for entry in known.entries}.values()
    groups = grouped(((entry.grid, entry.labels_without(axis)), entry) for entry in distinct)
    runs, missing = [], []
    for alike in groups.values():
        points = []
        for entry in sorted(alike, key=lambda entry: float(str(entry.axes[axis]))):
            status = entry_status(entry, over, what, None, known.states, known.results)
            if status.value is not None and math.isfinite(status.value):
                points.append((float(str(entry.axes[axis])), status.value))
            elif status.state != "diverged":
                missing.append(entry.id)
        if points:
            runs.append(CellCurve(alike[0], over, tuple(points), method_axes=(axis,)))
    return runs, missing


def _best(series: Series, axis: str, what: Metric) -> Line | None:
    """Return the mark of the best mean of a series."""
    sign = -1 if what.better == "higher" else 1
    means = [(x, at.mean) for x, at in series.mean()]
    if not means:
        return None
    x, y = min(means, key=lambda point: sign * point[1])
    words = f"{series.title}: best {what.shown(y)} at {axis} {x:g}"
    return Line(words, ((x, y),), (), series.colour, series.style, series.shade, form="best", in_legend=False)
