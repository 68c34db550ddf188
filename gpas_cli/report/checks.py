"""Check, when experiments.yaml is read, what `gpas_cli.grid` does not know: metrics, curves and published tables."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from pkgutil import resolve_name

from gpas_cli.errors import GpasError, InvalidExperiments, Problem
from gpas_cli.extension import known
from gpas_cli.grid.declared import Experiments, Grid, TableSpec, sections_of
from gpas_cli.grid.packs import OF_PACKAGE, Pack
from gpas_cli.grid.settings import children, unnamed
from gpas_cli.report.papers import published
from gpas_cli.report.quantities import metric
from gpas_cli.report.shapes import checked
from gpas_cli.spec.objective import CAUSAL, OBJECTIVES, Objective, parse_objective
from gpas_cli.spec.stage import CONVERGENCE, PRETRAIN, StageKind
from gpas_cli.words import listed

_COMPARED_SCORES = ("loss", "perplexity")  # that every objective has, each under another name
_NEXT_TOKEN_SCORES = (*_COMPARED_SCORES, "loss_reference", "perplexity_reference", "loss_batch_mean", "bits_per_byte")


def report_problems(experiments: Experiments) -> Iterator[Problem]:
    """Yield the problems of tables and claims, and of packs that are not of this package, with their places.

    Tests check the tables of this package's grids; to read the numbers that they name takes a tenth of `gpas table`.
    """
    packs = [pack for pack in experiments.included if pack.folder.parent != OF_PACKAGE]
    try:
        for pack in packs:
            checked(pack, "numbers")
        places = [place for one in known() for place in one.problems]
        others = [problem for place in places for problem in resolve_name(place)(experiments, packs)]
        for pack in packs:
            yield from _shared_names(pack, experiments)
    except InvalidExperiments as error:
        yield from error.problems
        return  # the tables of grids name the packs' numbers
    grids = [experiments.grids[name] for name in experiments.available]
    for grid in (one for one in grids if Path(one.mark.file).absolute().parent.parent != OF_PACKAGE):
        yield from _unreported(experiments.grids, grid)
        if grid.table is not None:
            kinds = experiments.catalogue.stage_kinds.values()
            yield from _problems(experiments.grids, grid, grid.table, kinds)
    yield from others


def _shared_names(pack: Pack, experiments: Experiments) -> Iterator[Problem]:
    """Yield the names of what packs declare, such as claims and figures, that another pack has as well."""
    checks = {what: resolve_name(place) for one in known() for what, place in one.checks.items()}
    for other in (one for one in experiments.packs.values() if one != pack):
        for what, named in checks.items():
            for name in sorted(named(pack).keys() & named(other).keys()):
                message = f"{other.name} has it as well; include one of them as `{{pack: ..., as: NAME}}`"
                yield Problem((what, name), message, str(pack.document(what)))


def _problems(grids: Mapping[str, Grid], grid: Grid, table: TableSpec, kinds: Iterable[StageKind]) -> Iterator[Problem]:
    try:
        what = metric(table.value, kinds)
    except GpasError as error:
        yield _problem(grid, str(error), "value")
        return
    if what.name in CONVERGENCE:
        message = f"is computed on request: gpas table {grid.name} --value {what.name}"
        yield _problem(grid, message, "value")
    if what.stage != PRETRAIN and what.stage not in sections_of(grids, grid):
        message = f"'{what.name}' is a result of the stage '{what.stage}', which no cell of this grid has"
        yield _problem(grid, message, "value")
    for pack, name in table.published.items():
        try:
            printed = published(pack, name)
        except GpasError as error:
            yield _problem(grid, str(error), "published", pack.name)
            continue
        if printed.metric != what.family:
            message = f"'{printed.name}' prints {printed.metric}, but the table shows {what.family}"
            yield _problem(grid, message, "published", pack.name)


def _unreported(grids: Mapping[str, Grid], grid: Grid) -> Iterator[Problem]:
    """Yield that no cell of the grid reports the validation score that its table shows."""
    value = grid.table_spec.value
    scored_as, _, score = value.partition("_")
    words = {objective.scored_as for objective in OBJECTIVES.values()}
    if scored_as not in words or score not in _COMPARED_SCORES:
        scored_as = ""
        if value not in _NEXT_TOKEN_SCORES:
            return
    objectives = _objectives_of(grids, grid)
    reported = {objective.scored_as for objective in objectives}
    if scored_as not in reported:
        kinds = listed(sorted({objective.kind for objective in objectives}), 3)
        names = sorted(f"{word}_{name}".removeprefix("_") for word in reported for name in _COMPARED_SCORES)
        message = f"no cell reports '{value}': cells of objective {kinds} report {listed(names, 6)}"
        yield _problem(grid, message, "value")


def _objectives_of(grids: Mapping[str, Grid], grid: Grid) -> set[Objective]:
    """Return the known objectives, without changes of their settings, of the grid's cells and of its included grids."""
    found = set().union(*(_objectives_of(grids, grids[include.grid]) for include in grid.include))
    if not grid.has_own_cells:
        return found
    overrides = [override.settings for override in grid.override]
    nodes = [children(node)["objective"] for node in (grid.base, *overrides) if "objective" in children(node)]
    for axis in grid.all_axes:
        for name, values in zip(axis.names, zip(*axis.points, strict=True), strict=True):
            nodes += [value.setting for value in values if name == "objective"]
    own = [parse_objective(unnamed(node).plain(), []) for node in nodes]
    return found | {objective for objective in own if objective is not None} | (set() if nodes else {CAUSAL})


def _problem(grid: Grid, message: str, *path: str) -> Problem:
    node = grid.table_node
    for part in path:
        node = children(node).get(part, node) if node else None
    return Problem(("grids", grid.name, "table", *path), message, str(node.mark if node else grid.mark))
