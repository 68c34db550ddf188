"""One start of an array element, described by SLURM's environment variables, and the attempts that it creates.

The tasks of one start learn of their attempts from rosters that rank 0 writes: numbered files, each of which adds
attempts; the last one announces the end. If the process of a task of higher rank fails, the task records in a file of
the attempt how it ended; rank 0 decides what happens to the job.
"""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from gpas_cli.errors import GpasError
from gpas_cli.schedule.slurm import submission
from gpas_cli.schedule.slurm.retry import breaker, halved_micro_batch
from gpas_cli.schedule.slurm.submission import Submission
from gpas_cli.state import locks
from gpas_cli.state.attempt import conclude_or_unknown
from gpas_cli.state.cancellation import requested
from gpas_cli.state.claims import claim_path, read_claim
from gpas_cli.state.rerun import deciding
from gpas_cli.state.status import RESULTS
from gpas_cli.state.submitters import claims_lock
from gpas_cli.store.records import AttemptRecord, Author, ElementRecord, Retry, SlurmPlace, attempt_of
from gpas_cli.store.rundir import AttemptDir, attempts, create_attempt, read_json, write_json
from gpas_cli.worker.rendezvous import PORTS


class Start:
    """The start that this task belongs to. `environ` is the environment that SLURM sets for a task."""

    def __init__(self, place: Path, environ: Mapping[str, str] = os.environ):
        self.made: Submission = submission.read(place)
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
        return self.made.element(self.index)

    def attempt(self, job: ElementRecord) -> AttemptDir | None:
        """Create the next attempt at a stage. Return None, and print why, if nothing is to be done for the stage.

        Raises OSError if the attempt cannot be created.
        """
        with locks.locked(claims_lock(self.runs)):
            reason = self._unwanted(job)
            if reason:
                print(f"{job.grid}/{job.name} ({job.stage}): {reason}")
                return None
            made = create_attempt(self.runs, self._as_last_time(job, self._first(job)))
            print(f"{job.grid}/{job.name} ({job.stage}): attempt {made.number} in {made.path}")
            return made

    def claims(self, key: str) -> bool:
        """Return whether this element claims the stage."""
        claim = read_claim(self.runs, key)
        return claim is not None and (claim.submission, claim.index) == (self.made.name, self.index)

    def release(self, key: str) -> None:
        """Release the claim if it is still this element's: the run directory has the outcome."""
        with suppress(OSError, GpasError), locks.locked(claims_lock(self.runs)):
            if self.claims(key):
                claim_path(self.runs, key).unlink(missing_ok=True)

    def call(self, attempts: Sequence[AttemptDir], *, over: bool = False) -> None:
        """Write a roster, so that the other tasks start their processes of `attempts`; `over` marks the last one."""
        if self.tasks > 1:
            write_json(self._roster(), {"attempts": [str(attempt.path) for attempt in attempts], "over": over})
            self._rosters += 1

    def called(self) -> tuple[list[AttemptDir], bool] | None:
        """Return the next roster: attempts to start, and whether it is the last. None if there is no new one."""
        try:
            told = read_json(self._roster())
        except OSError:
            return None
        self._rosters += 1
        return [AttemptDir(Path(path)) for path in told["attempts"]], bool(told["over"])

    def _roster(self) -> Path:
        # After a crash a controller may start a job again as if for the first time; srun's port distinguishes the two.
        step = f"{self.job}-{self.restart}-{self.environ.get('SLURM_STEP_LAUNCHER_PORT', '')}"
        return self.made.folder / f"roster-{self.index}-{step}-{self._rosters}.json"

    def _as_last_time(self, job: ElementRecord, first: AttemptRecord) -> AttemptRecord:
        """Return the attempt `first`, changed in view of the last attempt.

        It has the last micro-batch if that was already reduced, half of it if memory ran out, and the reason why the
        stage is run again in this job.
        """
        tries = attempts(self.runs, job.key)
        if not tries:
            return first
        before = tries[-1].read_attempt()
        cut = before.retry is not None and before.retry.reduced
        made = replace(_with_rows(first, before.resources.micro_batch), retry=before.retry) if cut else first
        if job.reduce and (rows := halved_micro_batch(tries[-1])):
            evidence = f" ({job.reduce})" if isinstance(job.reduce, str) else ""
            why = f"out of memory{evidence}; now {rows} rows at a time"
            return replace(_with_rows(made, rows), retry=Retry(of=tries[-1].number, why=why, reduced=True))
        if job.again:
            return replace(made, retry=Retry(of=tries[-1].number, why=job.again, reduced=cut))
        return made

    def _unwanted(self, job: ElementRecord) -> str:
        """Return why nothing is to be done for a stage, "" if it is to be run. Call it with the claims' lock held."""
        claim = read_claim(self.runs, job.key)
        if any(conclude_or_unknown(attempt).state in RESULTS for attempt in deciding(self.runs, job.key)):
            return "has its result already"
        if claim is None:
            return "no longer claimed"
        if (claim.submission, claim.index) != (self.made.name, self.index):
            return f"claimed by {claim}"
        if requested(self.runs, job.key):
            return "cancelled before it started"
        if held := breaker(self.made.folder):
            return held
        lacking = [key for key in job.parents if not self._has_result(key)]
        # The claim stays, so that the state of the stage shows why it was not run.
        return f"needs {', '.join(lacking)}, which has no result" if lacking else ""

    def _has_result(self, key: str) -> bool:
        return any(conclude_or_unknown(attempt).state == "done" for attempt in deciding(self.runs, key))

    def _first(self, job: ElementRecord) -> AttemptRecord:
        """Return the record of the stage's first attempt."""
        about, gpus = self.made.record, job.resources.gpus
        devices = [f"gpu-{i}" for i in range(gpus)] or [f"cpu-{i}" for i in range(job.threads)]
        return attempt_of(
            job,
            executor="slurm",
            created=time.time(),
            code=about.code,
            git=about.git,
            submitter=Author(self.made.name, socket.gethostname(), os.getpid()),
            slurm=SlurmPlace(
                submission=self.made.name,
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


def _with_rows(asked: AttemptRecord, rows: int) -> AttemptRecord:
    return replace(asked, resources=replace(asked.resources, micro_batch=rows))


def free_port() -> int:
    """Return a free port for the rendezvous of an attempt's processes. Raises GpasError if none is free."""
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            return port
    raise GpasError(f"no port from {PORTS.start} to {PORTS.stop} is free")
