"""A stage that a SLURM submission has claimed: the run directory, the claim and the queue -> its state.

What the run directory tells comes first (`state.observe`). Only where that is no end does the scheduler's word count:
it says whether somebody is still at it. A scheduler that does not answer changes nothing but the age.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpas_cli.errors import GpasError
from gpas_cli.schedule.slurm import job_states, submission
from gpas_cli.schedule.slurm.array_task import Job
from gpas_cli.schedule.slurm.queue import Queue
from gpas_cli.schedule.slurm.retry import end_of, is_memory, last_said
from gpas_cli.spec.run import Resources
from gpas_cli.state.attempt import attempts_without_progress
from gpas_cli.state.cancellation import requested
from gpas_cli.state.describe import facts_of, stage_title
from gpas_cli.store.rundir import AttemptDir

if TYPE_CHECKING:
    from gpas_cli.state.claims import Claim
    from gpas_cli.state.status import StageStatus
    from gpas_cli.state.view import SchedulerView

ORPHAN = 60.0  # seconds for which a job that SLURM has completed may still owe us its outcome
FINAL = ("done", "diverged", "failed", "cancelled")  # outcomes that a job tells itself


def judge(runs: Path, key: str, last: StageStatus, claim: Claim, alive: SchedulerView) -> StageStatus:
    """The state of the stage `key`, whose attempts tell `last` and which `claim` gives to an element of a job array."""
    own = last.submission == claim.submission
    if own and last.state in FINAL and last.source in ("outcome", "exit"):
        return last
    if not own and requested(runs, key):
        return replace(last, state="cancelled", evidence="cancelled before its job started", cause="", claim=claim)
    if not own and (held := alive.breaker(claim.submission)):
        return replace(last, state="cancelled", evidence="its job was not started", cause=held, claim=claim)
    if own and last.age is not None and last.state not in ("queued", "running"):
        alive.renew(since=time.time() - last.age)  # an answer from before an attempt ended knows nothing of its end
    queue: Queue | None = alive.queue
    job = alive.queue.find(claim.submission, claim.index)
    if job is None:
        queue = alive.queue_after(claim)
        job = queue.find(claim.submission, claim.index) if queue else None
    gone = job.ended if job else queue is not None and not queue.error
    if gone and not own and (found := _orphaned(runs, last, claim, job, alive)):
        return found
    if queue is None or job is None:
        return spent(runs, key, _unseen(last, claim, queue, alive))
    if job.ended:
        return spent(runs, key, _ended(runs, last, claim, job, queue))
    return _under_way(last, claim, job, queue)


def _orphaned(runs: Path, last: StageStatus, claim: Claim, job: Job | None, alive: SchedulerView) -> StageStatus | None:
    """The status of a stage whose job was not run, as one that it was to wait for came to no good end; else None."""
    for key in claim.after:
        if key not in alive.verdicts:
            alive.verdicts[key] = _verdict(runs, key, alive)
        if cause := alive.verdicts[key]:
            told = str(job) if job else f"SLURM does not know {claim.submission}[{claim.index}]"
            return replace(
                last, state="cancelled", evidence=told, cause=cause, claim=claim, job=job, outcome="", blocker=key
            )
    return None


def _verdict(runs: Path, key: str, alive: SchedulerView) -> str:
    """Why what builds on the stage `key` cannot be run, "" where nothing speaks against it."""
    from gpas_cli.state.observe import observe  # which asks this module about every claimed stage

    seen = observe(runs, key, alive)
    if seen.state not in ("failed", "cancelled", "diverged"):
        return ""
    facts = facts_of(runs, key)
    ended = "was cancelled" if seen.state == "cancelled" else seen.state
    why = f" ({seen.cause})" if seen.cause else ""
    # Cells have `gpas logs`; other jobs have their log here only.
    log = f"; {AttemptDir(seen.directory).log_path}" if seen.directory and "demand" in facts else ""
    return f"{stage_title(facts, key)} {ended}{why}{log}"


def _unseen(last: StageStatus, claim: Claim, queue: Queue | None, alive: SchedulerView) -> StageStatus:
    """The queue does not have the job: not yet (its submitter lives), or not any more, or nobody could be asked."""
    if queue is None:
        return _queued(last, claim, f"being submitted by {claim.submitter}", claim.since)
    if not alive.recorded(claim.submission):  # refused by the scheduler, or removed
        return last
    if queue.error:
        return _queued(last, claim, f"submitted as {claim.submission}; {queue.error}", claim.since)
    if user := alive.other_user(claim.submission):
        evidence = f"{user} submitted it as {claim}; SLURM does not show you this job, which may be there all the same"
        return replace(last, state="unknown", evidence=evidence, cause="", age=None, claim=claim)
    if last.state == "interrupted" and last.submission == claim.submission and last.source in ("outcome", "exit"):
        return last  # nobody but the job itself knows why it left
    if last.state in ("missing", "interrupted", "unknown", "running"):
        cause = f"SLURM does not know {claim.submission}[{claim.index}]; the next `gpas run grid` submits it"
        return replace(last, state="interrupted" if last.attempt else "missing", cause=cause)
    return last


def _under_way(last: StageStatus, claim: Claim, job: Job, queue: Queue) -> StageStatus:
    why = f": {last.cause}" if last.cause else ""
    own = last.attempt and last.submission == claim.submission
    before = f", after attempt {last.attempt} ({last.state}{why})" if own else ""
    if job.state in job_states.WAITING:
        return _queued(last, claim, f"{job}{before}{_stale(queue)}", queue.time, job)
    # An attempt of its own process tells more; without one, its job is starting, or between two attempts.
    evidence = f"{job}{before or ', no attempt yet'}{_stale(queue)}"
    return replace(
        last, state="running", evidence=evidence, cause="", age=_since(queue.time), claim=claim, job=job, outcome=""
    )


def _queued(last: StageStatus, claim: Claim, evidence: str, since: float, job: Job | None = None) -> StageStatus:
    return replace(
        last, state="queued", evidence=evidence, cause="", age=_since(since), claim=claim, job=job, outcome=""
    )


def spent(runs: Path, key: str, last: StageStatus) -> StageStatus:
    """An interrupted stage whose last attempts came no further has failed: to run it again would go on for ever."""
    if last.state != "interrupted" or not last.attempt or attempts_without_progress(runs, key) < _retries(last):
        return last
    count = _retries(last)
    return replace(
        last, state="failed", cause=f"{count} attempts in a row came no further; {last.cause or last.evidence}"
    )


def _retries(last: StageStatus) -> int:
    if last.directory is not None:
        with suppress(OSError, GpasError, KeyError, TypeError, ValueError):
            return int(AttemptDir(last.directory).read_attempt()["resources"]["retries"])
    return int(Resources().retries)


def _ended(runs: Path, last: StageStatus, claim: Claim, job: Job, queue: Queue) -> StageStatus:
    """SLURM has seen the job end. What the job said itself stands; where it said nothing, SLURM's reason counts."""
    own = last.submission == claim.submission
    if own and last.source in ("outcome", "exit"):
        if last.state == "interrupted" and job.state == "CANCELLED":
            return replace(last, state="cancelled", evidence=f"{last.evidence}; {job}", job=job)
        return replace(last, job=job)
    if job.state == "COMPLETED" and _since(job.end or queue.time) < ORPHAN:
        evidence = f"{job}; its outcome is not to be seen here yet"
        return replace(last, state="running", evidence=evidence, claim=claim, job=job, age=_since(job.end))
    state, cause = _why(job, submission.folder(runs) / claim.submission)
    if state == "interrupted" and not last.attempt:
        state = "missing"
    age = _since(job.end) if job.end else None
    return replace(last, state=state, evidence=str(job), cause=cause, age=age, job=job, outcome="")


