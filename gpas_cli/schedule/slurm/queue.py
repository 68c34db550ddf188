"""SLURM's report on all our jobs: one query, cached in a file in runs/.slurm for the user's next commands.

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
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpas_cli.errors import GpasError
from gpas_cli.schedule.slurm import client, reports, submission
from gpas_cli.schedule.slurm.client import SlurmError, seconds
from gpas_cli.schedule.slurm.reports import WHOLE, Job, Jobs
from gpas_cli.schedule.slurm.submission import Submission
from gpas_cli.state.claims import Claim
from gpas_cli.state.view import SchedulerView
from gpas_cli.store.rundir import read_record, write_json
from gpas_cli.structure import ABSENT, Record, to_mapping

FRESH_SECONDS = 3.0  # seconds for which an answer is reused
_FRESH_LINE_SECONDS = 10.0  # the same if the jobs of all users are listed, a heavier query for the controller
_BACK_OFF_SECONDS = 5.0  # before a scheduler that did not answer is queried again; doubled each time
_LONGEST_BACK_OFF_SECONDS = 120.0
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
        return reports.squeue(set(names), everyone=line)
    except SlurmError as error:
        # If the controller cannot be reached, scontrol would only wait for it a second time.
        if not error.answered and shutil.which("squeue"):
            raise
        try:
            return reports.scontrol(set(names))
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
        with suppress(SlurmError):  # such as that the only id is unknown
            jobs |= (found := reports.renamed(hidden))
            alive |= set(found)
            gone = {name: made for name, made in gone.items() if _incomplete(runs, name, jobs)}
    if not gone:
        return jobs
    answered = False
    lost = set[tuple[str, int]]()  # accounting shows jobs that a crashed controller has lost as pending
    if shutil.which("sacct"):
        with suppress(SlurmError):  # no accounting: a job that squeue does not list is gone; its end may be unknown
            for name, index, job in reports.sacct({name: made.since for name, made in gone.items()}):
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
            state = reports.CANCELLED if name in alive and (answered or waited) else reports.VANISHED
            array = next(iter(jobs[name].values())).id.partition("_")[0]
            why = reports.REMOVED if state == reports.CANCELLED else ""
            jobs[name][index] = Job(f"{array}_{index}", state, why)
    return jobs


def _incomplete(runs: Path, name: str, jobs: Jobs) -> Submission | None:
    """Return a submission of which some elements are unaccounted for, else None."""
    made = submission.find(runs, name)
    known = jobs.get(name, {})
    complete = made is None or WHOLE in known or len(known) >= sum(map(bool, made.keys))
    return None if complete else made


def _removed(made: Submission, known: Mapping[int, Job], *, alive: bool) -> Iterator[int]:
    """Yield the elements of an array that SLURM removed before they started, to judge by the others, which are `known`.

    A controller that crashes loses young arrays, but whole ones. `alive`: it knows elements of this one now.
    """
    saved = any(max(job.start, job.end) - made.since > _SAVED_SECONDS for job in known.values())
    if WHOLE in known or not (alive or saved):
        return
    started = made.started()
    yield from (i for i, keys in enumerate(made.keys) if keys and i not in known and i not in started)


def _remembered_seconds() -> float:
    """Return for how long the controller remembers an ended job, 0 if unknown."""
    try:
        return seconds(client.configuration().get("MinJobAge", "0"))
    except GpasError:
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
        self.obstacles: dict[str, str] = {}  # key -> why a stage that builds on it cannot run, "" if it can
        self._queue = queue
        self._dead: dict[str, float] = {}  # submitter -> when it was first seen to be dead
        self._held: dict[str, str] = {}
        self._made: dict[str, Submission | None] = {}

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

    def breaker(self, name: str) -> str:
        """Return why the rest of a submission is held back, "" if it is not."""
        if name not in self._held:
            self._held[name] = submission.breaker(submission.folder(self.runs) / name)
        return self._held[name]

    def made(self, name: str) -> Submission | None:
        """Return the submission, None if it is not on disk, like one that SLURM refused."""
        if name not in self._made:
            self._made[name] = submission.find(self.runs, name)
        return self._made[name]

    def _ask(self, max_age_seconds: float) -> None:
        self._queue = current(self.runs, max_age_seconds, line=self.scan.line)
