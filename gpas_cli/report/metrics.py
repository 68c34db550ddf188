"""The metrics that a table can show: those that the kinds of stage report."""

from __future__ import annotations

from collections.abc import Iterable

from gpas_cli.errors import GpasError, nearest
from gpas_cli.spec.stage import STAGE_KINDS, Metric, StageKind

METRICS = {metric.name: metric for kind in STAGE_KINDS.values() for metric in kind.metrics}


def metric(name: str, kinds: Iterable[StageKind] = ()) -> Metric:
    """Return the metric called `name`, of a built-in stage or of `kinds`. Raises GpasError with the nearest name."""
    known = {**{own.name: own for kind in kinds for own in kind.metrics}, **METRICS}
    if name not in known:
        raise GpasError(f"unknown metric '{name}'; {nearest(name, known)}")
    return known[name]
