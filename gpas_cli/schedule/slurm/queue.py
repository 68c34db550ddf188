"""SLURM's report on all our jobs, and the state of a stage that a submission claims.

One query is cached in a file in runs/.slurm for the user's next commands.

Each user has a file: a site may show users only their own jobs.

The sources, in this order:

 1. squeue    the newest and most complete: a job's present state, why it is pending, when it may start, its position
              in line
 2. scontrol  the same controller's data in another form, if squeue is missing or refuses
 3. sacct     only for elements that the controller has forgotten, and only if they have ended: it lags by seconds,
              shows a requeued job as ended, and shows jobs that a crashed controller has lost as pending forever
 4. none      the last answer is kept and ages, with the reason; run directories (locks, journals, exit files) still
              show what runs, and the time until the next query grows with each failure

What accounting or an earlier answer reports about an ended job is kept: it will not change.

No source reports an element that `scancel` removed while it waited (SLURM 22.05). It is missing among elements that are
known, which `_removed` interprets.

In the state of a stage, the run directory takes precedence (`state.observe`). SLURM is queried only for a stage without
a result, to find out whether its job is still queued or running. If SLURM does not answer, only the age of the evidence
changes.
"""

import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path

from gpas_cli.errors import GpasError, user_name
from gpas_cli.schedule.retry import End, Step, given_up, is_memory, next_step
from gpas_cli.schedule.slurm import accounting, client, squeue, submission
from gpas_cli.schedule.slurm.client import SlurmError, seconds
from gpas_cli.schedule.slurm.job import CANCELLED, INTERRUPTED, MEMORY, NEVER, VANISHED, WHOLE, Job, Jobs, exit_words
from gpas_cli.schedule.slurm.submission import Submission, last_log_line
from gpas_cli.spec.run import Resources
from gpas_cli.state.attempt import JobExit, attempts_without_progress, end_of
from gpas_cli.state.cancellation import requested
from gpas_cli.state.claims import Claim
from gpas_cli.state.observe import observe
from gpas_cli.state.status import ALIVE, StageStatus
from gpas_cli.state.view import SchedulerView, facts_of, stage_title
from gpas_cli.store.rundir import AttemptDir, read_record, write_json
from gpas_cli.structure import ABSENT, Record, to_mapping

FRESH_SECONDS = 3.0  # seconds for which an answer is reused
_FRESH_LINE_SECONDS = 10.0  # the same if the jobs of all users are listed, a heavier query for the controller
_BACK_OFF_SECONDS = 5.0  # before a scheduler that did not answer is queried again; doubled each time
_LONGEST_BACK_OFF_SECONDS = 120.0
# Signals from outside that end a job: USR2 or TERM before it has handlers, KILL at its time limit or by the kernel.
_OUTSIDE_SIGNALS = frozenset({9, 12, 15})
_NO_LOG = 53  # slurmstepd's exit signal if it could not open the job's output
_OUTCOME_SECONDS = 60.0  # grace period before a COMPLETED job without an outcome counts as lost
_FINAL = ("done", "diverged", "failed", "cancelled")  # outcomes after which a job is not resumed
_SAVED_SECONDS = 60.0  # age at which an array is on the controller's disk, and survives its crash


@dataclass(frozen=True, kw_only=True)
class Queue(Record):
    """.queue-USER.json: an answer: job name -> array index -> job. `time` is when the scheduler gave it, 0 if it never
    has.

    `error` is why there is no newer answer, "" if this one is fresh. `own`: this process sent the query; the times of
    other answers may come from other clocks.
    """

    time: float = 0.0
    jobs: Mapping[str, Mapping[int, Job]] = field(default_factory=dict)
    error: str = ""
    failures: int = 0
    tried: float = 0.0
    line: bool = False  # whether positions in line were queried
    own: bool = field(default=False, metadata=ABSENT)

    def find(self, name: str, index: int) -> Job | None:
        """Return the element of the array of that name. SLURM keeps one record of an array cancelled as a whole."""
        elements = self.jobs.get(name, {})
        return elements.get(index) or elements.get(WHOLE)

    @property
    def age(self) -> float:
        return max(0.0, time.time() - self.time)


def current(runs: Path, max_age: float = FRESH_SECONDS, *, line: bool = False) -> Queue:
    """Return what SLURM reports now, or reported at most `max_age` seconds ago; else an older answer with an error.

    With `line`, the answer has the positions of waiting jobs.
    """
    known = _load(runs)
    if _within(known.time, max_age) and not known.error and (known.line or not line):
        return known
    back_off = min(_LONGEST_BACK_OFF_SECONDS, _BACK_OFF_SECONDS * 2 ** (known.failures - 1))
    if known.error and _within(known.tried, back_off):
        return known
    fresh = _ask(runs, known, line)
    with suppress(OSError):  # a read-only folder prevents the caching, not the answer
        write_json(_path(runs), to_mapping(replace(fresh, own=False)), indent=None)
    return fresh


