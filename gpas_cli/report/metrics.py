"""The metrics that a table can show: those that the kinds of stage report, and any other number that is recorded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from gpas_cli.errors import GpasError, nearest
from gpas_cli.report.result import Result
from gpas_cli.spec.stage import STAGE_KINDS, Metric, StageKind

METRICS = {metric.name: metric for kind in STAGE_KINDS.values() for metric in kind.metrics}
_SIGNIFICANT_DIGITS = 4  # of numbers that no kind of stage declares


def metric(name: str, kinds: Iterable[StageKind] = ()) -> Metric:
    """Return the metric called `name`, of a built-in stage or of `kinds`. Raises GpasError with the nearest name."""
    known = _declared(kinds)
    if name not in known:
        raise GpasError(f"unknown metric '{name}'; {nearest(name, known)}")
    return known[name]


def recorded_metric(name: str, kinds: Iterable[StageKind], results: Mapping[str, Result]) -> Metric:
    """Return the metric called `name`: one of `metric`, or any number that `results` have, of which none is better.

    Raises GpasError with the nearest name.
    """
    known = _declared(kinds)
    if name in known:
        return known[name]
    found = [result for result in results.values() if name in result.metrics]
    if not found:
        names = dict.fromkeys([*(n for result in results.values() for n in result.metrics), *known])
        raise GpasError(f"no number '{name}' is recorded; {nearest(name, names)}")
    digits = _digits([result.metrics[name] for result in found])
    return Metric(name, name.replace("_", " "), better="", digits=digits, stage=found[0].stage)


def _declared(kinds: Iterable[StageKind]) -> dict[str, Metric]:
    return {**{own.name: own for kind in kinds for own in kind.metrics}, **METRICS}


def _digits(values: Iterable[float]) -> int:
    """Return the digits after the point that show SIGNIFICANT_DIGITS of the largest value; none for whole numbers."""
    finite = [abs(value) for value in values if math.isfinite(value)]
    largest = max(finite, default=0.0)
    if not largest or all(value == int(value) for value in finite):
        return 0
    return max(0, _SIGNIFICANT_DIGITS - 1 - math.floor(math.log10(largest)))
