"""One start of an array element, and the attempts that it creates.

Rank 0 announces attempts to the other tasks of the start in rosters: numbered files, each with the attempts to start
next; the last one says that there will be no more. A task of higher rank whose process fails records in the attempt's
directory how it ended; rank 0 decides what happens to the job.

SIGKILL alone is no evidence that memory ran out (`MemoryWatch`): either the kernel counts a process that its
out-of-memory killer has ended in this task's control group, or this task's jobs were near their limit for the node.
"""

import os
import random
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil

from gpas_cli.errors import GpasError
from gpas_cli.schedule.batch import submission
from gpas_cli.schedule.batch.submission import BatchError, Submission, breaker
from gpas_cli.schedule.retry import adjusted_to_last_attempt
from gpas_cli.spec.run import time_seconds
from gpas_cli.state import locks
from gpas_cli.state.attempt import conclude
from gpas_cli.state.cancellation import requested
from gpas_cli.state.claims import claims_lock, read_claim, release_claim
from gpas_cli.state.rerun import deciding
from gpas_cli.state.status import RESULTS
from gpas_cli.store import rundir
from gpas_cli.store.records import AttemptRecord, Author, ElementRecord, Roster, SlurmPlace
from gpas_cli.store.rundir import AttemptDir, attempts, read_record, write_record
from gpas_cli.worker.ranks import PORTS

_NEAR_LIMIT = 0.9  # share of the memory limit at which jobs count as having filled it: checks are seconds apart


class ElementStart:
    """The start of an array element that this task belongs to, here the only task of the only element.

    `name` distinguishes this start from others of the element. `memory` is the limit on this node in bytes, 0 if there
    is none.
    """

    index = rank = memory = 0
    tasks = 1
    name = node = ""
    place: SlurmPlace | None = None

    def __init__(self, place: Path, environ: Mapping[str, str] = os.environ):
        self.submission: Submission = submission.read(place)
        self.runs = place.parents[1]
        self.environ = environ
        self._rosters = 0

    def cancelled(self) -> str:
        """Return the evidence that a user removes this job, which was sent TERM; "" if it may be preempted."""
        return ""

    def requeue(self, exclude: str = "") -> None:
        """Requeue this job, on another node than `exclude`. Raises BatchError."""
        raise BatchError("jobs are not requeued here")

    def remove_waiting(self) -> None:
        """Remove the elements of this array that wait from the queue. Raises BatchError."""

    def seconds_to_warning(self) -> int:
        """Return after how many seconds the jobs are to save and exit, 0 if the system warns them of its limit."""
        asked = self.submission.element(self.index)[0].resources.first
        limit = time_seconds(str(asked.time))
        return max(1, limit - asked.notice) if limit else 0

    @property
    def jobs(self) -> list[ElementRecord]:
        """The stage jobs of this element. A later start does not repeat what the submission changed for its first."""
        found = self.submission.element(self.index)
        return [replace(job, reduce=False, again="") if self._tried(job.key) else job for job in found]

    def _tried(self, key: str) -> bool:
        """Return whether this submission has made an attempt at the stage."""
        with suppress(IndexError, OSError, GpasError):
            return attempts(self.runs, key)[-1].read_attempt().submitter.id == self.submission.name
        return False

    def create_attempt(self, job: ElementRecord) -> AttemptDir | None:
        """Create the next attempt at a stage. Return None, and print why, if the stage is not to be run.

        Raises OSError if the attempt cannot be created.
        """
        with locks.locked(claims_lock(self.runs)):
            if reason := self._reason_to_skip(job):
                print(f"{job.grid}/{job.name} ({job.stage}): {reason}")
                return None
            tries = attempts(self.runs, job.key)
            record = adjusted_to_last_attempt(self._initial_record(job), tries, reduce=job.reduce, again=job.again)
            made = rundir.create_attempt(self.runs, record)
            print(f"{job.grid}/{job.name} ({job.stage}): attempt {made.number} in {made.path}")
            return made

    def claims(self, key: str) -> bool:
        """Return whether this element claims the stage."""
        claim = read_claim(self.runs, key)
        return claim is not None and (claim.submission, claim.index) == (self.submission.name, self.index)

    def release(self, key: str) -> None:
        """Release the claim if this element still holds it, since the run directory has the outcome."""
        with suppress(OSError, GpasError):
            release_claim(self.runs, key, self.submission.name, self.index)

    def publish_roster(self, attempts: Sequence[AttemptDir], *, over: bool = False) -> None:
        """Write a roster, so that the other tasks start their processes of `attempts`; `over` marks the last one."""
        if self.tasks > 1:
            roster = Roster(attempts=tuple(str(attempt.path) for attempt in attempts), over=over)
            write_record(self._roster_path(), roster)
            self._rosters += 1

    def next_roster(self) -> tuple[list[AttemptDir], bool] | None:
        """Return the next roster: attempts to start, and whether it is the last. None if there is no new one."""
        try:
            roster = read_record(Roster, self._roster_path())
        except OSError:
            return None
        self._rosters += 1
        return [AttemptDir(Path(path)) for path in roster.attempts], roster.over

    def _roster_path(self) -> Path:
        return self.submission.folder / f"roster-{self.index}-{self.name}-{self._rosters}.json"

    def _reason_to_skip(self, job: ElementRecord) -> str:
        """Return why a stage is not to be run, "" if it is. Call it with the claims' lock held."""
        claim = read_claim(self.runs, job.key)
        if any(conclude(attempt).state in RESULTS for attempt in deciding(self.runs, job.key)):
            return "already has its result"
        if claim is None:
            return "no longer claimed"
        if (claim.submission, claim.index) != (self.submission.name, self.index):
            return f"claimed by {claim}"
        if requested(self.runs, job.key):
            return "cancelled before it started"
        if held := breaker(self.submission.folder):
            return held
        needed = (*job.parents, *([job.trunk.key] if job.trunk else []))
        missing = [key for key in needed if not any(conclude(one).state == "done" for one in deciding(self.runs, key))]
        # The claim stays, so that the state of the stage shows why it was not run.
        return f"needs {', '.join(missing)}, which has no result" if missing else ""

    def _initial_record(self, job: ElementRecord) -> AttemptRecord:
        """Return the record of the stage's first attempt."""
        about = self.submission.record
        devices = [f"gpu-{i}" for i in range(job.resources.gpus)] or [f"cpu-{i}" for i in range(job.threads)]
        return AttemptRecord.of(
            job, executor=self.submission.folder.parent.name.removeprefix("."), created=time.time(), code=about.code,
            git=about.git, submitter=Author(self.submission.name, socket.gethostname(), os.getpid()),
            slurm=self.place and replace(self.place, port=_free_port() if self.tasks > 1 else None),
            devices=tuple(devices), cache=about.project.cache, root=str(Path(about.project.config).parent),
            threads=job.threads, unread=job.unread,
        )  # fmt: skip