def _within(moment: float, seconds: float) -> bool:
    """Return whether `moment` is at most `seconds` ago. False for a time in the future, given by a wrong clock."""
    return 0 <= time.time() - moment <= seconds


def _ask(runs: Path, known: Queue, line: bool) -> Queue:
    began = time.time()
    names = submission.open_names(runs)
    try:
        jobs = _with_past(runs, names, _live(names, line), known)
    except SlurmError as error:
        return replace(known, error=str(error), failures=known.failures + 1, tried=time.time(), own=True)
    return Queue(time=began, jobs=jobs, line=line, own=True)


def _live(names: list[str], line: bool) -> Jobs:
    """Return what the controller remembers of the arrays of these names."""
    try:
        return squeue.squeue(set(names), everyone=line)
    except SlurmError as error:
        # If the controller cannot be reached, scontrol would only wait for it a second time.
        if not error.answered and shutil.which("squeue"):
            raise
        try:
            return squeue.scontrol(set(names))
        except SlurmError:
            raise error from None


def _with_past(runs: Path, names: list[str], jobs: Jobs, known: Queue) -> Jobs:
    """Return `jobs`, the ended ones that the controller has forgotten, as known before or else from sacct, and those
    removed from the queue."""
    alive = set(jobs)
    for name in names:
        for index, job in known.jobs.get(name, {}).items():
            if job.ended and index not in jobs.get(name, {}):
                jobs.setdefault(name, {})[index] = job
    gone = {name: made for name in names if (made := _incomplete(runs, name, jobs))}
    if hidden := {name: id for name, made in gone.items() if name not in alive and (id := made.job())}:
        try:
            jobs |= (found := squeue.renamed(hidden))
            alive |= set(found)
            gone = {name: made for name, made in gone.items() if _incomplete(runs, name, jobs)}
        except SlurmError as error:
            if not error.answered:  # else the only id is unknown, or squeue is refused
                raise
    if not gone:
        return jobs
    answered = False
    lost = set[tuple[str, int]]()  # accounting shows jobs that a crashed controller has lost as pending
    if shutil.which("sacct"):
        with suppress(SlurmError):  # no accounting: a job that squeue does not list is gone; its end may be unknown
            for name, index, job in accounting.sacct({name: made.record.time for name, made in gone.items()}):
                if not job.ended:
                    lost.add((name, index))
                elif index not in jobs.get(name, {}):
                    jobs.setdefault(name, {})[index] = job
            answered = True
    recent = answered or _within(known.time, _remembered_seconds())
    for name, made in gone.items():
        before = known.jobs.get(name, {}) if recent else {}
        for index in {*_removed(made, jobs.get(name, {}), alive=name in alive)} - {i for n, i in lost if n == name}:
            # An element that waited a moment ago, or that accounting has never seen, did not start and end since.
            waited = index in before and before[index].pending
            state = CANCELLED if name in alive and (answered or waited) else VANISHED
            array = next(iter(jobs[name].values())).id.partition("_")[0]
            why = "removed from the queue before it started" if state == CANCELLED else ""
            jobs[name][index] = Job(f"{array}_{index}", state, why)
    return jobs


def _incomplete(runs: Path, name: str, jobs: Jobs) -> Submission | None:
    """Return a submission of which some elements are unaccounted for, else None."""
    made = submission.find(runs, name)
    known = jobs.get(name, {})
    complete = made is None or WHOLE in known or len(known) >= sum(map(bool, made.record.keys))
    return None if complete else made


def _removed(made: Submission, known: Mapping[int, Job], *, alive: bool) -> Iterator[int]:
    """Yield the elements of an array that SLURM removed before they started, to judge by the others, which are `known`.

    A controller that crashes loses young arrays, but whole ones. `alive`: it knows elements of this one now.
    """
    saved = any(max(job.start, job.end) - made.record.time > _SAVED_SECONDS for job in known.values())
    if WHOLE in known or not (alive or saved):
        return
    started = made.started()
    yield from (i for i, keys in enumerate(made.record.keys) if keys and i not in known and i not in started)


def _remembered_seconds() -> float:
    """Return for how long the controller remembers an ended job, 0 if unknown."""
    with suppress(GpasError):
        return seconds(client.configuration().get("MinJobAge", "0"))
    return 0.0


def _path(runs: Path) -> Path:
    return submission.folder(runs) / f".queue-{os.getuid()}.json"


def _load(runs: Path) -> Queue:
    try:
        found = read_record(Queue, _path(runs))
        # JSON has no numbers as names.
        jobs = {name: {int(index): job for index, job in rows.items()} for name, rows in found.jobs.items()}
        return replace(found, jobs=jobs)
    except (OSError, GpasError, ValueError):
        return Queue()


