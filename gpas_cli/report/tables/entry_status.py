"""The entries of each table cell, and their status: the number that each contributes, or why there is none."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from statistics import fmean

from gpas_cli.errors import GpasError
from gpas_cli.grid.declared import Entry, TableSpec
from gpas_cli.grid.document import Label
from gpas_cli.report.labels import RowKey, measured_labels, usual_label
from gpas_cli.report.recorded import PARTIAL, Result
from gpas_cli.spec.extensions import measured_columns
from gpas_cli.spec.stage import Metric, called
from gpas_cli.structure import Frozen
from gpas_cli.words import grouped

States = Mapping[str, tuple[str, float | None]]
Results = Mapping[str, Result]

# States without a number, in the order in which a table cell names them, and their names.
_ORDER = (
    *("diverged", "not finite", "running", "queued", "interrupted", "failed", "cancelled", "unknown", "missing"),
    *("unsynced", "unrecorded"),
)
STATE_NAMES = {"unsynced": "not ingested", "unrecorded": "not recorded"}
NO_UNIT = "unit missing"  # of a number that is relative to another, which is missing
REFERENCE = "perplexity_reference"
_LARGEST = 709  # of the losses whose perplexity a float can be


class EntryStatus(Frozen):
    """One entry of a table cell."""

    entry: Entry
    seed: Label | None  # its label on the averaged axis
    state: str
    """As in `gpas status` ("done" for a task with a score, even if its stage is not), or "unsynced" (done, but not yet
    in the database) or "unrecorded" (done without this metric)."""
    key: str
    value: float | None = None  # None unless `state` is "done"
    progress: float | None = None  # the fraction of the stage that is done, if known
    result: Result | None = None
    stderr: float | None = None  # the standard error of a score over its questions
    withheld: Result | None = None
    """A result in the database that is not shown, because the run directories no longer contain it."""


def entry_status(
    entry: Entry, over: str, metric: Metric, label: str | None, states: States, results: Results
) -> EntryStatus:
    """Return the status of `entry` for a number: the status of the first stage in its chain that is not done.

    over: the averaged axis. label: what the number is measured on, None for the usual one (`usual_label`).
    A result counts only if the run directory confirms it, by the evidence that `gpas status` uses.

    Raises GpasError when the entry has no stage that reports the metric.
    """
    if metric.stage not in [stage.kind for stage in entry.cell.stages]:
        what = f"{metric.name} comes from the stage '{metric.stage}'"
        raise GpasError(f"{entry.id}: {what}, which this cell does not have")
    seed = entry.axes.get(over)
    measured_on = usual_label(entry.cell, metric) if label is None else label
    name = metric.name if measured_on is None else metric.recorded_as(measured_on)
    for position, stage in enumerate(entry.cell.stages):
        known = results.get(stage.key)
        if known is not None and known.outcome == PARTIAL:
            state, progress = states.get(stage.key, ("missing", None))
            value = known.metrics.get(name) if stage.kind == metric.stage else None
            scored = state if value is None else "done"
            return EntryStatus(entry, seed, scored, stage.key, value, progress, known, known.stderr(name))
        result = known if known is not None and is_supported(known, states) else None
        withheld = known if result is None else None
        if result is not None and result.outcome == "diverged":
            return EntryStatus(entry, seed, called(result.outcome, result.metrics), stage.key, result=result)
        if result is None or result.outcome != "done":
            # The state of a later stage implies that this one is done.
            later = any(after.key in states for after in entry.cell.stages[position + 1 :])
            state, progress = states.get(stage.key, ("done" if later else "missing", None))
            state = "unsynced" if state == "done" else state
            return EntryStatus(entry, seed, state, stage.key, progress=progress, withheld=withheld)
        if stage.kind == metric.stage:
            break
    assert result is not None  # the loop ends at the stage in question, and only where that is done
    value = result.metrics.get(name)
    state = "unrecorded" if value is None else "done"
    return EntryStatus(entry, seed, state, stage.key, value=value, result=result, stderr=result.stderr(name))


def as_averaged(status: EntryStatus, batches: int, what: Metric) -> EntryStatus:
    """Return the status with the perplexity of a code that divides the sum of its `batches` mean losses by their number
    plus one: exp(mean n / (n + 1)), with the recorded mean over our batches. 0 batches: as many as ours."""
    if not batches or what.name != REFERENCE or status.value is None or status.result is None:
        return status
    mean = status.result.metrics.get("loss_batch_mean")
    if mean is None:
        return replace(status, value=None, state="unrecorded")
    loss = mean * batches / (batches + 1)
    return replace(status, value=math.exp(loss) if loss < _LARGEST else math.inf)


def in_units_of(statuses: Sequence[EntryStatus], unit: float | None) -> tuple[EntryStatus, ...]:
    """Return the statuses with their numbers divided by `unit`; without a unit, they have none."""
    if unit is None:
        return tuple(s if s.value is None else replace(s, value=None, state=NO_UNIT) for s in statuses)
    return tuple(s if s.value is None else replace(s, value=s.value / unit) for s in statuses)


def is_supported(result: Result, states: States) -> bool:
    """Return whether the run directories confirm a result of the database."""
    if result.gone:
        return False
    state, _ = states.get(result.key, (result.outcome, None))
    return state == result.outcome


def group(entries: Sequence[Entry], spec: TableSpec) -> dict[RowKey, dict[Label, list[Entry]]]:
    """Return the entries by row key and column label. An entry is in the column of each of its tasks or texts."""
    groups: dict[RowKey, dict[Label, list[Entry]]] = {}
    # Grids that include one another may have the same cell twice.
    for entry in {(entry.cell.key, frozenset(entry.axes.items())): entry for entry in entries}.values():
        row = groups.setdefault(tuple(entry.axes.get(axis) for axis in spec.rows), {})
        own = [entry.axes[spec.columns]] if spec.columns in entry.axes else []
        for label in measured_labels(entry.cell, spec.value) if spec.columns in measured_columns() else own:
            row.setdefault(label, []).append(entry)
    for columns in groups.values():
        for alike in columns.values():
            _refuse_mixture(alike, spec)
    return groups


def _refuse_mixture(alike: Sequence[Entry], spec: TableSpec) -> None:
    """Raise GpasError if entries of one table cell differ in more than the averaged axis: their mean has no meaning."""
    first = alike[0]
    free = (spec.over, spec.best)
    usual = {**first.axes, **dict.fromkeys(free)}
    for entry in alike[1:]:
        if {**entry.axes, **dict.fromkeys(free)} == usual:
            continue
        if differing := sorted({axis for axis, _ in entry.axes.items() ^ first.axes.items()} - {*free}):
            both = f"{first.id} and {entry.id} are in the same table cell but differ in {', '.join(differing)}"
            raise GpasError(f"table '{spec.title}': {both}; add it to the rows, or select cells with --where")
    seen: dict[object, str] = {}
    for entry in alike:
        if (other := seen.setdefault(tuple(entry.axes.get(axis) for axis in free), entry.id)) != entry.id:
            both = f"{other} and {entry.id} are in the same table cell and have the same {spec.over}"
            raise GpasError(f"table '{spec.title}': {both}; select cells with --where")


def by_variant(entries: Sequence[Entry], over: str) -> list[list[Entry]]:
    """Return the entries that differ only in the axis `over` together, in declared order."""
    return list(grouped((entry.labels_without(over), entry) for entry in entries).values())


def best_variant(
    statuses: Sequence[EntryStatus], over: str, what: Metric
) -> tuple[tuple[EntryStatus, ...], tuple[EntryStatus, ...]]:
    """Return the statuses of the variant with the best mean, and the others.

    One with a diverged run comes after those without. If no variant has a number, it is the first one.
    """
    sign = -1 if what.better == "higher" else 1
    by_id = {status.entry.id: status for status in statuses}
    variants = [[by_id[entry.id] for entry in one] for one in by_variant([status.entry for status in statuses], over)]

    def rank(own: Sequence[EntryStatus]) -> tuple[bool, float]:
        numbers = [sign * one.value for one in own if one.value is not None]
        return any(one.state == "diverged" for one in own), fmean(numbers or [math.inf])

    variants.sort(key=rank)
    return tuple(chain(*variants[:1])), tuple(chain(*variants[1:]))


def missing_numbers(statuses: Sequence[EntryStatus], over: str) -> str:
    """Return why numbers are missing: "" if none is, "running 45 %", "3/5 seeds", "2 queued, 1 missing"."""
    missing = [status for status in statuses if status.value is None]
    if not missing:
        return ""
    counts = Counter(status.state for status in missing)
    if len(missing) < len(statuses):
        diverged = f", {counts['diverged']} diverged" if counts["diverged"] else ""
        return f"{len(statuses) - len(missing)}/{len(statuses)} {over}s{diverged}"
    words = []
    order = [*_ORDER, *(state for state in counts if state not in _ORDER)]
    for state in sorted(counts, key=order.index):
        name = STATE_NAMES.get(state, state)
        known = [s.progress for s in missing if s.state == state and s.progress is not None]
        if known and state in ("running", "interrupted"):
            name += f" {math.floor(100 * sum(known) / len(known))} %"  # only a finished stage shows 100 %
        words.append(f"{counts[state]} {name}" if len(counts) > 1 else name)
    return ", ".join(words)
