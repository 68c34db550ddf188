"""How soon a network reaches the final training loss of its base: the plot of smoothed losses with the update at which
each method gets there.
"""

import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated

from gpas_cli.extensions.curves.series import CellCurve, Series, make_series
from gpas_cli.extensions.figures.figure import Figure, Line
from gpas_cli.grid.document import Label
from gpas_cli.report.convergence import Losses, smooth_losses, with_convergence
from gpas_cli.report.labels import has_labels
from gpas_cli.report.recorded import Recorded
from gpas_cli.statistics.arrivals import Arrival, median, median_interval
from gpas_cli.structure import Frozen

_AXIS = "smoothed training loss (nats per token)"
_FROM = 0.2  # of the updates: before, the loss falls so much that no difference can be seen


class Speed(Frozen):
    """How soon a method reaches the final training loss of its base, run by run."""

    base: str
    method: str
    cells: tuple[str, ...]
    speedups: Annotated[tuple[float, ...], "updates of the base over the run's; 0: never"]
    updates: Annotated[tuple[float | None, ...], "null: never"]

    @property
    def there(self) -> list[float]:
        """The updates of the runs that get there."""
        return [update for update in self.updates if update is not None]

    @property
    def factor(self) -> str:
        """The median speed-up and its 95 % interval: "1.30 (1.22 to 1.35)"."""
        runs = [speed for speed in self.speedups if isinstance(speed, Arrival)]
        low, high = median_interval(runs) or (0.0, 0.0)
        return f"{median(runs):.2f}{f' ({low:.2f} to {high:.2f})' if low < high else ''}"

    @property
    def words(self) -> str:
        """What the runs show: "Pre-LN + GPAS: 1.30 (1.22 to 1.35) times as fast as Pre-LN, at update 463"."""
        runs = len(self.updates)
        if not self.there:
            return f"{self.method}: does not reach the final loss of {self.base}"
        few = f" ({len(self.there)} of {runs} runs)" if len(self.there) < runs else ""
        at = f"{statistics.median(self.there):,.0f}{few}"
        return f"{self.method}: {self.factor} times as fast as {self.base}, at update {at}"


def convergence(
    known: Recorded, against: Mapping[str, Label], over: str, title: str, start: float = 0.0
) -> tuple[list[Figure], list[Speed], list[str]]:
    """Return a plot for each base that methods are compared with, their speeds, and the ids of cells without a curve.

    against: the labels of a base. over: the axis that is averaged. start: the first update, by default a fifth of all.
    Raises GpasError, beginning with `title`, without `against`.
    """
    losses = smooth_losses(known)
    found = with_convergence(known, lambda entry: has_labels(entry, against), against, title, losses)
    runs = []
    for entry in {entry.id: entry for entry in known.entries}.values():
        if (key := entry.cell.stages[0].key) in losses:
            first = start or _FROM * entry.cell.optim.updates
            points = tuple((float(step), loss) for step, loss in losses[key] if step >= first)
            runs.append(CellCurve(entry, over, points, stage=key))
    groups: dict[Hashable, list[Series]] = {}
    for series in make_series(runs):
        entry = series.runs[0].entry
        groups.setdefault((entry.grid, entry.labels_without(*against, over)), []).append(series)
    made = [own for alike in groups.values() if (own := _panel(alike, against, losses, found))]
    speeds = [speed for _, own in made for speed in own]
    figures = [figure for figure, _ in made]
    if len(figures) == 1:
        figures = [replace(figures[0], title=title)]
    missing = [entry.id for entry in known.entries if entry.cell.stages[0].key not in losses]
    return figures, speeds, list(dict.fromkeys(missing))


def _panel(
    series: Sequence[Series], against: Mapping[str, Label], losses: Losses, found: Recorded
) -> tuple[Figure, list[Speed]] | None:
    """Return the plot of a base and the methods beside it, with their speeds; None if one of them is missing."""
    bases = [one for one in series if has_labels(one.runs[0].entry, against)]
    if not bases or len(bases) == len(series):
        return None
    base = bases[0]
    level = statistics.fmean(losses[run.stage][-1][1] for run in base.runs)
    speeds: list[Speed] = []
    stars: list[Line] = []
    drawn = [base]
    for one in (one for one in series if one not in bases):
        known = {run.entry.id: found.results[run.stage].metrics for run in one.runs}
        factors = {name: own for name, metrics in known.items() if isinstance(own := metrics.get("speedup"), Arrival)}
        updates = (known[name]["updates_to"] for name in factors)
        reached = tuple(update if math.isfinite(update) else None for update in updates)
        speed = Speed(base.title, one.title, tuple(factors), tuple(factors.values()), reached)
        if factors:
            speeds.append(speed)
        drawn.append(replace(one, title=f"{one.title}, speed-up {speed.factor}") if speed.there else one)
        if speed.there:
            points = ((statistics.median(speed.there), level),)
            star = Line(speed.words, points, (), one.colour, one.style, one.shade, form="best", in_legend=False)
            stars.append(star)
    note = "line: the final loss of the base; stars: where a method reaches it"
    return Figure(base.title, "update", _AXIS, tuple(drawn), lines=tuple(stars), level=level, note=note), speeds
