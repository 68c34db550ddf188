"""The commands that run what a claim still needs: its cells without a number, or further seeds."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from gpas_cli.grid.scalar import Label, spelled
from gpas_cli.report.claims.verdict import UNDECIDED, Part, Verdict
from gpas_cli.report.entry_status import EntryStatus

MAX_SEEDS = 8  # proposed for `gpas run claims`
# What a run in this state needs. Those that are queued or running need nothing.
REMEDIES = {"failed": "gpas retry", "unsynced": "gpas sync", "unrecorded": "gpas rerun"}
WAITING = ("queued", "running")


def missing(parts: Iterable[Part]) -> tuple[EntryStatus, ...]:
    """Return the runs without the number that the parts need, each once. A diverged run is an observation."""
    found: dict[str, EntryStatus] = {}
    for part in parts:
        for pair in part.pairs:
            for one in pair.measured:
                if one.value is None and not one.diverged:
                    found.setdefault(one.status.entry.cell.key, one.status)
    return tuple(found.values())


def command(verdict: Verdict) -> str:
    """Return the command that brings the claim nearer to a verdict, "" if it is decided or its runs are under way."""
    if verdict.verdict != UNDECIDED or not verdict.parts:
        return ""
    idle = [status for status in verdict.missing if status.state not in WAITING]
    startable = [status for status in idle if status.state not in REMEDIES]
    if startable:
        return run_command(startable)
    if idle:
        return f"{REMEDIES[idle[0].state]} {' '.join(shlex.quote(one.entry.id) for one in _same_state(idle))}".strip()
    if verdict.missing:
        return ""
    return f"gpas run claims {shlex.quote(verdict.claim.name)} --until decided --max-seeds {MAX_SEEDS}"


def _same_state(statuses: Sequence[EntryStatus]) -> list[EntryStatus]:
    first = statuses[0].state
    return [status for status in statuses if status.state == first and first != "unsynced"]


def run_command(statuses: Sequence[EntryStatus]) -> str:
    """Return `gpas run grid` with the conditions on labels that select these cells, and as few others as they can."""
    grids = list(dict.fromkeys(status.entry.grid for status in statuses))
    labels: dict[str, dict[str, Label]] = {}
    for status in statuses:
        for axis, label in status.entry.axes.items():
            labels.setdefault(axis, {})[spelled(label)] = label
    common = [axis for axis in labels if all(axis in status.entry.axes for status in statuses)]
    conditions = [f"-w {shlex.quote(axis + '=' + ','.join(labels[axis]))}" for axis in common]
    return " ".join(["gpas run grid", *grids, *conditions])
