"""Mark the best and the second best number of a column."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpas_cli.spec.stage import Metric


def marks(numbers: Sequence[float | None], metric: Metric) -> list[str]:
    """Return "best", "second" or "" for each number of a column; None and nan are not ranked.

    Numbers equal in the displayed digits tie; after a tie for best there is no second. One number alone has no mark,
    and so have all numbers of a metric of which neither lower nor higher is better.
    """
    shown = [None if n is None or math.isnan(n) else round(n, metric.digits) for n in numbers]
    ranked = sorted((n for n in shown if n is not None), reverse=metric.better == "higher")
    if len(ranked) < 2 or not metric.better:
        return [""] * len(shown)
    names = {ranked[1]: "second", ranked[0]: "best"}  # if both are the same number, it is the best
    return ["" if n is None else names.get(n, "") for n in shown]
