"""Results as pandas frames, for notebooks and scripts.

    from gpas_cli import results

    results.cells("table2")                        one row for each cell: its labels, its state, where it ran
    results.metrics("table2")                      one row for each final number of a stage
    results.curves("loss", "table2")               one row for each point of a curve over updates
    results.layer_curves("gate", "table2")         one row for each point and layer
    results.table("table2")                        one row for each cell of the table: mean, interval, published numbers
    results.claims()                               one row for each part of a claim: effect, interval, verdict

    project = results.open("~/experiments/gpas")   the same functions for another project

`of` selects cells: the name of a grid (by default, the default grid), the name of a cell, a list of names, or a frame
whose columns `grid` and `cell` name them, such as a part of `results.cells()`. `where` narrows it like --where:
"gate=gpas" or ["gate=gpas", "seed!=2"].

Frames are tidy: a row is one observation, and each axis of the grids is a column. New results are ingested first, as by
every `gpas` command; nothing else is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpas_cli.project import CONFIG_NAME, Project
from gpas_cli.results.frames import Cells, Results

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Cells", "Results", "cells", "claims", "curves", "layer_curves", "metrics", "open", "table"]


def open(path: str | Path | None = None) -> Results:
    """Return the results of the project in the folder `path`, or of its experiments file; by default, the nearest one.

    Raises GpasError if there is no project.
    """
    if path is None:
        return Results(Project.find())
    given = Path(path).expanduser()
    return Results(Project.find(given / CONFIG_NAME if given.is_dir() else given))


def cells(of: Cells = None, where: str | Sequence[str] = ()) -> pd.DataFrame:
    """Return `Results.cells` of the project of the current folder."""
    return open().cells(of, where)


def metrics(of: Cells = None, where: str | Sequence[str] = ()) -> pd.DataFrame:
    """Return `Results.metrics` of the project of the current folder."""
    return open().metrics(of, where)


def curves(name: str = "loss", of: Cells = None, where: str | Sequence[str] = ()) -> pd.DataFrame:
    """Return `Results.curves` of the project of the current folder."""
    return open().curves(name, of, where)


def layer_curves(name: str = "activation_variance", of: Cells = None, where: str | Sequence[str] = ()) -> pd.DataFrame:
    """Return `Results.layer_curves` of the project of the current folder."""
    return open().layer_curves(name, of, where)


def table(grid: str = "", where: str | Sequence[str] = ()) -> pd.DataFrame:
    """Return `Results.table` of the project of the current folder."""
    return open().table(grid, where)


def claims(*names: str, grids: Sequence[str] = (), toy: bool | None = None) -> pd.DataFrame:
    """Return `Results.claims` of the project of the current folder."""
    return open().claims(*names, grids=grids, toy=toy)
