"""`gpas figure`: plot curves of a grid."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpas_cli.cli.console import (
    AsJson,
    CellsOrGrids,
    Where,
    cells_or_grids,
    complete_from,
    console,
    entries,
    experiments,
    print_json,
    project,
)
from gpas_cli.report.quantities import BY_LAYER, OVER_UPDATES, QUANTITIES, quantity
from gpas_cli.words import count

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from gpas_cli.grid.entry import Entry
    from gpas_cli.report.figure import Figure
    from gpas_cli.report.quantities import Quantity
    from gpas_cli.report.series import CellCurve, Series

DEFAULT = Path("figure")
WHAT = (
    f"A curve over updates ({', '.join(one.name for one in OVER_UPDATES)}) "
    f"or by layer, at the last recorded update ({', '.join(one.name for one in BY_LAYER)})."
)
Out = Annotated[
    list[Path] | None,
    typer.Option(
        "--out",
        "-o",
        help="The file to write, in the format of its suffix (.pdf, .svg, .png); without a suffix, SVG and PNG. "
        "Repeat for more files. By default figure.svg and figure.png.",
    ),
]
EveryRun = Annotated[
    bool,
    typer.Option("--every-run", help="Draw a line per run instead of the mean and standard deviation over seeds."),
]
Title = Annotated[str | None, typer.Option("--title", help="Title of the plot; by default the grid's title.")]
Size = Annotated[tuple[float, float], typer.Option("--size", help="Width and height in inches.", min=1)]


def figure(
    names: CellsOrGrids = None,
    where: Where = None,
    what: Annotated[str, typer.Option("--what", help=WHAT, autocompletion=complete_from(QUANTITIES))] = "loss",
    out: Out = None,
    every_run: EveryRun = False,
    title: Title = None,
    size: Size = (6.4, 4.0),
    as_json: AsJson = False,
) -> None:
    """Plot curves of a grid's cells: the mean over seeds with a band of one standard deviation.

    Colours distinguish schemes, line styles gates. Triangles mark spikes of the loss and the gradient norm. Importance
    is drawn as bars if there are at most four series, angular_distances as a heat map for each. With --json, prints
    the numbers and writes a file only if -o is given.

    Example: [bold]gpas figure quickstart --what activation_variance -o variance.pdf[/bold]
    """
    from gpas_cli.report.figure import check_formats, save

    drawn = quantity(what)
    paths = [path for asked in out or ([] if as_json else [DEFAULT]) for path in _files(asked)]
    check_formats(paths)
    chosen = cells_or_grids(names, where) if names else entries(names, where)
    runs = _runs(chosen, drawn)
    made = _make(runs, drawn, title if title is not None else _title(chosen), every_run)
    if paths:
        save(made, paths, size)
        console().print(_conclusion(made, paths, chosen, runs), soft_wrap=True)
    if as_json:
        print_json(what=what, files=[str(path) for path in paths], **_as_mapping(made, chosen, runs))


def _files(asked: Path) -> list[Path]:
    """Return the files that one --out names."""
    return [asked] if asked.suffix else [asked.with_name(asked.name + suffix) for suffix in (".svg", ".png")]


def _title(chosen: Sequence[Entry]) -> str:
    """Return the titles of the grids, each once; the name of a grid that is no longer declared."""
    declared = experiments().grids
    titles = (declared[e.grid].title or e.grid if e.grid in declared else e.grid for e in chosen)
    return "; ".join(dict.fromkeys(titles))


def _runs(chosen: Sequence[Entry], drawn: Quantity) -> list[CellCurve]:
    """Return the curves of the cells that have recorded one."""
    from gpas_cli.store.refresh import results_of

    with results_of(project()) as (engine, problem):
        if problem:
            console().print(problem, style="yellow")
        found = [_run(engine, entry, drawn) for entry in chosen]
    return [run for run in found if run.points or run.matrix]


def _run(engine: Engine, entry: Entry, drawn: Quantity) -> CellCurve:
    """Return the curve of the cell's last stage that recorded one; without points if none did."""
    from gpas_cli.report import query
    from gpas_cli.report.series import CellCurve, by_layer, over_updates

    grid = experiments().grids.get(entry.grid)
    table = grid.table if grid else None
    made = CellCurve(entry, table.over if table else "seed", ())
    for key in (stage.key for stage in entry.cell.stages):
        if drawn.by_layer or drawn.per_layer:
            layers = query.layer_curve(engine, key, drawn.recorded_as)
            if layers and drawn.spans:
                made = CellCurve(entry, made.over, (), step=layers[-1][0], matrix=_matrix(engine, entry, key, drawn))
            elif layers and drawn.by_layer:
                step, values = layers[-1]
                points, final = by_layer(entry, values)
                made = CellCurve(entry, made.over, points, final_norm=final, step=step)
            elif layers:
                made = CellCurve(entry, made.over, over_updates(((step, at[0]) for step, at in layers), drawn.scale))
        elif points := over_updates(query.curve(engine, key, drawn.recorded_as), drawn.scale):
            marks = query.curve(engine, key, drawn.spikes) if drawn.spikes else []
            made = CellCurve(entry, made.over, points, over_updates(marks, drawn.scale))
    return made


