"""How soon a network reaches the final training loss of its base: the metrics `updates_to`, `tokens_to`, `speedup`.

Training losses are smoothed by the mean over the last 5 % of the updates, and the crossing is interpolated between the
recorded updates. A network that never gets there has infinitely many updates and a speed-up of 0.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from gpas_cli.errors import GpasError
from gpas_cli.grid.declared import Entry
from gpas_cli.report.recorded import Recorded
from gpas_cli.spec.stage import CONVERGENCE

_WINDOW = 0.05  # of the updates, over which the loss is averaged

Losses = Mapping[str, Sequence[tuple[int, float]]]  # smoothed, by stage key: pairs of an update and a loss


def with_convergence(
    known: Recorded, is_base: Callable[[Entry], bool], axes: Collection[str], where: object, smooth: Losses
) -> Recorded:
    """Return `known` with the metrics of each finished training whose base has finished too.

    is_base: whether a cell can be a base; the base of a cell has the same labels, its seed included, except on `axes`,
    and is compared with itself. smooth: the result of `smooth_losses`. Raises GpasError, beginning with `where`, if
    there are no such axes.
    """
    if not axes:
        raise GpasError(f"{where}: {', '.join(CONVERGENCE)} compare a cell with its base: add `against`")
    bases = {entry.labels_without(*axes): entry.cell.stages[0].key for entry in known.entries if is_base(entry)}
    results = dict(known.results)
    for entry in known.entries:
        base, key = bases.get(entry.labels_without(*axes), ""), entry.cell.stages[0].key
        if key in smooth and base in smooth:
            target = smooth[base][-1][1]
            updates = reached(smooth[key], target)
            own = results[key]
            per_update = own.metrics.get("train_tokens", math.nan) / (own.last_step or math.nan)
            found = (updates, updates * per_update, reached(smooth[base], target) / updates)
            results[key] = replace(own, metrics={**own.metrics, **dict(zip(CONVERGENCE, found, strict=True))})
    return replace(known, results=results)


def smooth_losses(known: Recorded) -> Losses:
    """Return the smoothed training losses of the trainings that are done, by stage key."""
    done = {
        key: result
        for entry in known.entries
        if (result := known.results.get(key := entry.cell.stages[0].key)) and result.outcome == "done"
    }
    if known.engine is None:
        return {}
    from gpas_cli.report.query import curves  # imports SQLAlchemy

    losses = curves(known.engine, done, "loss")
    return {key: smoothed(curve, done[key].last_step or curve[-1][0]) for key, curve in losses.items() if curve}


def smoothed(curve: Sequence[tuple[int, float]], updates: int) -> list[tuple[int, float]]:
    """Return at each recorded update the mean of the values in the window that ends there, from the first whole one."""
    window = max(1.0, _WINDOW * updates)
    found, start, total = [], 0, 0.0
    for i, (step, value) in enumerate(curve):
        total += value
        while curve[start][0] <= step - window:
            total -= curve[start][1]
            start += 1
        if step >= window or i == len(curve) - 1:
            found.append((step, total / (i - start + 1)))
    return found


def reached(curve: Sequence[tuple[int, float]], target: float) -> float:
    """Return the update at which the curve first is at most `target`, infinity if it never is."""
    if curve[0][1] <= target:
        return float(curve[0][0])
    for (before, high), (step, low) in pairwise(curve):
        if low <= target:
            return before + (step - before) * (high - target) / (high - low)
    return math.inf
