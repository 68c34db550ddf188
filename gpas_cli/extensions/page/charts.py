"""The interactive figures as plain data: means with their deviations, thinned to what a screen can show; and how much
fits on a page, so that the page of many cells can still be opened and sent."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

from gpas_cli.extensions.curves.series import CellCurve, Selection, Series, curves
from gpas_cli.extensions.figures.figure import Figure, Line, make_figure
from gpas_cli.extensions.figures.paper_figures import declared_figures, make, request
from gpas_cli.grid.declared import Entry, Experiments, TableSpec
from gpas_cli.report.labels import label_title, objective_title
from gpas_cli.report.quantities import quantity
from gpas_cli.report.query import curve_names
from gpas_cli.report.recorded import Recorded, stage_keys
from gpas_cli.structure import Frozen, plain


class Limits(Frozen):
    """Cells with details and the ends of their logs; points of a curve, curves of a plot, cells in a grid's figures."""

    details: int = 2000
    log_lines: int = 30
    log_characters: int = 240  # of a line
    points: int = 200
    curves: int = 40
    drawn_cells: int = 500


FILE = Limits()
SERVED = Limits(details=0)  # the details of a cell are fetched when it is opened


# The quantities that the page offers for each grid, the default first.
KINDS: Mapping[str, Sequence[str]] = {
    "updates": (
        *("loss", "eval_perplexity", "eval_loss", "eval_masked_loss", "eval_denoising_loss"),
        "eval_translation_loss",
        *("total_grad_norm", "loss_scale", "lr", "tokens_per_second", "memory"),
    ),
    "layers": (
        *("activation_variance", "gate", "grad_norm", "weight_norm", "importance", "importance_score"),
        *("angular_distance", "angular_distances", "kurtosis", "max_to_rms", "max_to_median"),
        *("effective_rank", "block_cosine", "block_update", "first_token_share"),
        *("attention_ks", "feed_forward_ks", "attention_excess_kurtosis", "feed_forward_excess_kurtosis"),
    ),
}


def grid_charts(known: Recorded, entries: Sequence[Entry], spec: TableSpec, limits: Limits) -> Iterator[dict[str, Any]]:
    """Yield the plots of a grid: each quantity that was recorded, a panel for each column of its table.

    Losses of different objectives have separate panels.
    """
    drawn = entries[: limits.drawn_cells]
    recorded: set[str] = set()
    if known.engine is not None:
        recorded = recorded.union(*curve_names(known.engine, stage_keys(drawn)))
    for kind, names in KINDS.items():
        for selection in (Selection(one) for one in map(quantity, names) if one.recorded_as in recorded):
            runs = curves(known.engine, drawn, selection, lambda entry: spec.over)
            for panel, own in _panels(runs, spec, apart=selection.quantity.of_targets):
                made = chart(make_figure(own, selection, panel), limits)
                yield {"kind": kind, "what": selection.quantity.name, "panel": panel, "chart": made}


def _panels(runs: Sequence[CellCurve], spec: TableSpec, *, apart: bool) -> Iterator[tuple[str, list[CellCurve]]]:
    """Yield the curves of each label of the table's column axis; `apart`: curves of different objectives separately."""
    several = apart and len({run.entry.cell.objective for run in runs}) > 1
    found: dict[str, list[CellCurve]] = {}
    for run in runs:
        title = label_title(spec.columns, run.entry.axes.get(spec.columns), {})
        if several and spec.columns != "objective":
            title = ", ".join(filter(None, (title, objective_title(run.entry))))
        found.setdefault(title, []).append(run)
    yield from found.items()


def paper_charts(
    experiments: Experiments, known: Recorded, grids: Sequence[str], limits: Limits
) -> Iterator[dict[str, Any]]:
    """Yield the figures of the papers that the cells of these grids have recorded, at the papers' size or a toy's."""
    for spec in declared_figures(experiments.packs).values():
        for grid in (spec.grid, spec.toy):
            if grid in grids:
                made = make(request(spec, experiments, grid), known)
                if made.panels:
                    yield {
                        "name": f"{made.name}-{made.grid}",
                        "heading": made.heading,
                        "missing": len(made.missing),
                        "command": made.command,
                        "panels": [chart(panel, limits) for panel in made.panels],
                    }


def chart(figure: Figure, limits: Limits) -> dict[str, Any]:
    """Return one plot as plain data; of a heat map, a matrix for each series."""
    drawn = figure.drawn[: limits.curves]
    return {
        **plain(figure),
        "left_out": len(figure.drawn) - len(drawn),
        "series": [_line(one, limits) if isinstance(one, Line) else _series(one, figure, limits) for one in drawn],
    }


def _series(series: Series, figure: Figure, limits: Limits) -> dict[str, Any]:
    if figure.heat_map:  # the rows from the lowest, with at most so many columns
        columns = series.columns()
        every = max(1, -(-len(columns) // limits.points))
        rows = [[_rounded(value) for value in row[::every]] for row in series.matrix()]
        return {**_look(series), "runs": len(series.runs), "columns": columns[::every], "rows": rows}
    means = [(x, summary.mean, summary.std or 0.0) for x, summary in series.mean()]
    final = series.final_norm()
    return {
        **_look(series),
        "runs": len(series.runs),
        "points": [_point(*point) for point in thinned(means, limits.points)],
        "tails": [[_point(*point) for point in thinned(tail, limits.points)] for tail in series.tails()],
        "marks": [_point(*mark) for run in series.runs for mark in run.marks],
        "final": _rounded(final.mean) if final else None,
    }


def _line(line: Line, limits: Limits) -> dict[str, Any]:
    """Return a line that no run has recorded; its band is [x, low, high]."""
    return {
        **_look(line),
        "points": [_point(*point) for point in thinned(line.points, limits.points)],
        "band": [[_rounded(value) for value in part] for part in thinned(line.band, limits.points)],
        "form": line.form,
    }


def _look(one: Series | Line) -> dict[str, Any]:
    """Return the look, and what only the curves of runs have."""
    runs: dict[str, Any] = {"runs": 0, "tails": [], "marks": [], "final": None}
    return {"title": one.title, "colour": one.colour, "style": one.style, "shade": one.shade, **runs}


def _point(x: float, y: float, std: float = 0.0) -> list[float]:
    """Return [x, y], or [x, y, std] if there is a deviation."""
    point = [int(x) if x == int(x) else _rounded(x), _rounded(y)]
    return [*point, _rounded(std)] if std else point


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


_Point = TypeVar("_Point", bound=tuple[float, ...])


def thinned(points: Sequence[_Point], most: int) -> list[_Point]:
    """Return at most `most` points (x, y, ...) of a curve: the first, the last, and those that shape it.

    Each stretch of x keeps the point that spans the largest triangle with the kept point before it and the mean
    of the next stretch (largest triangle three buckets, Steinarsson 2013).
    """
    if len(points) <= most or most < 3:
        return list(points)
    kept = [points[0]]
    bounds = [1 + (len(points) - 2) * i // (most - 2) for i in range(most - 1)]
    for number, (start, end) in enumerate(pairwise(bounds)):
        after = points[end : bounds[number + 2]] if number + 2 < len(bounds) else points[-1:]
        ahead = [sum(point[i] for point in after) / len(after) for i in (0, 1)]
        (ax, ay), (cx, cy) = kept[-1][:2], ahead
        # Twice the area of a triangle.
        kept.append(max(points[start:end], key=lambda b: abs((b[0] - ax) * (cy - ay) - (cx - ax) * (b[1] - ay))))
    return [*kept, points[-1]]
