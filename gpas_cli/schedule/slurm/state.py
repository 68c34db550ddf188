"""The state of a stage that a SLURM submission claims, from its run directory, its claim and the queue.

The run directory takes precedence (`state.observe`). SLURM is queried only for a stage without a result, to find out
whether its job is still queued or running. If SLURM does not answer, only the age of the evidence changes.
"""

import os
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from gpas_cli.errors import GpasError
from gpas_cli.permissions import user_name
from gpas_cli.schedule.retry import End, Step, given_up, is_memory, next_step
from gpas_cli.schedule.slurm import reports, submission
from gpas_cli.schedule.slurm.queue import Queue, SlurmView
from gpas_cli.schedule.slurm.reports import Job
from gpas_cli.schedule.slurm.submission import last_log_line
from gpas_cli.spec.run import Resources
from gpas_cli.state.attempt import attempts_without_progress
from gpas_cli.state.cancellation import requested
from gpas_cli.state.claims import Claim
from gpas_cli.state.exits import JobExit, end_of
from gpas_cli.state.observe import observe
from gpas_cli.state.status import ALIVE, StageStatus
from gpas_cli.state.view import facts_of, stage_title
from gpas_cli.store.rundir import AttemptDir

_OUTCOME_SECONDS = 60.0  # grace period before a COMPLETED job without an outcome counts as lost
_FINAL = ("done", "diverged", "failed", "cancelled")  # outcomes after which a job is not resumed


def state_of(view: SlurmView, key: str, last: StageStatus, claim: Claim) -> StageStatus:
    """Return the status of the stage `key`, which `claim` assigns to an element of a job array.

    `last` is the status that its attempts show.
    """
    own = last.submission == claim.submission
    if own and last.state in _FINAL and last.source in ("outcome", "exit"):
        return last
    if not own and requested(view.runs, key):
        return replace(last, state="cancelled", evidence="cancelled before its job started", cause="", claim=claim)
    if not own and (held := view.breaker(claim.submission)):
        return replace(last, state="cancelled", evidence="its job was not started", cause=held, claim=claim)
    if own and last.age is not None and last.state not in ALIVE:
        view.renew(since=time.time() - last.age)  # an answer from before the attempt ended does not show that end
    queue: Queue | None = view.queue
    job = view.job_of(claim)
    if job is None:
        queue = view.queue_after(claim)
        job = view.job_of(claim) if queue else None
    gone = job.ended if job else queue is not None and not queue.error
    if gone and not own and (found := _blocked(view, last, claim, job)):
        return found
    # SLURM may have removed what waited in vain.
    if (
        queue is None
        or job is None
        or (
            job.state == reports.VANISHED and any(observe(view.runs, k, view.scan).state != "done" for k in claim.after)
        )
    ):
        return _given_up(view.runs, key, _unseen(view, last, claim, queue))
    if job.ended:
        return _given_up(view.runs, key, _ended(view.runs, last, claim, job, queue))
    return _under_way(last, claim, job, queue)


def _blocked(view: SlurmView, last: StageStatus, claim: Claim, job: Job | None) -> StageStatus | None:
    """Return `cancelled` for a stage whose job was not run because a prerequisite failed, else None."""
    for key in claim.after:
        if key not in view.obstacles:
            view.obstacles[key] = _obstacle(view, key)
        if cause := view.obstacles[key]:
            evidence = str(job) if job else f"SLURM does not know {claim.submission}[{claim.index}]"
            return replace(
                last, state="cancelled", evidence=evidence, cause=cause, claim=claim, job=job, outcome="", blocker=key
            )
    return None


def _obstacle(view: SlurmView, key: str) -> str:
    """Return why a stage that builds on the stage `key` cannot run, "" if it can."""
    seen = observe(view.runs, key, view.scan)
    if seen.state not in ("failed", "cancelled", "diverged"):
        return ""
    facts = facts_of(view.scan, key)
    ended = "was cancelled" if seen.state == "cancelled" else seen.state
    why = f" ({seen.cause})" if seen.cause else ""
    # `gpas logs` shows the log of a cell; a job that tokenises is not a cell.
    log = f"; {AttemptDir(seen.directory).log_path}" if seen.directory and "demand" in facts else ""
    return f"{stage_title(facts, key)} {ended}{why}{log}"


def _unseen(view: SlurmView, last: StageStatus, claim: Claim, queue: Queue | None) -> StageStatus:
    """Return the status if the queue does not have the job: not yet, no longer, or SLURM did not answer."""
    if queue is None:
        return _queued(last, claim, f"being submitted by {claim.submitter}", claim.time)
    made = view.made(claim.submission)
    if made is None:  # refused by SLURM, or removed
        return last
    if queue.error:
        return _queued(last, claim, f"submitted as {claim.submission}; {queue.error}", claim.time)
    if os.getuid() not in (0, made.owner):
        user = user_name(made.owner)
        evidence = f"{user} submitted it as {claim}; SLURM does not show you this job, which may still exist"
        return replace(last, state="unknown", evidence=evidence, cause="", age=None, claim=claim)
    if last.state == "interrupted" and last.submission == claim.submission and last.source in ("outcome", "exit"):
        return last  # only the job itself knows why it exited
    if last.state in ("missing", "interrupted", "unknown", "running"):
        cause = f"SLURM does not know {claim.submission}[{claim.index}]; the next `gpas run grid` submits it"
        return replace(last, state="interrupted" if last.attempt else "missing", cause=cause)
    return last


