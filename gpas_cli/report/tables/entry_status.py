"""The status of one entry of a table cell: the number that it contributes, or why there is none."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpas_cli.errors import GpasError
from gpas_cli.grid.document import Label
from gpas_cli.grid.entry import Entry
from gpas_cli.report.result import PARTIAL, Result
from gpas_cli.spec.stage import Metric, called

States = Mapping[str, tuple[str, float | None]]
Results = Mapping[str, Result]

# States without a number, in the order in which a table cell names them, and their names.
STATE_NAMES = {
    "diverged": "diverged",
    "not finite": "not finite",
    "running": "running",
    "queued": "queued",
    "interrupted": "interrupted",
    "failed": "failed",
    "cancelled": "cancelled",
    "unknown": "unknown",
    "missing": "missing",
    "unsynced": "not ingested",
    "unrecorded": "not recorded",
}


@dataclass(frozen=True)
class EntryStatus:
    """One entry of a table cell. `seed` is its label on the averaged axis; `value` is None unless `state` is "done".

    state: as in `gpas status` ("done" for a task with a score, even if its stage is not), or "unsynced" (done, but not
    yet in the database) or "unrecorded" (done without this metric). progress: the fraction of the stage that is done,
    if known. withheld: a result in the database that is not shown, because the run directories no longer contain it.
    stderr: the standard error of a score over its questions.
    """

    entry: Entry
    seed: Label | None
    state: str
    key: str
    value: float | None = None
    progress: float | None = None
    result: Result | None = None
    stderr: float | None = None
    withheld: Result | None = None


def entry_status(
    entry: Entry, seed: Label | None, metric: Metric, name: str, states: States, results: Results
) -> EntryStatus:
    """Return the status of `entry` for the number called `name`: that of the first stage in its chain that is not done.

    A result counts only if the run directory confirms it, by the evidence that `gpas status` uses.

    Raises GpasError when the entry has no stage that reports the metric.
    """
    if metric.stage not in [stage.kind for stage in entry.cell.stages]:
        raise GpasError(
            f"{entry.id}: {metric.name} comes from the stage '{metric.stage}', which this cell does not have"
        )
    for position, stage in enumerate(entry.cell.stages):
        known = results.get(stage.key)
        if known is not None and known.outcome == PARTIAL:
            state, progress = states.get(stage.key, ("missing", None))
            value = known.metrics.get(name) if stage.kind == metric.stage else None
            scored = state if value is None else "done"
            return EntryStatus(
                entry, seed, scored, stage.key, value=value, progress=progress, result=known, stderr=known.stderr(name)
            )
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


def is_supported(result: Result, states: States) -> bool:
    """Return whether the run directories confirm a result of the database."""
    if result.gone:
        return False
    state, _ = states.get(result.key, (result.outcome, None))
    return state == result.outcome


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
    order = [*STATE_NAMES, *(state for state in counts if state not in STATE_NAMES)]
    for state in sorted(counts, key=order.index):
        name = STATE_NAMES.get(state, state)
        known = [s.progress for s in missing if s.state == state and s.progress is not None]
        if known and state in ("running", "interrupted"):
            name += f" {math.floor(100 * sum(known) / len(known))} %"  # only a finished stage shows 100 %
        words.append(f"{counts[state]} {name}" if len(counts) > 1 else name)
    return ", ".join(words)
