"""The commands that run what a claim still needs: its cells without a number, or further seeds."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from gpas_cli.grid.select import run_command
from gpas_cli.report.claims.verdict import UNDECIDED, Part, Verdict
from gpas_cli.report.tables.entry_status import EntryStatus
from gpas_cli.report.tables.missing import RETRIED

if TYPE_CHECKING:
    from gpas_cli.grid.entry import Entry

MAX_SEEDS = 8  # proposed for `gpas run claims`, or twice the present number
# What a run in this state needs. Those that are queued or running need nothing.
REMEDIES = {
    **dict.fromkeys(RETRIED, "gpas retry"),
    **dict.fromkeys(("unrecorded", "not finite"), "gpas rerun"),
    "unsynced": "gpas sync",
}
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


def command(verdict: Verdict, entries: Sequence[Entry]) -> str:
    """Return the command that brings the claim nearer to a verdict, "" if it is decided or its runs are under way.

    `entries` are all cells of its grids.
    """
    if verdict.verdict != UNDECIDED or not verdict.parts:
        return ""
    idle = [status for status in verdict.missing if status.state not in WAITING]
    startable = [status.entry for status in idle if status.state not in REMEDIES]
    if startable:
        return run_command(startable, entries)
    if idle:
        names = [status.entry.id for status in idle if status.state == idle[0].state]
        return " ".join([REMEDIES[idle[0].state], *map(shlex.quote, names if idle[0].state != "unsynced" else [])])
    if verdict.missing:
        return ""
    claim = verdict.claim
    size = " --toy" if claim.toy else " --paper-size" if claim.source.paper else ""
    seeds = max(MAX_SEEDS, 2 * verdict.n[0])
    return f"gpas run claims {shlex.quote(claim.name)}{size} --until decided --max-seeds {seeds}"