def _matrix(engine: Engine, entry: Entry, key: str, drawn: Quantity) -> tuple[tuple[float, ...], ...]:
    """Return the last recorded values of a heat map over n = 1, 2, ... layers, by layer."""
    from gpas_cli.report import query

    rows = []
    for n in range(1, entry.cell.model.size.layers + 1):
        layers = query.layer_curve(engine, key, drawn.recorded_over(n))
        rows.append(tuple(value for _, value in sorted(layers[-1][1].items())) if layers else ())
    return tuple(rows)


def _make(runs: Sequence[CellCurve], drawn: Quantity, title: str, every_run: bool) -> Figure:
    from gpas_cli.printable import one_line
    from gpas_cli.report.figure import Figure
    from gpas_cli.report.series import make_series

    layers = max((run.entry.cell.model.size.layers for run in runs), default=0) if drawn.by_layer else 0
    steps = {run.step for run in runs if run.step is not None}
    when = f"at update {max(steps)}" if len(steps) == 1 else "at each run's last update"
    x = f"layer ({when})" if drawn.by_layer else "update"
    series = make_series(runs)
    if drawn.spans:
        return Figure(one_line(title), f"first {x}", "number of layers", series, heat_map=drawn.axis)
    return Figure(one_line(title), x, drawn.axis, series, drawn.log, layers, every_run, drawn.bars)


def _conclusion(made: Figure, paths: Sequence[Path], chosen: Sequence[Entry], runs: Sequence[CellCurve]) -> str:
    """Return what was drawn, and how many cells have no such curve."""
    drawn = count(len(made.series), "map" if made.heat_map else "line")
    words = f"Wrote {' and '.join(str(path) for path in paths)}: {drawn} from {count(len(runs), 'run')}"
    missing = len(chosen) - len(runs)
    return f"{words}; {missing} of {len(chosen)} cells have no such curve yet." if missing else f"{words}."


def _as_mapping(made: Figure, chosen: Sequence[Entry], runs: Sequence[CellCurve]) -> dict[str, Any]:
    """Return the numbers of a figure for `--json`. `over` is the averaged axis; `std` is null for a single run."""
    recorded = {run.entry.id for run in runs}
    return {
        "title": made.title,
        "x": made.x,
        "y": made.y,
        "log": made.log,
        "series": [_series_as_mapping(series) for series in made.series],
        "cells": [run.entry.id for run in runs],
        "missing": [entry.id for entry in chosen if entry.id not in recorded],
    }


def _series_as_mapping(series: Series) -> dict[str, Any]:
    final = series.final_norm()
    return {
        "title": series.title,
        "labels": dict(series.labels),
        "over": series.runs[0].over,
        "points": [{"x": x, **vars(summary)} for x, summary in series.mean()],
        "final_norm": vars(final) if final else None,
        "matrix": series.matrix() or None,
        "runs": [
            {
                "name": run.entry.id,
                "key": run.entry.cell.key,
                "over": run.entry.axes.get(run.over),
                "points": run.points,
                "spikes": run.marks,
                "final_norm": run.final_norm,
            }
            for run in series.runs
        ],
    }
