"""What is wrong with claims when experiments.yaml is read: metrics, curves and published tables that they name."""

from collections.abc import Iterator, Sequence

from gpas_cli.errors import GpasError, Problem
from gpas_cli.extensions.claims.declared import paper_claims
from gpas_cli.grid.declared import Claim, Comparison, Experiments, sections_of
from gpas_cli.grid.packs import Pack
from gpas_cli.report.papers import published
from gpas_cli.report.quantities import feature_fault, state_metric
from gpas_cli.spec.stage import CONVERGENCE, PRETRAIN


def problems(experiments: Experiments, packs: Sequence[Pack]) -> Iterator[Problem]:
    """Yield the problems of the claims of a file and of packs. Raises InvalidExperiments for a file of a pack."""
    claims = dict(experiments.claims)
    for pack in packs:
        claims |= paper_claims(pack, experiments)
    for claim in (claim for sizes in claims.values() for claim in sizes):
        for comparison in claim.comparisons:
            yield from _comparison_problems(experiments, claim, comparison)


def _comparison_problems(experiments: Experiments, claim: Claim, comparison: Comparison) -> Iterator[Problem]:
    kinds = list(experiments.catalogue.stage_kinds.values())
    if fault := feature_fault(comparison.value, kinds):
        yield _claim_problem(claim, comparison, fault, "value")
        return
    if comparison.value.metric in CONVERGENCE and not comparison.against:
        message = f"'{comparison.value.metric}' compares a cell with its base; add `against`"
        yield _claim_problem(claim, comparison, message, "value")
    needed = state_metric(comparison.value, kinds).stage
    for name in comparison.grids:
        grid = experiments.grids.get(name)
        if grid and needed != PRETRAIN and needed not in sections_of(experiments.grids, grid):
            message = f"'{comparison.value.title}' comes from the stage '{needed}', which no cell of '{name}' has"
            yield _claim_problem(claim, comparison, message, "value")
    for pack, name in comparison.published.items():
        try:
            published(pack, name)
        except GpasError as error:
            yield _claim_problem(claim, comparison, str(error), "published", pack.name)


def _claim_problem(claim: Claim, comparison: Comparison, message: str, *path: str) -> Problem:
    mark = comparison.marks.get(path[0], comparison.mark)
    return Problem(("claims", claim.name, *path), message, str(mark))
