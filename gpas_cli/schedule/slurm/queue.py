"""SLURM's report on all our jobs, and the state of a stage whose job has ended.

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
"""

import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path

from gpas_cli.errors import GpasError
from gpas_cli.period import seconds_since
from gpas_cli.schedule.batch import submission, view
from gpas_cli.schedule.batch.submission import Submission
from gpas_cli.schedule.batch.view import VANISHED, WHOLE
from gpas_cli.schedule.retry import is_memory
from gpas_cli.schedule.slurm import accounting, client, squeue
from gpas_cli.schedule.slurm.client import SlurmError, seconds
from gpas_cli.schedule.slurm.job import CANCELLED, INTERRUPTED, MEMORY, NEVER, Job, Jobs, exit_words
from gpas_cli.state.attempt import JobExit, end_of, last_line
from gpas_cli.state.claims import Claim
from gpas_cli.state.status import StageStatus
from gpas_cli.store.rundir import read_record, write_json
from gpas_cli.structure import to_mapping

PLACE = ".slurm"  # the folder of the submissions, in runs
FRESH_SECONDS = 3.0  # seconds for which an answer is reused
_FRESH_LINE_SECONDS = 10.0  # the same if the jobs of all users are listed, a heavier query for the controller
_BACK_OFF_SECONDS = 5.0  # before a scheduler that did not answer is queried again; doubled each time
_LONGEST_BACK_OFF_SECONDS = 120.0
# Signals from outside that end a job: USR2 or TERM before it has handlers, KILL at its time limit or by the kernel.
_OUTSIDE_SIGNALS = frozenset({9, 12, 15})
_NO_LOG = 53  # slurmstepd's exit signal if it could not open the job's output
_OUTCOME_SECONDS = 60.0  # grace period before a COMPLETED job without an outcome counts as lost
_SAVED_SECONDS = 60.0  # age at which an array is on the controller's disk, and survives its crash
# Lines that srun and slurmstepd print when a step ends, whatever the reason.
_ENDING = re.compile(
    r"(srun|slurmstepd\S*): .*(_step_signal|Exited with exit code|Job step aborted|forcing job termination"
    r"|got SIGCONT|Terminating StepId|\*\*\* (STEP|JOB)|task \d+: (Killed|Terminated)|Waiting up to)"
)


class Queue(view.Queue, kw_only=True):
    """.queue-USER.json: an answer, and how often SLURM has not answered since."""

    jobs: Mapping[str, Mapping[int, Job]] = field(default_factory=dict)
    failures: int = 0
    tried: float = 0.0
    line: bool = False  # whether positions in line were queried


def current(runs: Path, max_age: float | None = None, *, line: bool = False) -> Queue:
    """Return what SLURM reports now, or reported at most `max_age` seconds ago; else an older answer with an error.

    With `line`, the answer has the positions of waiting jobs.
    """
    if max_age is None:
        max_age = _FRESH_LINE_SECONDS if line else FRESH_SECONDS
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
    names = submission.open_names(runs / PLACE)
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
    made = submission.find(runs / PLACE / name)
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
    return runs / PLACE / f".queue-{os.getuid()}.json"


def _load(runs: Path) -> Queue:
    try:
        found = read_record(Queue, _path(runs))
        # JSON has no numbers as names.
        jobs = {name: {int(index): job for index, job in rows.items()} for name, rows in found.jobs.items()}
        return replace(found, jobs=jobs)
    except (OSError, GpasError, ValueError):
        return Queue()


def ended(place: Path, last: StageStatus, claim: Claim, job: Job, time: float) -> StageStatus:
    """Return the status of a job that had ended by `time`: its own outcome if it wrote one, else SLURM's reason.

    `place` is the folder of all submissions.
    """
    own = last.submission == claim.submission
    if own and last.source in ("outcome", "exit"):
        if last.state == "interrupted" and job.state == "CANCELLED":
            return replace(last, state="cancelled", evidence=f"{last.evidence}; {job}", job=job)
        return replace(last, job=job)
    if job.state == "COMPLETED" and seconds_since(job.end or time) < _OUTCOME_SECONDS:
        evidence = f"{job}; its outcome is not visible here yet"
        return replace(last, state="running", evidence=evidence, claim=claim, job=job, age=seconds_since(job.end))
    state, cause = _why(job, place / claim.submission)
    if state == "interrupted" and not last.attempt:
        state = "missing"
    age = seconds_since(job.end) if job.end else None
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


def last_log_line(log: Path) -> str:
    """Return the last line of a job's log, without the lines of srun and slurmstepd about the end of the step."""
    return last_line(log, _ENDING)
