"""The kinds of stage and the metrics that there are: the engine's, and those of this package's extensions."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from functools import cache
from typing import Any

from gpas_cli.errors import GpasError
from gpas_cli.extension import extensions, head, missing, owner
from gpas_cli.spec.cell import NETWORK, Cell
from gpas_cli.spec.downstream import task_title
from gpas_cli.spec.stage import STAGE_KINDS, Metric, StageKind


@cache
def stage_kinds() -> dict[str, StageKind]:
    """Return the kinds of this package by name, in the order in which a cell's stages are run, trainings first."""
    found = dict(STAGE_KINDS)
    places = (place for one in extensions("settings").values() for place in one.stages.values())
    for kind in map(pkgutil.resolve_name, places):
        names = list(found)
        later = {name: found.pop(name) for name in (names[names.index(kind.before) :] if kind.before else ())}
        found |= {kind.name: kind, **later}
    return found


def of_cell(cell: Cell) -> tuple[str, ...]:
    """Return the extensions that a cell uses, sorted: of this package by name, of others by their package."""
    origins = (cell.model.norm.origin, *(stage.kind.origin for stage in cell.later))
    found = {origin.name for origin in origins if origin and not origin.source}
    names = {name for stage in cell.later for name in (stage.kind.name, *stage.parameters.uses())}
    names |= {NETWORK} if cell.network or cell.start else set()
    owners = filter(None, (head(owner(name)) for name in names))
    return tuple(sorted(found.union(*((one.name, *one.requires) for one in owners))))


@cache
def part(name: str) -> Any:
    """Return a part that an extension brings (`Extension.parts`). Raises GpasError if the extension is missing."""
    if reason := missing(name):
        raise GpasError(reason)
    one = head(owner(name))
    assert one is not None
    return pkgutil.resolve_name(one.parts[name])


@cache
def metrics() -> dict[str, Metric]:
    """Return the metrics of this package by name."""
    return {metric.name: metric for kind in stage_kinds().values() for metric in kind.metrics}


@cache
def measured_columns() -> tuple[str, ...]:
    """Return the names of a table's columns that are no axis of its grid, but what a later stage measures."""
    return tuple(dict.fromkeys(kind.columns for kind in stage_kinds().values() if kind.columns))


def column_title(label: str) -> str:
    """Return the title of a column of a table: of a task, a text or what else a stage measures."""
    titles = (kind.titles[label] for kind in stage_kinds().values() if label in kind.titles)
    return next(titles, task_title(label))


def main_result(results: Mapping[str, float]) -> tuple[Metric, float] | None:
    """Return the number that stands for the result of a stage: a main metric of its kind, and its value.

    For a metric by task it is the last value: an average, if there is one. None if no main metric is reported.
    """
    for kind in stage_kinds().values():
        for main in (kind.metrics[0], *(metric for metric in kind.metrics if metric.main)):
            values = [value for name, value in results.items() if name.partition("/")[0] == main.name]
            if values:
                return main, float(values[-1])
    return None
