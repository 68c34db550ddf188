"""Check, when experiments.yaml is read, what `gpas_cli.grid` does not know: metrics, curves and published tables."""

from __future__ import annotations

from collections.abc import Iterator

from gpas_cli.errors import Problem
from gpas_cli.grid.declared import Experiments
from gpas_cli.report.claims.declared import claim_problems
from gpas_cli.report.tables.table_checks import table_problems


def report_problems(experiments: Experiments) -> Iterator[Problem]:
    """Yield the problems of tables and claims, with their places in the file."""
    yield from table_problems(experiments)
    yield from claim_problems(experiments)
