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
from gpas_cli.launch.slurm.failures import breaker, count_failure, fewer_rows, fruitless, is_memory
from gpas_cli.launch.slurm.judge import asked_to_cancel
from gpas_cli.launch.slurm.submission import Submission
from gpas_cli.launch.spawn import JOB, record_exit
from gpas_cli.launch.submitters import claim_path, claims_lock, read_claim
from gpas_cli.launch.watch import EXIT_CANCELLED, RESULTS, alive_path, cancel_path, conclude_or_unknown, last_line
from gpas_cli.store.rundir import AttemptDir, attempts, create_attempt, read_json, write_json

POLL, LOOK = 0.2, 2.0  # seconds between two looks at the children, and at the files
READY = 20.0  # seconds after which a job is told to leave even if it has not put up its handlers
WARNINGS = (signal.SIGUSR2, signal.SIGTERM)


@dataclass
class Child:
    """The job of one attempt."""

    attempt: AttemptDir
    job: dict[str, Any]
    process: subprocess.Popen[bytes]
    since: float
    told: bool = False
    superseded: bool = False
    broken: dict[str, Any] | None = None  # how a task of higher rank ended, where it did so by itself

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
        # Not SLURM_JOB_ID: that of one element is the whole array's, and requeuing it would requeue all elements.
        self.job = f"{environ.get('SLURM_ARRAY_JOB_ID', '')}_{self.index}"
        self.environ = environ
        self.asked: int | None = None
        self.children: list[Child] = []

    def run(self) -> int:
        for number in WARNINGS:
            signal.signal(number, self._warned)
        for attempt, job in self._attempts():
            self.children.append(self._start(attempt, job))
        looked = 0.0
        while any(child.process.poll() is None for child in self.children) or self._once_more():
            time.sleep(POLL)
            if self.asked:
                for child in self.children:
                    child.leave()
            if self.rank == 0 and time.monotonic() - looked >= LOOK:
                looked = time.monotonic()
                self._look()
        for number in WARNINGS:  # one that comes as Python shuts down would make a job that is done a failed one
            signal.signal(number, signal.SIG_IGN)
        return self._end() if self.rank == 0 else self._report()

    def _report(self) -> int:
        """A task of higher rank leaves word of a failure and ends well: it is rank 0 that says what becomes of the job.

        Were this to end with an error, SLURM would kill rank 0 before it has recorded anything.
        """
        for child in self.children:
            code = child.process.wait()
            if code not in (0, states.EXIT_RESUME, EXIT_CANCELLED):
                ended = {"code": None if code < 0 else code, "signal": -code if code < 0 else None}
                said = last_line(child.attempt.path / f"log-rank{self.rank}.txt")
                word = {**ended, "error": f"rank {self.rank}: {said}"}
                write_json(child.attempt.path / f"rank{self.rank}.json", word)
        return 0

    def _warned(self, number: int, _frame: object) -> None:
        self.asked = self.asked if self.asked == signal.SIGUSR2 else number

    def _attempts(self) -> list[tuple[AttemptDir, dict[str, Any]]]:
        """The attempts of this start of the job: made by rank 0, and read by the others from its roster."""
        roster = self.made.folder / f"roster-{self.index}-{self.job}-{self.restart}.json"
        if self.rank == 0:
            found = [(a, job) for job in self.made.element(self.index) if (a := self._attempt(job))]
            if int(self.environ.get("SLURM_NTASKS", 1)) > 1:
                write_json(roster, {"attempts": [str(a.path) for a, _ in found]})
            return found
        while not roster.exists():  # rank 0 failing ends the step, and this task with it
            time.sleep(POLL)
        made = [AttemptDir(Path(path)) for path in read_json(roster)["attempts"]]
        return [(attempt, attempt.read_attempt()) for attempt in made]

    def _attempt(self, job: dict[str, Any]) -> AttemptDir | None:
        """The next attempt at a stage, or None (and the reason printed) where this element has nothing to do for it."""
        key = job["key"]
        with locks.locked(claims_lock(self.runs)):
            reason = self._unwanted(job)
            if reason:
                print(f"{job['grid']}/{job['name']} ({job['stage']}): {reason}")
                return None
            made = create_attempt(self.runs, key, self._facts(self._with_rows(job)))
            print(f"{job['grid']}/{job['name']} ({job['stage']}): attempt {made.number} in {made.path}")
            return made

    def _with_rows(self, job: dict[str, Any]) -> dict[str, Any]:
        """The job with the micro-batch of its last attempt if that was cut down, or half of it if memory ran out."""
        tries = attempts(self.runs, job["key"])
        before = tries[-1].read_attempt() if tries else {}
        rest = {name: value for name, value in job.items() if name != "reduce"}
        if before and job.get("reduce") and (rows := fewer_rows(tries[-1])):
            why = {"of": tries[-1].number, "why": f"out of memory; now {rows} rows at a time"}
            return {**rest, "resources": {**job["resources"], "micro_batch": rows}, "retry": why}
        if "retry" in before:
            rows = before["resources"]["micro_batch"]
            return {**rest, "resources": {**job["resources"], "micro_batch": rows}, "retry": before["retry"]}
        return rest

    def _unwanted(self, job: dict[str, Any]) -> str:
        """Why there is nothing to do for a stage, "" when there is. Call it with the lock of the claims held."""
        claim = read_claim(self.runs, job["key"])
        if any(conclude_or_unknown(attempt).state in RESULTS for attempt in attempts(self.runs, job["key"])):
            return "has its result already"
        if claim is None:
            return "nobody claims it any longer"
        if (claim.submission, claim.index) != (self.made.name, self.index):
            return f"claimed by {claim}"
        if asked_to_cancel(self.runs, job["key"], claim.since):
            return "cancelled before it started"
        if held := breaker(self.made.folder):
            return held
        lacking = [key for key in job["parents"] if not self._has_result(key)]
        # The claim stays: by it the state of the stage tells why it was not run.
        return f"needs {', '.join(lacking)}, which has no result" if lacking else ""

    def _has_result(self, key: str) -> bool:
        return any(conclude_or_unknown(attempt).state == "done" for attempt in attempts(self.runs, key))

    def _facts(self, job: dict[str, Any]) -> dict[str, Any]:
        about, project = self.made.record, self.made.record["project"]
        gpus, threads = job["resources"]["gpus"], job["threads"]
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
                "nodes": self.environ.get("SLURM_JOB_NODELIST", ""),
            },
            "devices": [f"gpu-{i}" for i in range(gpus)] or [f"cpu-{i}" for i in range(threads)],
            "cache": project["cache"],
            "root": str(Path(project["config"]).parent),
        }  # fmt: skip

    def _start(self, attempt: AttemptDir, job: dict[str, Any]) -> Child:
        tasks = int(self.environ.get("SLURM_NTASKS", 1))
        threads, together = str(max(1, job["threads"] // tasks)), ["--rank"] if tasks > 1 else []
        log = attempt.log_path if self.rank == 0 else attempt.path / f"log-rank{self.rank}.txt"
        alive = locks.hold(alive_path(attempt)) if self.rank == 0 else os.open(os.devnull, os.O_RDONLY)
        try:
            with log.open("ab") as file:
                process = subprocess.Popen(
                    [*JOB, str(attempt.path), *together],
                    env={**self.environ, **dict.fromkeys(THREAD_VARIABLES, threads), "PYTHONUNBUFFERED": "1"},
                    stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, pass_fds=(alive,),
                    preexec_fn=_die_with_parent,
                )  # fmt: skip
        finally:
            os.close(alive)
        return Child(attempt, job, process, time.monotonic())

    def _look(self) -> None:
        """Hear requests to cancel, and notice where this job is not the one that counts any more."""
        for child in self.children:
            if child.process.poll() is not None:
                continue
            if self._cancelled(child.attempt) or child.superseded:
                child.leave()
            elif broken := next(child.attempt.path.glob("rank[0-9]*.json"), None):
                child.broken = read_json(broken)  # the others would wait for it until their time is over
                child.process.kill()
            elif newer := self._newer(child.attempt):
                print(f"{child.attempt.path}: {newer}; leaving")
                child.superseded = True
                child.leave()

    def _cancelled(self, attempt: AttemptDir) -> bool:
        """Whether the cell is to be cancelled; the job looks for the word in its attempt when it is told to leave."""
        word = cancel_path(attempt.path)
        claim = read_claim(self.runs, attempt.key)
        if not word.exists() and claim is not None and asked_to_cancel(self.runs, attempt.key, claim.since):
            with suppress(OSError):
                write_json(word, {"t": time.time(), "signalled": True})
        return word.exists()

    def _newer(self, attempt: AttemptDir) -> str:
        """Why another job counts instead of this one: SLURM took its node for dead and started it elsewhere."""
        claim = read_claim(self.runs, attempt.key)
        if claim is not None and (claim.submission, claim.index) != (self.made.name, self.index):
            return f"now claimed by {claim}"
        last = max(a.number for a in attempts(self.runs, attempt.key))
        return f"attempt {last} has been started" if last > attempt.number else ""

    def _once_more(self) -> bool:
        """Start those again that ran out of memory, with half as many rows at a time. Whether there were any.

        Tasks of one job would have to agree on it: only a job of one task does this, others leave it to `gpas run`.
        """
        if self.rank or self.asked or int(self.environ.get("SLURM_NTASKS", 1)) > 1:
            return False
        again = [child for child in self.children if child.process.poll() is not None and self._out_of_memory(child)]
        for child in again:
            self.children.remove(child)
            self._record(child)
            job = {**child.job, "reduce": True}
            if attempt := self._attempt(job):
                self.children.append(self._start(attempt, job))
        return any(child.process.poll() is None for child in self.children)

    def _out_of_memory(self, child: Child) -> bool:
        code, seen = child.process.wait(), conclude_or_unknown(child.attempt)
        killed = code == -signal.SIGKILL and not child.told
        failed = seen.state == "failed" and is_memory(seen.cause)
        return (killed or failed) and not child.superseded and fewer_rows(child.attempt) > 0

    def _record(self, child: Child) -> int:
        """Write how the job ended; its exit code, or that of an interrupted one."""
        code = child.process.wait()
        if child.broken:
            record_exit(child.attempt, child.broken["code"], child.broken["signal"], error=child.broken["error"])
            return states.EXIT_RESUME if child.broken["signal"] else 1
        more = {"superseded": True} if child.superseded else {}
        record_exit(child.attempt, None if code < 0 else code, -code if code < 0 else None, **more)
        return states.EXIT_RESUME if child.superseded or code < 0 else code

    def _end(self) -> int:
        codes = []
        for child in self.children:
            codes.append(self._record(child))
            if codes[-1] != states.EXIT_RESUME:
                self._release(child.attempt.key)
            if codes[-1] == 1:
                self._failed(child)
        waiting = [child for child, code in zip(self.children, codes, strict=True) if code == states.EXIT_RESUME]
        if any(not child.superseded for child in waiting):
            return self._again(waiting)
        return 0 if 0 in codes or not codes else codes[0]

    def _failed(self, child: Child) -> None:
        """Hold the rest of the array back when too many of its cells fail alike."""
        seen = conclude_or_unknown(child.attempt)
        cause = count_failure(self.made.folder, self.index, seen.cause)
        if cause and not is_memory(cause):
            print(f"cells of this array fail alike ({cause}): the rest is held back")
            array = self.job.partition("_")[0]
            with suppress(SlurmError):  # where it fails, elements see the open breaker as they start
                commands.run("scancel", "--state=PENDING", f"--name={self.made.name}", array)

    def _release(self, key: str) -> None:
        """Give the claim back, if it is still ours: the run directory has the outcome."""
        with suppress(OSError, GpasError), locks.locked(claims_lock(self.runs)):
            claim = read_claim(self.runs, key)
            if claim is not None and (claim.submission, claim.index) == (self.made.name, self.index):
                claim_path(self.runs, key).unlink(missing_ok=True)

    def _again(self, waiting: list[Child]) -> int:
        """Have SLURM run this job once more, unless it is being cancelled; else the next `gpas run` submits it."""
        hopeless = [c for c in waiting if fruitless(self.runs, c.attempt.key) >= c.job["resources"]["retries"]]
        try:
            if len(hopeless) == len(waiting):
                print(f"not run again: {len(hopeless)} cells came no further in their last attempts")
            elif self.asked == signal.SIGTERM and not self._goes_on():
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
