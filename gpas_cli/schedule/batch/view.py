"""The state of a stage that a submission claims: run directory + claim + queue -> `StageStatus`.

The run directory takes precedence (`state.observe`). The batch system is asked only for a stage without a result, to
find out whether its job is still queued or running. If it does not answer, only the age of the evidence changes.
"""

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from functools import cache, cached_property, partial
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar

from gpas_cli.errors import GpasError, user_name
from gpas_cli.period import seconds_since
from gpas_cli.plan.machine import Cluster
from gpas_cli.project import Project
from gpas_cli.schedule.batch import script, submission
from gpas_cli.schedule.batch.submission import Array, BatchError, Submission
from gpas_cli.schedule.process import Cancelling, cancel_process, failed
from gpas_cli.schedule.retry import End, Step, given_up, next_step
from gpas_cli.schedule.scheduler import RunRequest, Scheduler
from gpas_cli.spec.run import Resources
from gpas_cli.state.attempt import attempts_without_progress, last_line
from gpas_cli.state.cancellation import request, requested
from gpas_cli.state.claims import Claim
from gpas_cli.state.observe import observe
from gpas_cli.state.status import ALIVE, UNREADABLE, CellStatus, SchedulerJob, StageStatus
from gpas_cli.state.view import SchedulerView, facts_of, stage_title
from gpas_cli.store.rundir import AttemptDir, stage_dir
from gpas_cli.store.snapshot import Snapshot
from gpas_cli.structure import ABSENT, Record, to_mapping

_FINAL = ("done", "diverged", "failed", "cancelled")  # outcomes after which a job is not resumed
_TOGETHER = 1000  # elements of one array that are removed from the queue in one call
RUNNING = "RUNNING"  # the state of a job whose processes can be asked to exit
VANISHED = "VANISHED"  # the state of a job that the system no longer reports, if why is not certain
WHOLE = -1  # stands for every index of an array without a separate record


class BatchJob(SchedulerJob):
    """A job of a batch system, or one element of an array. A system without arrays need not list those that ended."""

    @property
    def array(self) -> str:
        """The id of the whole array, which is the job's own if there are no arrays."""
        return self.id

    @property
    def ended(self) -> bool:
        return False


class Queue(Record, kw_only=True):
    """An answer: job name -> array index -> job."""

    time: float = 0.0  # when the scheduler gave it, 0 if it never has
    jobs: Mapping[str, Mapping[int, BatchJob]] = field(default_factory=dict)
    error: str = ""  # why there is no newer answer, "" if this one is fresh
    own: bool = field(default=False, metadata=ABSENT)
    """This process sent the query; the times of other answers may come from other clocks."""

    def find(self, name: str, index: int) -> BatchJob | None:
        """Return the element of the array of that name. SLURM keeps one record of an array cancelled as a whole."""
        elements = self.jobs.get(name, {})
        return elements.get(index) or elements.get(WHOLE)