def _why(job: Job, place: Path) -> tuple[str, str]:
    """Our state, and the reason, for a job that ended without a word of its own."""
    code, signal = job_states.exit_words(job.exit)
    if job.state == "CANCELLED":
        if job.reason == job_states.NEVER:
            return "interrupted", "taken out of the queue: what it waited for did not end well"
        return "cancelled", "cancelled in SLURM"
    log = place / f"{job.id}_0_log.out"
    if job.state == job_states.MEMORY or (job.state == "FAILED" and is_memory(end_of(log))):
        return "interrupted", f"out of memory on {job.nodes}"
    if job.state in job_states.INTERRUPTED or job.state == "COMPLETED":
        return "interrupted", f"{job.state.lower().replace('_', ' ')}{f' on {job.nodes}' if job.nodes else ''}"
    if job.state == "FAILED" and (code == job_states.EXIT_RESUME or signal in job_states.OUTSIDE_SIGNALS):
        return "interrupted", f"the job ended with {job.exit or 'no word'}"
    if signal == job_states.NO_LOG:
        return (
            "interrupted",
            f"SLURM could not open the job's log on {job.nodes}: can runs/ be written there?",
        )
    said = last_said(log)
    how = f"{job.state.lower()}{f' with exit {job.exit}' if job.exit else ''}"
    return "failed", f"{how}: {said} ({log})" if said else how


def _stale(queue: Queue) -> str:
    return f" {queue.age:.0f} s ago; since then: {queue.error}" if queue.error else ""


def _since(t: float) -> float:
    return max(0.0, time.time() - t)
