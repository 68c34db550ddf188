"""The reports of submitters and schedulers about claims, queried once per look at the run directories."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from gpas_cli.errors import GpasError
from gpas_cli.state import locks
from gpas_cli.state.claims import Claim
from gpas_cli.state.locks import Lock
from gpas_cli.state.schedulers import scheduler_class
from gpas_cli.state.status import ALIVE, SchedulerJob, StageStatus
from gpas_cli.state.submitters import SILENCE_SECONDS, folder, is_of_this_host


class ClaimScheduler(Protocol):
    """The part of a scheduler that concerns claims. An instance serves one look and may cache answers."""

    def state_of(self, key: str, last: StageStatus, claim: Claim) -> StageStatus:
        """Return the status of the stage `key`, which `claim` assigns to this scheduler.

        `last` is the status that the run directory alone shows. It has no result.
        """

    def job_of(self, claim: Claim) -> SchedulerJob | None:
        """Return the job that runs, or will run, the claimed stage; None if there is none or it is unknown."""

    def describe(self, claim: Claim, key: str) -> Mapping[str, Any]:
        """Return the facts of a stage without an attempt as they will be in attempt.json, {} if they are unknown."""

    def log_of(self, claim: Claim) -> Path | None:
        """Return the file with the output of the job outside its attempts, None if there is none."""


@dataclass
class SchedulerView:
    """The reports of submitters and schedulers during one look. Each is queried once, so create a view per look.

    `max_age_seconds`: the maximum age of a scheduler's answer, None for the scheduler's own default. `line`: whether to
    query the positions of waiting jobs as well.
    """

    runs: Path
    max_age_seconds: float | None = None
    line: bool = False
    _lives: dict[str, bool] = field(default_factory=dict)
    _schedulers: dict[str, ClaimScheduler] = field(default_factory=dict)

    def scheduler(self, name: str) -> ClaimScheduler:
        """Return the scheduler `name` for this look. Raises GpasError if it is unknown or cannot be loaded."""
        if name not in self._schedulers:
            self._schedulers[name] = scheduler_class(name)(self)
        return self._schedulers[name]

    def state_of(self, key: str, last: StageStatus, claim: Claim) -> StageStatus:
        """Return the status of a claimed stage as its scheduler sees it, `unknown` if the scheduler is unknown."""
        try:
            scheduler = self.scheduler(claim.scheduler)
        except GpasError as error:
            return replace(last, state="unknown", evidence=f"claimed by {claim}: {error}", claim=claim)
        return scheduler.state_of(key, last, claim)

    def job_of(self, claim: Claim | None) -> SchedulerJob | None:
        """Return the job of a claimed stage, None if there is no claim or the job is unknown."""
        with suppress(GpasError):
            return self.scheduler(claim.scheduler).job_of(claim) if claim else None
        return None

    def lives(self, claim: Claim) -> bool:
        """Return whether the submitter of a claim is alive."""
        if claim.submitter not in self._lives:
            self._lives[claim.submitter] = self.lives_now(claim)
        return self._lives[claim.submitter]

    def lives_now(self, claim: Claim) -> bool:
        """Return whether the submitter of a claim is alive, without the cached answer of `lives`."""
        path = folder(self.runs) / f"{claim.submitter}.lock"
        found = locks.probe(path)
        if found in (Lock.HELD, Lock.ABSENT) or (found is Lock.FREE and is_of_this_host(path, claim.host)):
            return found is Lock.HELD
        try:  # locks of some network file systems are visible on one host only; heartbeats are visible on all
            return time.time() - path.stat().st_mtime < SILENCE_SECONDS
        except OSError:
            return False

    def with_submitter(self, last: StageStatus, claim: Claim) -> StageStatus:
        """Return the status of a stage that its submitter runs itself: queued or running while that is alive."""
        if last.state in ALIVE or not self.lives(claim):
            return last
        if last.state == "unknown":  # a claim is released when its job has ended, so the job is still running
            evidence = f"claimed by {claim}, which is alive; {last.evidence}"
            return replace(last, state="running", evidence=evidence, claim=claim)
        before = f" after attempt {last.attempt} ({last.state})" if last.attempt else ""
        age = max(0.0, time.time() - claim.since)
        return replace(last, state="queued", evidence=f"claimed by {claim}{before}", age=age, cause="", claim=claim)