class BatchView(Scheduler):
    """A scheduler of a batch system: what the system gives, and a snapshot of its queue and of the submissions.

    Its methods raise BatchError if the system refuses or does not answer. A claim counts while the system has, or may
    yet have, the job that it names.
    """

    name: ClassVar[str]  # of the scheduler
    title: ClassVar[str]  # of the system, in messages
    full: ClassVar[tuple[str, ...]] = ()  # texts of a refusal because of too many jobs, in small letters
    own_limit: ClassVar[tuple[str, ...]] = ()  # texts of one because of the user's jobs, which may be of other projects
    foreground = False
    machine = staticmethod(Cluster)

    def options(self, project: Project, asked: Resources, after: Sequence[str] = ()) -> Any:
        """Return what a job with these resources asks the system for, to start when the jobs `after` have succeeded.

        Raises GpasError if there can be no such job. Jobs with equal options can share an array.
        """
        raise NotImplementedError

    def script(self, request: RunRequest, array: Array, place: Path, code: Snapshot) -> str:
        """Return the script of the submission that will be in `place`, which starts its supervisors."""
        return script.plain(request.project, array.first.resources, place, code)

    def start(self, request: RunRequest, array: Array, made: Submission) -> str:
        """Submit the script of a submission, under the submission's name. Return its id, "" if it is unknown."""
        raise NotImplementedError

    def ask(self, ids: Sequence[str]) -> Mapping[str, BatchJob]:
        """Return the jobs with these ids, of all if there are none, that have not ended, by name."""
        raise NotImplementedError

    def remove(self, array: str, indices: Sequence[int]) -> None:
        """Remove elements of an array, given its id, from the queue."""
        raise NotImplementedError

    # The rest is for systems with arrays, and with answers that are worth keeping.

    def largest(self) -> int:
        """Return the maximum number of elements of an array."""
        return 1

    def current(self, max_age_seconds: float | None = None) -> Queue:
        """Return what the system reports now, or reported at most that many seconds ago; else an error, perhaps with
        an older answer."""
        began, names = time.time(), submission.open_names(self.place)
        made = {name: one for name in names if (one := submission.find(self.place / name))}
        ids = [one.job() for one in made.values()]
        try:
            found = self.ask(ids if all(ids) else ())  # a job without an id is searched for among all
        except BatchError as error:
            return Queue(error=str(error))
        return Queue(time=began, jobs={name: {0: job} for name, job in found.items() if name in made}, own=True)

    def ended(self, last: StageStatus, claim: Claim, job: Any, time: float) -> StageStatus:
        """Return the status of a stage whose job had ended by that time, when the system gave its answer."""
        raise NotImplementedError

    def __init__(self, scan: SchedulerView):
        super().__init__(scan)
        self.runs = scan.runs
        self.place = scan.runs / f".{self.name}"
        self.obstacle = cache(partial(_obstacle, self))
        # Why the rest of a submission is held back, "" if it is not.
        self.breaker = cache(lambda name: submission.breaker(self.place / name))
        # The submission of a name, None if it is not on disk, like one that was refused.
        self.made = cache(lambda name: submission.find(self.place / name))
        self.seen: Mapping[str, StageStatus] = {}  # the stages of a request, just before submission
        self._dead: dict[str, float] = {}  # submitter -> when it was first seen to be dead

    @cached_property
    def queue(self) -> Queue:
        """The system's report on all jobs, queried on first use."""
        return self.current(self.scan.max_age_seconds)

    def job_of(self, claim: Claim) -> BatchJob | None:
        """Return the claim's element of its job array, None if the queue does not have it."""
        return self.queue.find(claim.submission, claim.index) if claim.submission else None

    def describe(self, claim: Claim, key: str) -> Mapping[str, Any]:
        made = self.made(claim.submission)
        jobs = made.element(claim.index) if made else []
        return next((to_mapping(job) for job in jobs if job.key == key), {})

    def log_of(self, claim: Claim) -> Path | None:
        made = self.made(claim.submission)
        return made.log(claim.index) if made else None

    def queue_after(self, claim: Claim) -> Queue | None:
        """Return an answer given after the submitter was seen to be dead: only that proves that a job is missing.

        Return None while the submitter lives. If the system does not answer, the queue has its error and perhaps older
        jobs, and this scan does not ask again: each of its stages would wait for the answer.
        """
        if claim.submitter not in self._dead:
            if self.scan.lives_now(claim):
                return None
            self._dead[claim.submitter] = time.time()
        if not self.queue.error and (not self.queue.own or self.queue.time <= self._dead[claim.submitter]):
            self.queue = self.current(0.0)
        return self.queue

    def cancel(self, stages: Sequence[tuple[CellStatus, Claim]]) -> Iterable[Cancelling]:
        """Write a request for each stage, and remove from the queue the jobs that have nothing else to run.

        The queue must have been queried just now. The requests are written first and are sufficient: if the system does
        not answer, a job starts, reads the request and exits.
        """
        # A `gpas run` has just claimed the stages without a submission to submit them.
        done = {one.key: cancel_process(self.scan, one, claim) for one, claim in stages if not claim.submission}
        mine = [(status, claim) for status, claim in stages if claim.submission]
        for status, _ in mine:
            try:
                request(stage_dir(self.runs, status.key))
            except UNREADABLE as error:
                done[status.key] = failed(status, error)
        idle: dict[str, list[tuple[int, CellStatus, BatchJob]]] = {}  # array -> its jobs that have nothing else to run
        for status, claim in (one for one in mine if one[0].key not in done):
            job, made = self.job_of(claim), self.made(claim.submission)
            cells = made.record.keys[claim.index] if made else ()
            if job is None or job.ended:
                what = "its job will skip this cell"
            elif job.state == RUNNING:
                what = "its job will save and exit within seconds"
            elif all(key == status.key or requested(self.runs, key) for key in cells):
                idle.setdefault(job.array, []).append((claim.index, status, job))
                continue
            else:
                what = f"{self.title} {job.id} runs its other cells without it"
            done[status.key] = Cancelling(status, True, what)
        for array, jobs in idle.items():
            jobs.sort(key=itemgetter(0))
            for i in range(0, len(jobs), _TOGETHER):
                some, what = jobs[i : i + _TOGETHER], ""
                try:
                    self.remove(array, sorted({index for index, _, _ in some}))
                except BatchError as error:
                    what = f"its job will exit when it starts ({error})"
                for _, status, job in some:
                    text = what or f"removed from the queue ({self.title} {job.id})"
                    done[status.key] = Cancelling(status, True, text)
        return done.values()

    def state_of(self, key: str, last: StageStatus, claim: Claim) -> StageStatus:
        """Return the status of a stage from the queue. A claim without an array belongs to a submitting process."""
        if not claim.submission:
            return self.scan.with_submitter(last, claim)
        own = last.submission == claim.submission
        if own and last.state in _FINAL and last.source in ("outcome", "exit"):
            return last
        if not own and requested(self.runs, key):
            return replace(last, state="cancelled", evidence="cancelled before its job started", cause="", claim=claim)
        if not own and (held := self.breaker(claim.submission)):
            return replace(last, state="cancelled", evidence="its job was not started", cause=held, claim=claim)
        # An answer from before the attempt ended does not show that end.
        ended = time.time() - last.age if own and last.age is not None and last.state not in ALIVE else 0.0
        if self.queue.time < ended and not self.queue.error:
            self.queue = self.current(seconds_since(ended))
        queue: Queue | None = self.queue
        job = self.job_of(claim)
        if job is None:
            queue = self.queue_after(claim)
            job = self.job_of(claim) if queue else None
        gone = job.ended if job else queue is not None and not queue.error
        if gone and not own and (found := _blocked(self, last, claim, job)):
            return found
        lost = job is not None and job.state == VANISHED
        # The system may have removed what waited in vain.
        if lost and any(observe(self.runs, parent, self.scan).state != "done" for parent in claim.after):
            job = None
        if queue is None or job is None:
            return _given_up(self.runs, key, _unseen(self, last, claim, queue))
        if job.ended:
            return _given_up(self.runs, key, self.ended(last, claim, job, queue.time))
        return _under_way(last, claim, job, queue)


