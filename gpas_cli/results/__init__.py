"""Results as pandas frames, for notebooks and scripts.

    from gpas_cli import results

    results.cells("table2")                        one row for each cell: its labels, its state, where it ran
    results.metrics("table2")                      one row for each final number of a stage
    results.curves("loss", "table2")               one row for each point of a curve over updates
    results.layer_curves("gate", "table2")         one row for each point and layer
    results.table("table2")                        one row for each cell of the table: mean, interval, published numbers
    results.claims()                               one row for each part of a claim: effect, interval, verdict;
                                                   of the extension claims

    project = results.open("~/experiments/gpas")   the same functions for another project

`of` selects cells: the name of a grid (by default, the default grid), the name of a cell, a list of names, or a frame
whose columns `grid` and `cell` name them, such as a part of `results.cells()`. `where` narrows it like --where:
"gate=gpas" or ["gate=gpas", "seed!=2"].

Frames are tidy: a row is one observation, and each axis of the grids is a column. New results are ingested first, as by
every `gpas` command; nothing else is written.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial, wraps
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, TypeAlias

from gpas_cli import extension
from gpas_cli.errors import GpasError, nearest
from gpas_cli.grid.declared import Entry, Experiments
from gpas_cli.grid.expand import expand
from gpas_cli.grid.load import load
from gpas_cli.grid.select import find_preferring, select
from gpas_cli.project import CONFIG_NAME, Project
from gpas_cli.report import query
from gpas_cli.report.checks import report_problems
from gpas_cli.report.recorded import PARTIAL, Recorded, Result, recorded, stage_keys
from gpas_cli.report.tables.entry_status import is_supported
from gpas_cli.report.tables.grid_table import build
from gpas_cli.report.tables.render import numbers
from gpas_cli.report.tables.table import Table
from gpas_cli.structure import Frozen

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Cells", "Results", "cells", "curves", "layer_curves", "metrics", "open", "table"]

Cells: TypeAlias = "str | Iterable[str] | pd.DataFrame | None"
_Where: TypeAlias = str | Sequence[str]

_OF_TABLE = ("metric", "mean", "std", "n", "wanted", "status", "delta", "delta_low", "delta_high", "p")
# Columns of `cells` beside the labels: facts of the result of the cell's last stage that has one.
_FACTS = ("attempt", "outcome", "host", "device", "gpu", "code", "git_commit", "git_dirty", "parameters", "last_step")
_TEXT = ("fingerprint", "validation_fingerprint", "ended", "directory", "cause")


class Results(Frozen):
    """The results of `project`. Methods return frames whose first columns are grid, cell, key and every axis."""

    project: Project

    @cached_property
    def experiments(self) -> Experiments:
        """The declared grids. Raises InvalidExperiments with every problem of the file."""
        return load(self.project.config, check=report_problems)

    @property
    def grids(self) -> list[str]:
        """The names of the declared grids."""
        return list(self.experiments.grids)

    def cells(self, of: Cells = None, where: _Where = ()) -> pd.DataFrame:
        """Return one row for each cell: its labels, its state, and the facts of its last result.

        state: as in `gpas status`, of the first stage without a result. attempt to cause: of the last stage that has a
        result; `ended` is a time in UTC.
        """
        import pandas as pd

        with self.recorded(of, where) as known:
            rows = [{**_labels(entry), "state": _state(entry, known), **_facts(entry, known)}
                    for entry in known.entries]  # fmt: skip
        frame = _frame(rows, known, ("state", *_FACTS, *_TEXT))
        counts = dict.fromkeys(("attempt", "parameters", "last_step"), "Int64")  # they may be missing
        return frame.assign(ended=pd.to_datetime(frame["ended"].astype(float), unit="s", utc=True)).astype(counts)

    def metrics(self, of: Cells = None, where: _Where = ()) -> pd.DataFrame:
        """Return one row for each final number of a stage: stage, metric, value, and its standard error if it has one.

        metric: as in `gpas why`, such as "perplexity" or "accuracy/piqa". Results that the run directories do not
        confirm are left out, as in tables.
        """
        with self.recorded(of, where) as known:
            rows = [
                {**_labels(entry), "stage": result.stage, "metric": name, "value": value,
                 "stderr": _number(result.stderr(name))}
                for entry in known.entries for result in _results(entry, known)
                for name, value in sorted(result.metrics.items())
            ]  # fmt: skip
        return _frame(rows, known, ("stage", "metric", "value", "stderr"))

    def curves(self, name: str = "loss", of: Cells = None, where: _Where = ()) -> pd.DataFrame:
        """Return one row for each point of a curve of the training: step and value.

        name: "loss", "lr", "grad_norm", "tokens_per_second", "eval_loss", "eval_perplexity", ... Where several
        attempts have an update, the latest one counts. Raises GpasError with the nearest name if no cell has the curve.
        """
        with self.recorded(of, where) as known:
            found = query.curves(known.engine, stage_keys(known.entries), name) if known.engine else {}
            points = {key: [{"step": step, "value": value} for step, value in curve] for key, curve in found.items()}
            return _curve_frame(name, points, known, ("step", "value"))

    def layer_curves(self, name: str = "activation_variance", of: Cells = None, where: _Where = ()) -> pd.DataFrame:
        """Return one row for each point and layer of a curve by layer: step, layer and value.

        layer: from 1; the number after the last layer is the final norm. name: "activation_variance", "gate",
        "grad_norm", "weight_norm", ... Raises GpasError with the nearest name if no cell has such a curve.
        """
        with self.recorded(of, where) as known:
            found = query.layer_curves(known.engine, stage_keys(known.entries), name) if known.engine else {}
            points = {
                key: [{"step": step, "layer": layer + 1, "value": value}
                      for step, values in curve for layer, value in sorted(values.items())]
                for key, curve in found.items()
            }  # fmt: skip
            return _curve_frame(name, points, known, ("step", "layer", "value"))

    def table(self, grid: str = "", where: _Where = ()) -> pd.DataFrame:
        """Return one row for each cell of a grid's table: mean and std over seeds, the difference from the base.

        n, wanted: the seeds with a number, and all. delta: the mean paired difference, with its 95 % interval from
        delta_low to delta_high and the p of the paired t test. published_SOURCE: the number that the source prints.
        """
        name = grid or self.experiments.default
        if name not in self.grids:
            raise GpasError(f"no grid '{name}' in {self.project.config.name}; {nearest(name, self.grids)}")
        with self.recorded(name, where) as known:
            spec = self.experiments.grids[name].table_spec
            made = build(known.entries, known.states, known.results, spec)
        return _table_frame(made)

    def __getattr__(self, name: str) -> Callable[..., pd.DataFrame]:
        """Return a method that an extension adds, such as `claims`."""
        return partial(_added(name), self)

    @contextmanager
    def recorded(self, of: Cells, where: _Where) -> Iterator[Recorded]:
        """Yield what is recorded of the selected cells. Results that cannot be ingested are announced by a warning."""
        chosen = select(self._selected(of), [where] if isinstance(where, str) else list(where))
        with recorded(self.project, chosen) as known:
            if known.problem:
                warnings.warn(known.problem, stacklevel=4)
            yield known

    def _selected(self, of: Cells) -> list[Entry]:
        if of is None or (isinstance(of, str) and of in self.experiments.grids):
            return expand(self.experiments, [of] if isinstance(of, str) else None)
        names = [of] if isinstance(of, str) else _names(of)
        declared = expand(self.experiments, self.experiments.available)
        found: dict[str, Entry] = {}
        for name in names:
            own = [entry for entry in declared if entry.grid == name]
            if name not in self.experiments.grids:
                own = [find_preferring(self.experiments.default, declared, name)]
            found |= {entry.id: entry for entry in own}
        return list(found.values())


def _names(of: Any) -> list[str]:
    """Return the cells named by a frame's columns grid and cell, or by a list."""
    if hasattr(of, "columns"):
        missing = [name for name in ("grid", "cell") if name not in of.columns]
        if missing:
            raise GpasError(f"a frame selects cells by its columns grid and cell; it has no {' and '.join(missing)}")
        return [f"{grid}/{cell}" for grid, cell in zip(of["grid"], of["cell"], strict=True)]
    return list(of)