def _free_port() -> int:
    """Return a free port for the rendezvous of an attempt's processes. Raises GpasError if none is free."""
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            return port
    raise GpasError(f"no port from {PORTS.start} to {PORTS.stop} is free")


class MemoryWatch:
    """The memory use of this task's jobs. `limit`: in bytes, 0 if there is none."""

    def __init__(self, limit: int):
        self.limit = limit
        self.reset()

    def reset(self) -> None:
        """Discard earlier measurements. Call it before jobs start."""
        self._used = 0
        self._cells = 0
        self._kills = _kernel_kills()

    def measure(self, pids: Iterable[int]) -> None:
        """Record the memory that the processes `pids` and their descendants use now."""
        if memory := [used for pid in pids if (used := _resident(pid))]:
            self._used, self._cells = sum(memory), len(memory)

    def evidence(self) -> str:
        """Return why jobs that were killed since `reset` count as out of memory, "" without evidence."""
        if _kernel_kills() > self._kills:
            return "the kernel's out-of-memory killer ended a process of the job"
        if self.limit and self._used >= _NEAR_LIMIT * self.limit:
            who = f"the {self._cells} cells of its job used" if self._cells > 1 else "it used"
            return f"{who} {self._used >> 20} MiB of {self.limit >> 20} MiB"
        return ""


def _resident(pid: int) -> int:
    """Return the resident memory of a process and its descendants in bytes, 0 if the process has ended."""
    found = 0
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):
                found += each.memory_info().rss
    return found


def _kernel_kills(groups: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many processes of this control group the kernel's out-of-memory killer has ended, 0 if unknown."""
    with suppress(OSError):
        for line in groups.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            place = mount / controllers / path.lstrip("/")
            if not controllers or "memory" in controllers.split(","):
                name = "memory.oom_control" if controllers else "memory.events"
                with suppress(OSError):
                    words = (place / name).read_text().split()
                    return number(dict(zip(words[::2], words[1::2], strict=False)).get("oom_kill", ""))
    return 0


def number(text: str) -> int:
    """Return a number, 0 for a text that is not one."""
    return int(text) if text.isdigit() else 0