def _blocked(view: BatchView, last: StageStatus, claim: Claim, job: BatchJob | None) -> StageStatus | None:
    """Return `cancelled` for a stage whose job was not run because a prerequisite failed, else None."""
    for key in claim.after:
        if cause := view.obstacle(key):
            evidence = str(job or f"{view.title} does not know {claim.submission}[{claim.index}]")
            stopped = replace(last, state="cancelled", evidence=evidence, cause=cause, blocker=key)
            return replace(stopped, claim=claim, job=job, outcome="")
    return None


def _obstacle(view: BatchView, key: str) -> str:
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


def _unseen(view: BatchView, last: StageStatus, claim: Claim, queue: Queue | None) -> StageStatus:
    """Return the status if the queue does not have the job: not yet, no longer, or the system did not answer."""
    if queue is None:
        return _queued(last, claim, f"being submitted by {claim.submitter}", claim.time)
    made = view.made(claim.submission)
    if made is None:  # refused, or removed
        return last
    if queue.error:
        return _queued(last, claim, f"submitted as {claim.submission}; {queue.error}", claim.time)
    owner = (made.folder / "submission.json").stat().st_uid
    if os.getuid() not in (0, owner):
        user = user_name(owner)
        evidence = f"{user} submitted it as {claim}; {view.title} does not show you this job, which may still exist"
        return replace(last, state="unknown", evidence=evidence, cause="", age=None, claim=claim)
    if last.state == "interrupted" and last.submission == claim.submission and last.source in ("outcome", "exit"):
        return last  # only the job itself knows why it exited
    log = view.log_of(claim)
    if log and last.submission != claim.submission and (line := last_line(log)).startswith("resources.setup failed"):
        return replace(last, state="failed", cause=f"{line} ({log})", claim=claim)
    if last.state in ("missing", "interrupted", "unknown", "running"):
        cause = f"{view.title} does not know {claim.submission}[{claim.index}]; the next `gpas run grid` submits it"
        return replace(last, state="interrupted" if last.attempt else "missing", cause=cause)
    return last


def _under_way(last: StageStatus, claim: Claim, job: BatchJob, queue: Queue) -> StageStatus:
    why = f": {last.cause}" if last.cause else ""
    own = last.attempt and last.submission == claim.submission
    before = f", after attempt {last.attempt} ({last.state}{why})" if own else ""
    if job.pending:
        return _queued(last, claim, f"{job}{before}{stale(queue)}", queue.time, job)
    # The lock of an attempt is better evidence; without one, the job is starting or is between two attempts.
    evidence = f"{job}{before or ', no attempt yet'}{stale(queue)}"
    # The last attempt's speed says nothing about when this job ends: its node may have failed.
    reached = replace(last.progress, eta=None, tokens_per_second=None, mfu=None) if last.progress else None
    return replace(_queued(last, claim, evidence, queue.time, job), state="running", reached=reached)


def _queued(last: StageStatus, claim: Claim, evidence: str, since: float, job: BatchJob | None = None) -> StageStatus:
    queued = replace(last, state="queued", evidence=evidence, cause="", age=seconds_since(since))
    return replace(queued, claim=claim, job=job, outcome="")


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


def stale(queue: Queue) -> str:
    return f" {seconds_since(queue.time):.0f} s ago; since then: {queue.error}" if queue.error else ""
