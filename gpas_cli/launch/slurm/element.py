"""What a SLURM array element runs: `python -m gpas_cli.launch.slurm.element SUBMISSION_FOLDER`, once per task.

The task of rank 0 makes an attempt for each cell of its element and starts its job; tasks of higher rank start theirs
on the same attempts. It passes warning signals on, hears requests to cancel, sees how the jobs end, and asks SLURM to
run the element again where that is what is left to do. A job that SLURM starts again makes a new attempt.

Exit codes: 0 some cell has its result or nothing was to be done, 75 saved and to be run again, 1 failed, 130 cancelled.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpas_cli.errors import GpasError
from gpas_cli.launch import locks
from gpas_cli.launch.slots import THREAD_VARIABLES
from gpas_cli.launch.slurm import commands, states, submission
from gpas_cli.launch.slurm.commands import SlurmError
from gpas_cli.launch.slurm.judge import asked_to_cancel
from gpas_cli.launch.slurm.submission import Submission
from gpas_cli.launch.spawn import JOB, record_exit
from gpas_cli.launch.submitters import claim_path, claims_lock, read_claim
from gpas_cli.launch.watch import RESULTS, alive_path, cancel_path, conclude_or_unknown
from gpas_cli.store.rundir import AttemptDir, attempts, create_attempt, read_json, write_json

POLL, LOOK = 0.2, 2.0  # seconds between two looks at the children, and at the files
READY = 20.0  # seconds after which a job is told to leave even if it has not put up its handlers
WARNINGS = (signal.SIGUSR2, signal.SIGTERM)


@dataclass
class Child:
    """The job of one attempt."""

    attempt: AttemptDir
    process: subprocess.Popen[bytes]
    since: float
    told: bool = False
    superseded: bool = False

    def leave(self) -> None:
        """Ask the job to save and leave, once it can hear that."""
        ready = self.attempt.journal_path.exists() or time.monotonic() - self.since > READY
        if not self.told and ready:
            self.told = True
            with suppress(ProcessLookupError):
                self.process.terminate()


class Element:
    """One task of one array element. `environ` is what SLURM gives a task."""

    def __init__(self, place: Path, environ: Mapping[str, str] = os.environ):
        self.made: Submission = submission.read(place)
        self.runs = place.parents[1]
        self.index = int(environ.get("SLURM_ARRAY_TASK_ID", 0))
        self.rank = int(environ.get("SLURM_PROCID", 0))
        self.restart = int(environ.get("SLURM_RESTART_COUNT", 0) or 0)
        self.job = environ.get("SLURM_JOB_ID", "")
        self.environ = environ
        self.asked: int | None = None
        self.children: list[Child] = []

    def run(self) -> int:
        for number in WARNINGS:
            signal.signal(number, self._warned)
        for attempt, threads in self._attempts():
            self.children.append(self._start(attempt, threads))
        looked = 0.0
        while any(child.process.poll() is None for child in self.children):
            time.sleep(POLL)
            if self.asked:
                for child in self.children:
                    child.leave()
            if self.rank == 0 and time.monotonic() - looked >= LOOK:
                looked = time.monotonic()
                self._look()
        return self._end() if self.rank == 0 else max((c.process.wait() for c in self.children), default=0)

    def _warned(self, number: int, _frame: object) -> None:
        self.asked = self.asked if self.asked == signal.SIGUSR2 else number

    def _attempts(self) -> list[tuple[AttemptDir, int]]:
        """The attempts of this start of the job: made by rank 0, and read by the others from its roster."""
        roster = self.made.folder / f"roster-{self.index}-{self.job}-{self.restart}.json"
        if self.rank == 0:
            found = [(a, job["threads"]) for job in self.made.element(self.index) if (a := self._attempt(job))]
            if int(self.environ.get("SLURM_NTASKS", 1)) > 1:
                write_json(roster, {"attempts": [[str(a.path), threads] for a, threads in found]})
            return found
        while not roster.exists():  # rank 0 failing ends the step, and this task with it
            time.sleep(POLL)
        return [(AttemptDir(Path(path)), int(threads)) for path, threads in read_json(roster)["attempts"]]

    def _attempt(self, job: dict[str, Any]) -> AttemptDir | None:
        """The next attempt at a stage, or None (and the reason printed) where this element has nothing to do for it."""
        key = job["key"]
        with locks.locked(claims_lock(self.runs)):
            reason = self._unwanted(job)
            if reason:
                print(f"{job['grid']}/{job['name']} ({job['stage']}): {reason}")
                return None
            made = create_attempt(self.runs, key, self._facts(job))
            print(f"{job['grid']}/{job['name']} ({job['stage']}): attempt {made.number} in {made.path}")
            return made

    def _unwanted(self, job: dict[str, Any]) -> str:
        claim = read_claim(self.runs, job["key"])
        if any(conclude_or_unknown(attempt).state in RESULTS for attempt in attempts(self.runs, job["key"])):
            return "has its result already"
        if claim is None:
            return "nobody claims it any longer"
        if (claim.submission, claim.index) != (self.made.name, self.index):
            return f"claimed by {claim}"
        if asked_to_cancel(self.runs, job["key"], claim.since):
            return "cancelled before it started"
        lacking = [key for key in job["parents"] if not self._has_result(key)]
        return f"needs {', '.join(lacking)}, which has no result" if lacking else ""

    def _has_result(self, key: str) -> bool:
        return any(conclude_or_unknown(attempt).state == "done" for attempt in attempts(self.runs, key))

    def _facts(self, job: dict[str, Any]) -> dict[str, Any]:
        about, project = self.made.record, self.made.record["project"]
        gpus, threads = job["resources"]["gpus"], job["threads"]
        variables = {name: self.environ.get(f"SLURM_{name.upper()}", "") for name in ("array_job_id", "job_nodelist")}
        return {
            "schema": 1,
            **job,
            "executor": "slurm",
            "created": time.time(),
            "code": about["code"],
            "git": about["git"],
            "submitter": {"id": self.made.name, "host": socket.gethostname(), "pid": os.getpid()},
            "slurm": {
                "submission": self.made.name, "index": self.index, "job": self.job, "restart": self.restart,
                **variables,
            },
            "devices": [f"gpu-{i}" for i in range(gpus)] or [f"cpu-{i}" for i in range(threads)],
            "cache": project["cache"],
            "root": str(Path(project["config"]).parent),
        }  # fmt: skip

    def _start(self, attempt: AttemptDir, threads: int) -> Child:
        log = attempt.log_path if self.rank == 0 else attempt.path / f"log-rank{self.rank}.txt"
        alive = locks.hold(alive_path(attempt)) if self.rank == 0 else os.open(os.devnull, os.O_RDONLY)
        try:
            with log.open("ab") as file:
                process = subprocess.Popen(
                    [*JOB, str(attempt.path)],
                    env={**self.environ, **dict.fromkeys(THREAD_VARIABLES, str(threads)), "PYTHONUNBUFFERED": "1"},
                    stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, pass_fds=(alive,),
                    preexec_fn=_die_with_parent,
                )  # fmt: skip
        finally:
            os.close(alive)
        return Child(attempt, process, time.monotonic())

    def _look(self) -> None:
        """Hear requests to cancel, and notice where this job is not the one that counts any more."""
        for child in self.children:
            if child.process.poll() is not None:
                continue
            if cancel_path(child.attempt.path).exists():
                child.leave()
            elif newer := self._newer(child.attempt):
                print(f"{child.attempt.path}: {newer}; leaving")
                child.superseded = True
                child.leave()

    def _newer(self, attempt: AttemptDir) -> str:
        """Why another job counts instead of this one: SLURM took its node for dead and started it elsewhere."""
        claim = read_claim(self.runs, attempt.key)
        if claim is not None and (claim.submission, claim.index) != (self.made.name, self.index):
            return f"now claimed by {claim}"
        last = max(a.number for a in attempts(self.runs, attempt.key))
        return f"attempt {last} has been started" if last > attempt.number else ""

    def _end(self) -> int:
        codes = []
        for child in self.children:
            code = child.process.wait()
            more = {"superseded": True} if child.superseded else {}
            record_exit(child.attempt, None if code < 0 else code, -code if code < 0 else None, **more)
            codes.append(states.EXIT_RESUME if child.superseded or code < 0 else code)
            if codes[-1] != states.EXIT_RESUME:
                self._release(child.attempt.key)
        if states.EXIT_RESUME in codes and not all(child.superseded for child in self.children):
            return self._again()
        return 0 if 0 in codes or not codes else codes[0]

    def _release(self, key: str) -> None:
        """Give the claim back, if it is still ours: the run directory has the outcome."""
        with suppress(OSError, GpasError), locks.locked(claims_lock(self.runs)):
            claim = read_claim(self.runs, key)
            if claim is not None and (claim.submission, claim.index) == (self.made.name, self.index):
                claim_path(self.runs, key).unlink(missing_ok=True)

    def _again(self) -> int:
        """Have SLURM run this job once more, unless it is being cancelled; else the next `gpas run` submits it."""
        try:
            if self.asked == signal.SIGTERM and not self._goes_on():
                print("asked to end; not run again by itself")
            elif self.asked:
                commands.run("scontrol", "requeue", self.job)
                print(f"job {self.job} is queued again, to go on from the checkpoint")
        except SlurmError as error:
            print(f"{error}; the next `gpas run` submits what is left")
        return states.EXIT_RESUME

    def _goes_on(self) -> bool:
        """Whether a job that was sent TERM is being preempted rather than cancelled: it still counts as running."""
        told = commands.run("squeue", "-h", "-j", self.job, "-o", "%T")
        return states.plain(told.strip()) in ("RUNNING", "SIGNALING", "PREEMPTED", "TIMEOUT")


def _die_with_parent() -> None:
    """A supervisor that is killed takes its jobs along, rather than leaving them where SLURM does not see them."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


if __name__ == "__main__":
    sys.exit(Element(Path(sys.argv[1]).absolute()).run())