def _under_way(last: StageStatus, claim: Claim, job: Job, queue: Queue) -> StageStatus:
    why = f": {last.cause}" if last.cause else ""
    own = last.attempt and last.submission == claim.submission
    before = f", after attempt {last.attempt} ({last.state}{why})" if own else ""
    if job.pending:
        return _queued(last, claim, f"{job}{before}{_stale(queue)}", queue.time, job)
    # The lock of an attempt is better evidence; without one, the job is starting or is between two attempts.
    evidence = f"{job}{before or ', no attempt yet'}{_stale(queue)}"
    # The last attempt's speed says nothing about when this job ends: its node may have failed.
    reached = replace(last.progress, eta=None, tokens_per_second=None, mfu=None) if last.progress else None
    return replace(
        last, state="running", evidence=evidence, cause="", age=_since(queue.time), claim=claim, job=job, outcome="",
        reached=reached,
    )  # fmt: skip


def _queued(last: StageStatus, claim: Claim, evidence: str, since: float, job: Job | None = None) -> StageStatus:
    return replace(
        last, state="queued", evidence=evidence, cause="", age=_since(since), claim=claim, job=job, outcome=""
    )


def _given_up(runs: Path, key: str, last: StageStatus) -> StageStatus:
    """Return `failed` for an interrupted stage whose last attempts made no progress: it would otherwise be resumed
    forever.
    """
    if last.state != "interrupted" or not last.attempt:
        return last
    retries = Resources().retries
    if last.directory is not None:
        with suppress(OSError, GpasError):
            retries = AttemptDir(last.directory).read_attempt().resources.retries
    if next_step(End.INTERRUPTED, attempts_without_progress(runs, key), retries) is not Step.GIVE_UP:
        return last
    return replace(given_up(last, retries), state="failed")


def _ended(runs: Path, last: StageStatus, claim: Claim, job: Job, queue: Queue) -> StageStatus:
    """Return the status of a job that ended: its own outcome if it wrote one, else SLURM's reason."""
    own = last.submission == claim.submission
    if own and last.source in ("outcome", "exit"):
        if last.state == "interrupted" and job.state == "CANCELLED":
            return replace(last, state="cancelled", evidence=f"{last.evidence}; {job}", job=job)
        return replace(last, job=job)
    if job.state == "COMPLETED" and _since(job.end or queue.time) < _OUTCOME_SECONDS:
        evidence = f"{job}; its outcome is not visible here yet"
        return replace(last, state="running", evidence=evidence, claim=claim, job=job, age=_since(job.end))
    state, cause = _why(job, submission.folder(runs) / claim.submission)
    if state == "interrupted" and not last.attempt:
        state = "missing"
    age = _since(job.end) if job.end else None
    return replace(last, state=state, evidence=str(job), cause=cause, age=age, job=job, claim=claim, outcome="")


def _why(job: Job, place: Path) -> tuple[str, str]:
    """Return the state and the reason for a job that ended without an outcome."""
    code, signal = reports.exit_words(job.exit)
    if job.state == "CANCELLED":
        if job.reason == reports.NEVER:
            return "interrupted", "removed from the queue: a job that it depends on did not succeed"
        return "cancelled", "cancelled in SLURM"
    if job.state == reports.VANISHED:
        return "unknown", "someone removed it with scancel, or SLURM has lost it; `gpas retry` runs it"
    log = place / f"{job.id}_0_log.out"
    if job.state == reports.MEMORY or (job.state == "FAILED" and is_memory(end_of(log))):
        return "interrupted", f"out of memory on {job.nodes}"
    if job.state in reports.INTERRUPTED or job.state == "COMPLETED":
        return "interrupted", f"{job.state.lower().replace('_', ' ')}{f' on {job.nodes}' if job.nodes else ''}"
    if job.state == "FAILED" and (code == JobExit.INTERRUPTED or signal in reports.OUTSIDE_SIGNALS):
        return "interrupted", f"the job ended with exit status {job.exit or 'unknown'}"
    if signal == reports.NO_LOG:
        why = f"SLURM could not open the job's log on {job.nodes}; check that runs/ can be written there"
        return "interrupted", why
    line = last_log_line(log)
    how = f"{job.state.lower()}{f' with exit {job.exit}' if job.exit else ''}"
    return "failed", f"{how}: {line} ({log})" if line else how


def _stale(queue: Queue) -> str:
    return f" {queue.age:.0f} s ago; since then: {queue.error}" if queue.error else ""


def _since(moment: float) -> float:
    return max(0.0, time.time() - moment)
