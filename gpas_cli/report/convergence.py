"""How soon a network reaches the final training loss of its base: the metrics `updates_to`, `tokens_to`, `speedup`.

Training losses are smoothed by the mean over the last 5 % of the updates, and the crossing is interpolated between the
recorded ones. It is the mean of every one of them: a line of a journal has the mean loss since the last line. A network
that never gets there has infinitely many updates and a speed-up of 0: an `Arrival` after its last update.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from gpas_cli.errors import GpasError
from gpas_cli.grid.declared import Entry
from gpas_cli.report.recorded import Recorded
from gpas_cli.spec.stage import CONVERGENCE
from gpas_cli.statistics.arrivals import Arrival

_WINDOW = 0.05  # of the updates, over which the loss is averaged
_LEAST = 20  # losses in a window: the mean of fewer is noise

Losses = Mapping[str, Sequence[tuple[int, float]]]  # smoothed, by stage key: pairs of an update and a loss


def with_convergence(
    known: Recorded, is_base: Callable[[Entry], bool], axes: Collection[str], where: object, smooth: Losses
) -> Recorded:
    """Return `known` with the metrics of each finished training whose base has finished too.

    is_base: whether a cell can be a base; the base of a cell has the same labels, its seed included, except on `axes`,
    and is compared with itself. smooth: the result of `smooth_losses`. Raises GpasError, beginning with `where`, if
    there are no such axes, or a training is too short for the mean of its losses.
    """
    if not axes:
        raise GpasError(f"{where}: {', '.join(CONVERGENCE)} compare a cell with its base: add `against`")
    if fault := length_fault(known.entries):
        raise GpasError(f"{where}: {fault}")
    bases = {entry.labels_without(*axes): entry.cell.stages[0].key for entry in known.entries if is_base(entry)}
    results = dict(known.results)
    for entry in known.entries:
        base, key = bases.get(entry.labels_without(*axes), ""), entry.cell.stages[0].key
        if key in smooth and base in smooth:
            target = smooth[base][-1][1]
            updates = reached(smooth[key], target)
            arrived = math.isfinite(updates)
            took = updates if arrived else smooth[key][-1][0]
            own = results[key]
            per_update = own.metrics.get("train_tokens", math.nan) / (own.last_step or math.nan)
            found = (
                Arrival(took, arrived=arrived),
                Arrival(took * per_update, arrived=arrived),
                Arrival(took / reached(smooth[base], target), arrived=arrived, speed=True),
            )
            results[key] = replace(own, metrics={**own.metrics, **dict(zip(CONVERGENCE, found, strict=True))})
    return replace(known, results=results)


def length_fault(entries: Iterable[Entry]) -> str:
    """Return why a training is too short for these metrics, "" if none is."""
    for entry in entries:
        if entry.cell.optim.updates * _WINDOW < _LEAST:
            few = f"the mean loss over 5 % of the {entry.cell.optim.updates} updates of {entry.id} is noise"
            return f"{few}; {', '.join(CONVERGENCE)} need trainings of {_LEAST / _WINDOW:.0f} updates or more"
    return ""


def smooth_losses(known: Recorded) -> Losses:
    """Return the smoothed training losses of the trainings that are done, by stage key.

    One with fewer than 20 losses in its windows is left out: a line of an earlier version's journal has the loss of one
    update, and not the mean of those since the last line.
    """
    done = {
        key: result
        for entry in known.entries
        if (result := known.results.get(key := entry.cell.stages[0].key)) and result.outcome == "done"
    }
    if known.engine is None:
        return {}
    from gpas_cli.report.query import curves  # imports SQLAlchemy

    means = curves(known.engine, done, "mean_loss")
    losses = {
        key: [(to, loss, to - since) for (since, _), (to, loss) in pairwise([(0, 0.0), *curve])]
        for key, curve in means.items()
    }
    if earlier := done.keys() - means.keys():
        losses |= {
            key: [(step, loss, 1) for step, loss in curve]
            for key, curve in curves(known.engine, earlier, "loss").items()
        }
    smooth = {key: smoothed(curve, done[key].last_step or curve[-1][0]) for key, curve in losses.items()}
    return {key: curve for key, curve in smooth.items() if curve}


def smoothed(curve: Sequence[tuple[int, float, int]], updates: int) -> list[tuple[int, float]]:
    """Return at each recorded update the mean of the losses in the window that ends there, from the first whole one.

    curve: an update, the mean loss of some updates until then, and their number. Nothing if a window has too few.
    """
    window = max(1.0, _WINDOW * updates)
    found, start, total, losses = [], 0, 0.0, 0
    for step, value, number in curve:
        total += value * number
        losses += number
        while curve[start][0] <= step - window:
            total -= curve[start][1] * curve[start][2]
            losses -= curve[start][2]
            start += 1
        if step >= window and losses >= _LEAST:
            found.append((step, total / losses))
    return found


def reached(curve: Sequence[tuple[int, float]], target: float) -> float:
    """Return the update at which the curve first is at most `target`, infinity if it never is."""
    if curve[0][1] <= target:
        return float(curve[0][0])
    for (before, high), (step, low) in pairwise(curve):
        if low <= target:
            return before + (step - before) * (high - target) / (high - low)
    return math.inf
