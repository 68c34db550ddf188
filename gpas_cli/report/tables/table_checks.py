"""Check, when experiments.yaml is read, that the tables which it declares can be made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from gpas_cli.errors import GpasError, Problem
from gpas_cli.grid.declared import Experiments, Grid, TableSpec
from gpas_cli.grid.settings import children
from gpas_cli.report.metrics import metric
from gpas_cli.report.papers import published
from gpas_cli.spec.stage import PRETRAIN, StageKind


def table_problems(experiments: Experiments) -> Iterator[Problem]:
    """Yield the problems of the metrics and published tables that grids name, with their places in the file."""
    for grid in experiments.grids.values():
        if grid.table is not None:
            kinds = experiments.catalogue.stage_kinds.values()
            yield from _problems(experiments.grids, grid, grid.table, kinds)


def _problems(grids: Mapping[str, Grid], grid: Grid, table: TableSpec, kinds: Iterable[StageKind]) -> Iterator[Problem]:
    try:
        what = metric(table.value, kinds)
    except GpasError as error:
        yield _problem(grid, str(error), "value")
        return
    if what.stage != PRETRAIN and what.stage not in stages_of(grids, grid):
        message = f"'{what.name}' is a result of the stage '{what.stage}', which no cell of this grid has"
        yield _problem(grid, message, "value")
    for source, name in table.published.items():
        try:
            printed = published(source, name)
        except GpasError as error:
            yield _problem(grid, str(error), "published", source)
            continue
        if printed.metric != what.family:
            message = f"'{printed.name}' prints {printed.metric}, and the table shows {what.family}"
            yield _problem(grid, message, "published", source)


def stages_of(grids: Mapping[str, Grid], grid: Grid) -> set[str]:
    """Return the sections that the grid and its included grids set; they include the stages of its cells."""
    settings = [grid.base, *(override.settings for override in grid.override)]
    names = {name for node in settings for name in children(node)}
    names |= {name.partition(".")[0] for axis in grid.all_axes for name in axis.names}
    return names.union(*(stages_of(grids, grids[include.grid]) for include in grid.include))


def _problem(grid: Grid, message: str, *path: str) -> Problem:
    node = grid.table_node
    for part in path:
        node = children(node).get(part, node) if node else None
    return Problem(("grids", grid.name, "table", *path), message, str(node.mark if node else grid.mark))