def _labels(entry: Entry) -> dict[str, Any]:
    return {"grid": entry.grid, "cell": entry.name, "key": entry.key, **{_axis(axis): label for axis, label in
            entry.axes.items()}}  # fmt: skip


def _axis(name: str) -> str:
    """Return the column of an axis; one whose name a frame uses otherwise gets a prefix."""
    own = {"grid", "cell", "key", "state", "stage", "metric", "value", "stderr", "step", "layer", *_FACTS, *_TEXT}
    return f"axis_{name}" if name in own else name


def _state(entry: Entry, known: Recorded) -> str:
    states = [known.states.get(stage.key, ("missing", None))[0] for stage in entry.cell.stages]
    return next((state for state in states if state != "done"), "done")


def _results(entry: Entry, known: Recorded) -> Iterator[Result]:
    for stage in entry.cell.stages:
        result = known.results.get(stage.key)
        if result is not None and (result.outcome == PARTIAL or is_supported(result, known.states)):
            yield result


def _facts(entry: Entry, known: Recorded) -> dict[str, Any]:
    last = next(reversed(list(_results(entry, known))), None)
    if last is None:
        return {}
    return {name: getattr(last, "number" if name == "attempt" else name) for name in (*_FACTS, *_TEXT)}


def _frame(rows: Sequence[Mapping[str, Any]], known: Recorded, columns: Sequence[str]) -> pd.DataFrame:
    """Return a frame with the columns of the labels and `columns`, also if there are no rows."""
    import pandas as pd

    axes = dict.fromkeys(_axis(axis) for entry in known.entries for axis in entry.axes)
    return pd.DataFrame(list(rows), columns=["grid", "cell", "key", *axes, *columns])


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _curve_frame(
    name: str, points: Mapping[str, Sequence[Mapping[str, float]]], known: Recorded, columns: Sequence[str]
) -> pd.DataFrame:
    """Return one row for each point, by stage key. Raises GpasError if only other curves are recorded."""
    rows = [
        {**_labels(entry), "stage": stage.kind, **point}
        for entry in known.entries for stage in entry.cell.stages for point in points.get(stage.key, ())
    ]  # fmt: skip
    if not rows and known.engine is not None:
        over_updates, by_layer = query.curve_names(known.engine, stage_keys(known.entries))
        others, where = (by_layer, "by layer ") if "layer" in columns else (over_updates, "")
        if others and name not in others:
            raise GpasError(f"no curve '{name}' {where}is recorded; {nearest(name, others)}")
    return _frame(rows, known, ("stage", *columns))


