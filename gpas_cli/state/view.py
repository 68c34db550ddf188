"""The reports of submitters and schedulers about claims, and the description of a claimed stage.

Schedulers are `local`, `slurm`, and those of extensions of installed packages; docs/how-to/scheduler.md shows how. Each
is queried once per scan of the run directories.
"""

from __future__ import annotations

import pkgutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpas_cli.errors import GpasError, nearest
from gpas_cli.extension import installed
from gpas_cli.period import seconds_since
from gpas_cli.spec.extensions import stage_kinds
from gpas_cli.spec.stage import TOKENISE
from gpas_cli.state import locks
from gpas_cli.state.claims import LOCAL, SILENCE_SECONDS, SLURM, Claim, folder, is_of_this_host, read_claim
from gpas_cli.state.locks import Lock
from gpas_cli.state.status import ALIVE, SchedulerJob, StageStatus
from gpas_cli.store.rundir import attempts, read_json

_BUILT_IN = {LOCAL: "gpas_cli.schedule.local:LocalScheduler", SLURM: "gpas_cli.schedule.slurm.scheduler:SlurmScheduler"}


def scheduler_names() -> list[str]:
    """Return the names of all schedulers, the package's own first."""
    return list(_known())


def scheduler_class(name: str) -> Any:
    """Return the class of the scheduler `name`, a `gpas_cli.schedule.scheduler.Scheduler`.

    Raises GpasError if there is no such scheduler or if it cannot be imported.
    """
    # The installed distributions are searched only for other names, because that takes many milliseconds.
    known = _BUILT_IN if name in _BUILT_IN else _known()
    if name not in known:
        raise GpasError(f"unknown scheduler '{name}'; {nearest(name, known)}")
    try:
        return pkgutil.resolve_name(known[name])
    except Exception as error:
        raise GpasError(f"the scheduler '{name}' cannot be loaded: {type(error).__name__}: {error}") from error


def _known() -> dict[str, str]:
    # Those that are built in are listed first, and no other one of their name replaces them.
    others = (one.schedulers for one in installed().values())
    return _BUILT_IN | {name: place for found in others for name, place in found.items()} | _BUILT_IN


class ClaimScheduler:
    """The part of a scheduler that concerns claims. An instance serves one scan and may cache answers.

    Without methods of its own, a claim counts while the `gpas run` that made it lives.
    """

    def __init__(self, scan: SchedulerView):
        self.scan = scan

    def state_of(self, key: str, last: StageStatus, claim: Claim) -> StageStatus:
        """Return the status of the stage `key`, which `claim` assigns to this scheduler.

        `last` is the status that the run directory alone shows. It has no result.
        """
        return self.scan.with_submitter(last, claim)

    def job_of(self, claim: Claim) -> SchedulerJob | None:
        """Return the job that runs, or will run, the claimed stage; None if there is none or it is unknown."""
        return None

    def describe(self, claim: Claim, key: str) -> Mapping[str, Any]:
        """Return the facts of a stage without an attempt as they will be in attempt.json, {} if they are unknown."""
        return {}

    def log_of(self, claim: Claim) -> Path | None:
        """Return the file with the output of the job outside its attempts, None if there is none."""
        return None


@dataclass
class SchedulerView:
    """The reports of submitters and schedulers during one scan. Each is queried once, so create a view per scan."""

    runs: Path
    max_age_seconds: float | None = None
    """The maximum age of a scheduler's answer, None for the scheduler's own default."""
    line: bool = False  # whether to query the positions of waiting jobs as well
    _lives: dict[str, bool] = field(default_factory=dict)
    _schedulers: dict[str, ClaimScheduler] = field(default_factory=dict)

    def scheduler(self, name: str) -> ClaimScheduler:
        """Return the scheduler `name` for this scan. Raises GpasError if it is unknown or cannot be loaded."""
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
        age, evidence = seconds_since(claim.time), f"claimed by {claim}{before}"
        return replace(last, state="queued", evidence=evidence, age=age, cause="", claim=claim)


def facts_of(view: SchedulerView, key: str) -> dict[str, Any]:
    """Return the stage's facts as in attempt.json ({stage, grid, name, cell, ...}), {} if they are unknown."""
    with suppress(OSError, GpasError):
        if tries := attempts(view.runs, key):
            # A mapping rather than a record: another version may have written it, and callers read only fields that
            # they know.
            return read_json(tries[-1].attempt_path)
        if claim := read_claim(view.runs, key):
            return dict(view.scheduler(claim.scheduler).describe(claim, key))
    return {}


def log_of(view: SchedulerView, key: str) -> Path | None:
    """Return the file with the output of a claimed stage's job outside its attempts, None if there is none."""
    with suppress(GpasError):
        if claim := read_claim(view.runs, key):
            return view.scheduler(claim.scheduler).log_of(claim)
    return None


def stage_title(facts: dict[str, Any], key: str) -> str:
    """Return the name of the stage in messages about stages that depend on it, such as "its training table2/pre-s1" or
    "tokenising c4"."""
    kind = str(facts.get("stage", "stage"))
    if kind == TOKENISE:
        return f"tokenising {facts.get('name', 'its text')}"
    known = stage_kinds().get(kind)
    title = known.title if known else str(facts.get("title") or "")
    cell = f"{facts['grid']}/{facts['name']}" if "name" in facts else key
    return (title or f"its {kind} of {{cell}}").replace("{cell}", cell)
