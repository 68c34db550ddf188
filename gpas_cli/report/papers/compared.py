"""The metric of ours that published numbers are compared with."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from gpas_cli.report.metrics import metric
from gpas_cli.report.papers import PublishedTable
from gpas_cli.spec.stage import StageKind


def compared_value(value: str, tables: Iterable[PublishedTable], kinds: Collection[StageKind] = ()) -> str:
    """Return the metric to show beside the numbers of `tables` in place of the metric `value`.

    It is the one that all of them are `compared_as`: the published code of GPAS computes perplexity_reference. If they
    disagree, or if it comes from another stage than `value`, `value` is returned.
    """
    named = {table.compared_as or value for table in tables}
    if len(named) != 1:
        return value
    only = named.pop()
    return only if metric(only, kinds).stage == metric(value, kinds).stage else value
