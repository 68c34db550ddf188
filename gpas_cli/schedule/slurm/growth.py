"""Resources that grow by attempt: `mem: [32G, 64G]`, `time: [4:00:00, 12:00:00]`.

The attempt after one that ran out of memory, or that reached its time limit, asks for the next entry of that setting.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpas_cli.errors import GpasError
from gpas_cli.plan.stage_jobs import StageJob
from gpas_cli.schedule.out_of_memory import is_memory
from gpas_cli.schedule.slurm import submission
from gpas_cli.spec.run import Resources, time_seconds
from gpas_cli.state.status import StageStatus
from gpas_cli.state.usage import end_of
from gpas_cli.store.rundir import AttemptDir

EARLY_SECONDS = 70.0  # by which SLURM may send the warning too early
TIMEOUT = "timeout"  # SLURM's state TIMEOUT, as a cause


def grown(runs: Path, job: StageJob, seen: StageStatus) -> tuple[StageJob, set[str]]:
    """Return a job with the memory and the time of its next attempt, and which of them are more than the last one's.

    `seen` is its status before.
    """
    asked = job.resources
    if not asked.growing:
        return job, set()
    before, seconds = _before(runs, job.key, seen)
    timeout = seen.cause.startswith(TIMEOUT) or (before is not None and reached_limit(before, seconds))
    ended = {"mem": is_memory(seen.cause), "time": timeout}
    chosen, larger, more = dict[str, Any](), list[str](), set[str]()
    for name in asked.growing:
        entries, used = getattr(asked, name), getattr(before, name, None)
        last = entries.index(used) if used in entries else 0
        place = min(last + (used in entries and ended[name]), len(entries) - 1)
        chosen[name] = entries[place]
        larger += [name] if place + 1 < len(entries) else []
        more |= {name} if place > last else set()
    return replace(job, resources=replace(asked, **chosen), larger=tuple(larger)), more


def reached_limit(asked: Resources, seconds: float) -> bool:
    """Return whether a job that ended after `seconds` was ended, or warned, because of its time limit."""
    limit = time_seconds(str(asked.first.time))
    return limit is not None and seconds >= max(limit - asked.notice - EARLY_SECONDS, limit / 2)


def _before(runs: Path, key: str, seen: StageStatus) -> tuple[Resources | None, float]:
    """Return what the last job of a stage asked for, and the seconds of its last attempt."""
    with suppress(OSError, GpasError):
        if seen.directory:
            attempt = AttemptDir(seen.directory)
            record = attempt.read_attempt()
            return record.resources, end_of(attempt) - record.created
        if seen.claim and (made := submission.find(runs, seen.claim.submission)):
            return next(each.resources for each in made.element(seen.claim.index) if each.key == key), 0.0
    return None, 0.0
