"""One start of an array element, as SLURM's environment variables describe it, and the attempts that it creates.

Rank 0 announces attempts to the other tasks of the start in rosters: numbered files, each with the attempts to start
next; the last one says that there will be no more. A task of higher rank whose process fails records in the attempt's
directory how it ended; rank 0 decides what happens to the job.
"""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gpas_cli.errors import GpasError
from gpas_cli.schedule.out_of_memory import adjusted_to_last_attempt
from gpas_cli.schedule.slurm import submission
from gpas_cli.schedule.slurm.retry import breaker
from gpas_cli.schedule.slurm.submission import Submission
from gpas_cli.state import locks
from gpas_cli.state.attempt import conclude_or_unknown
from gpas_cli.state.cancellation import requested
from gpas_cli.state.claims import read_claim, release_claim
from gpas_cli.state.rerun import deciding
from gpas_cli.state.status import RESULTS
from gpas_cli.state.submitters import claims_lock
from gpas_cli.store import rundir
from gpas_cli.store.records import AttemptRecord, Author, ElementRecord, Roster, SlurmPlace, attempt_of
from gpas_cli.store.rundir import AttemptDir, attempts, read_record, write_record
from gpas_cli.worker.rendezvous import PORTS


class ElementStart:
    """The start of an array element that this task belongs to. `environ` has the variables that SLURM sets."""

    def __init__(self, place: Path, environ: Mapping[str, str] = os.environ):
        self.submission: Submission = submission.read(place)
        self.runs = place.parents[1]
        self.environ = environ
        self.index = int(environ.get("SLURM_ARRAY_TASK_ID", 0))
        self.rank = int(environ.get("SLURM_PROCID", 0))
        self.node = environ.get("SLURMD_NODENAME", "")
        self.tasks = int(environ.get("SLURM_NTASKS", 1))
        self.restart = int(environ.get("SLURM_RESTART_COUNT", 0) or 0)
        # Not SLURM_JOB_ID: that of one element is the whole array's, and requeuing it would requeue all elements.
        self.job = f"{environ.get('SLURM_ARRAY_JOB_ID', '')}_{self.index}"
        self._rosters = 0

    @property
    def jobs(self) -> list[ElementRecord]:
        """The stage jobs of this element."""
        return self.submission.element(self.index)

    def create_attempt(self, job: ElementRecord) -> AttemptDir | None:
        """Create the next attempt at a stage. Return None, and print why, if the stage is not to be run.

        Raises OSError if the attempt cannot be created.
        """
        with locks.locked(claims_lock(self.runs)):
            reason = self._reason_to_skip(job)
            if reason:
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
        # After a crash a controller may start a job again as if for the first time; srun's port distinguishes the two.
        step = f"{self.job}-{self.restart}-{self.environ.get('SLURM_STEP_LAUNCHER_PORT', '')}"
        return self.submission.folder / f"roster-{self.index}-{step}-{self._rosters}.json"

    def _reason_to_skip(self, job: ElementRecord) -> str:
        """Return why a stage is not to be run, "" if it is. Call it with the claims' lock held."""
        claim = read_claim(self.runs, job.key)
        if any(conclude_or_unknown(attempt).state in RESULTS for attempt in deciding(self.runs, job.key)):
            return "has its result already"
        if claim is None:
            return "no longer claimed"
        if (claim.submission, claim.index) != (self.submission.name, self.index):
            return f"claimed by {claim}"
        if requested(self.runs, job.key):
            return "cancelled before it started"
        if held := breaker(self.submission.folder):
            return held
        missing = [key for key in job.parents if not self._has_result(key)]
        # The claim stays, so that the state of the stage shows why it was not run.
        return f"needs {', '.join(missing)}, which has no result" if missing else ""

    def _has_result(self, key: str) -> bool:
        return any(conclude_or_unknown(attempt).state == "done" for attempt in deciding(self.runs, key))

    def _initial_record(self, job: ElementRecord) -> AttemptRecord:
        """Return the record of the stage's first attempt."""
        about = self.submission.record
        gpus = job.resources.gpus
        devices = [f"gpu-{i}" for i in range(gpus)] or [f"cpu-{i}" for i in range(job.threads)]
        return attempt_of(
            job,
            executor="slurm",
            created=time.time(),
            code=about.code,
            git=about.git,
            submitter=Author(self.submission.name, socket.gethostname(), os.getpid()),
            slurm=SlurmPlace(
                submission=self.submission.name,
                index=self.index,
                job=self.job,
                restart=self.restart,
                nodes=self.environ.get("SLURM_JOB_NODELIST", ""),
                port=free_port() if self.tasks > 1 else None,
            ),
            devices=tuple(devices),
            cache=about.project.cache,
            root=str(Path(about.project.config).parent),
            threads=job.threads,
            unread=job.unread,
        )


def free_port() -> int:
    """Return a free port for the rendezvous of an attempt's processes. Raises GpasError if none is free."""
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            return port
    raise GpasError(f"no port from {PORTS.start} to {PORTS.stop} is free")