def _table_frame(table: Table) -> pd.DataFrame:
    import pandas as pd

    rows = []
    for row in table.rows:
        labels = dict(zip(table.spec.rows, row.key, strict=True))
        for column, cell in zip(table.columns, row.cells, strict=True):
            if cell.statuses:
                names = {"row": row.full_title, **labels, table.spec.columns: column.label}
                ours = numbers(column, cell)
                values = {name: ours[name] for name in _OF_TABLE}
                printed = ((source, cell.printed.get(source)) for source in table.published)
                values |= {f"published_{source}": one and one.value for source, one in printed}
                rows.append(names | {name: math.nan if value is None else value for name, value in values.items()})
    return pd.DataFrame(rows)


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


def _added(name: str) -> Callable[..., pd.DataFrame]:
    """Return the function of a data frame that an extension adds. Raises AttributeError if none does."""
    for one in extension.known() if not name.startswith("_") else ():  # as notebooks and copies ask for
        if name in one.frames:
            found: Callable[..., pd.DataFrame] = resolve_name(one.frames[name])
            return found
    raise AttributeError(extension.missing(name, "commands") or f"module '{__name__}' has no attribute '{name}'")


def __getattr__(name: str) -> Callable[..., pd.DataFrame]:
    """Return what an extension adds, such as `claims`, for the project of the current folder."""
    function = _added(name)

    @wraps(function)
    def of_project(*words: Any, **options: Any) -> pd.DataFrame:
        return function(open(), *words, **options)

    return of_project
