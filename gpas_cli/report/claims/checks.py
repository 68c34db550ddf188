"""Check, when experiments.yaml is read, that the numbers and published tables which its claims name exist."""

from __future__ import annotations

from collections.abc import Iterator

from gpas_cli.errors import GpasError, Problem
from gpas_cli.grid.claim import Claim, Comparison
from gpas_cli.grid.declared import Experiments
from gpas_cli.report.claims.measure import feature_fault, stage_of
from gpas_cli.report.papers import published
from gpas_cli.report.tables.table_checks import stages_of
from gpas_cli.spec.stage import PRETRAIN


def claim_problems(experiments: Experiments) -> Iterator[Problem]:
    """Yield the problems of the metrics, curves and published tables that claims name, with their places."""
    for sizes in experiments.claims.values():
        for claim in sizes:
            for comparison in claim.comparisons:
                yield from _problems(experiments, claim, comparison)


def _problems(experiments: Experiments, claim: Claim, comparison: Comparison) -> Iterator[Problem]:
    kinds = list(experiments.catalogue.stage_kinds.values())
    if fault := feature_fault(comparison.value, kinds):
        yield _problem(claim, comparison, fault, "value")
        return
    needed = stage_of(comparison.value, kinds)
    for name in comparison.grids:
        grid = experiments.grids.get(name)
        if grid and needed != PRETRAIN and needed not in stages_of(experiments.grids, grid):
            message = f"'{comparison.value.title}' comes from the stage '{needed}', which no cell of '{name}' has"
            yield _problem(claim, comparison, message, "value")
    for source, name in comparison.published.items():
        try:
            published(source, name)
        except GpasError as error:
            yield _problem(claim, comparison, str(error), "published", source)


def _problem(claim: Claim, comparison: Comparison, message: str, *path: str) -> Problem:
    mark = comparison.marks.get(path[0], comparison.mark)
    return Problem(("claims", claim.name, *path), message, str(mark))