class SlurmView:
    """Snapshot of queue and submissions, taken once per scan of states."""

    def __init__(self, scan: SchedulerView, queue: Queue | None = None):
        self.scan = scan
        self.runs = scan.runs
        self.obstacle = cache(partial(_obstacle, self))
        # Why the rest of a submission is held back, "" if it is not.
        self.breaker = cache(lambda name: submission.breaker(submission.folder(scan.runs) / name))
        # The submission of a name, None if it is not on disk, like one that SLURM refused.
        self.made = cache(partial(submission.find, scan.runs))
        self._queue = queue
        self._dead: dict[str, float] = {}  # submitter -> when it was first seen to be dead

    @property
    def queue(self) -> Queue:
        """SLURM's report on all jobs, queried on first use."""
        if self._queue is None:
            usual = _FRESH_LINE_SECONDS if self.scan.line else FRESH_SECONDS
            wanted = self.scan.max_age_seconds
            self._ask(usual if wanted is None else wanted)
        assert self._queue is not None
        return self._queue

    def job_of(self, claim: Claim) -> Job | None:
        """Return the claim's element of its job array, None if the queue does not have it."""
        return self.queue.find(claim.submission, claim.index) if claim.submission else None

    def renew(self, since: float) -> None:
        """Query SLURM again if the answer is from before `since` (unix time)."""
        if self.queue.time < since:
            self._ask(max(0.0, time.time() - since))

    def queue_after(self, claim: Claim) -> Queue | None:
        """Return an answer given after the submitter was seen to be dead: only that proves that a job is missing.

        Return None while the submitter lives. If SLURM does not answer, the queue is an older one, with its error.
        """
        if claim.submitter not in self._dead:
            if self.scan.lives_now(claim):
                return None
            self._dead[claim.submitter] = time.time()
        if not self.queue.own or self.queue.time <= self._dead[claim.submitter]:
            self._ask(0.0)
        return self.queue

    def _ask(self, max_age_seconds: float) -> None:
        self._queue = current(self.runs, max_age_seconds, line=self.scan.line)


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
    lost = job is not None and job.state == VANISHED
    # SLURM may have removed what waited in vain.
    if lost and any(observe(view.runs, parent, view.scan).state != "done" for parent in claim.after):
        job = None
    if queue is None or job is None:
        return _given_up(view.runs, key, _unseen(view, last, claim, queue))
    if job.ended:
        return _given_up(view.runs, key, _ended(view.runs, last, claim, job, queue))
    return _under_way(last, claim, job, queue)


def _blocked(view: SlurmView, last: StageStatus, claim: Claim, job: Job | None) -> StageStatus | None:
    """Return `cancelled` for a stage whose job was not run because a prerequisite failed, else None."""
    for key in claim.after:
        if cause := view.obstacle(key):
            evidence = str(job or f"SLURM does not know {claim.submission}[{claim.index}]")
            stopped = replace(last, state="cancelled", evidence=evidence, cause=cause, blocker=key)
            return replace(stopped, claim=claim, job=job, outcome="")
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
    return replace(_queued(last, claim, evidence, queue.time, job), state="running", reached=reached)


def _queued(last: StageStatus, claim: Claim, evidence: str, since: float, job: Job | None = None) -> StageStatus:
    queued = replace(last, state="queued", evidence=evidence, cause="", age=_since(since))
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
    code, signal = exit_words(job.exit)
    if job.state == "CANCELLED":
        if job.reason == NEVER:
            return "interrupted", "removed from the queue: a job that it depends on did not succeed"
        return "cancelled", "cancelled in SLURM"
    if job.state == VANISHED:
        return "unknown", "someone removed it with scancel, or SLURM has lost it; `gpas retry` runs it"
    log = place / f"{job.id}_0_log.out"
    if job.state == MEMORY or (job.state == "FAILED" and is_memory(end_of(log))):
        return "interrupted", f"out of memory on {job.nodes}"
    if job.state in INTERRUPTED or job.state == "COMPLETED":
        return "interrupted", f"{job.state.lower().replace('_', ' ')}{f' on {job.nodes}' if job.nodes else ''}"
    if job.state == "FAILED" and (code == JobExit.INTERRUPTED or signal in _OUTSIDE_SIGNALS):
        return "interrupted", f"the job ended with exit status {job.exit or 'unknown'}"
    if signal == _NO_LOG:
        why = f"SLURM could not open the job's log on {job.nodes}; check that runs/ can be written there"
        return "interrupted", why
    line = last_log_line(log)
    how = f"{job.state.lower()}{f' with exit {job.exit}' if job.exit else ''}"
    return "failed", f"{how}: {line} ({log})" if line else how


def _stale(queue: Queue) -> str:
    return f" {queue.age:.0f} s ago; since then: {queue.error}" if queue.error else ""


def _since(moment: float) -> float:
    return max(0.0, time.time() - moment)
