"""The program of a job: `python -m gpas_cli.schedule.batch.supervisor SUBMISSION_FOLDER`, once per task.

The task of rank 0 creates an attempt for each cell of its element and starts its job; tasks of higher rank start
their processes of the same attempts. Rank 0 passes warning signals on, reads requests to cancel, observes how the jobs
end, and starts those again that ran out of memory or were killed. If the element has to be run again, rank 0 requeues
it where the system can do that. A job that the system starts again makes a new attempt.

Exit codes: 0 some cell has its result or there was nothing to do, 75 saved, to be run again, 1 failed, 130 cancelled.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from gpas_cli.errors import GpasError
from gpas_cli.files import append_regular
from gpas_cli.plan.machine import THREAD_VARIABLES
from gpas_cli.schedule.batch.element import ElementStart, MemoryWatch
from gpas_cli.schedule.batch.submission import BatchError, breaker, count_failure
from gpas_cli.schedule.process import JOB, record_exit
from gpas_cli.schedule.retry import End, Step, halved_micro_batch, is_memory, next_step, reached_limit
from gpas_cli.state import locks
from gpas_cli.state.attempt import JobExit, alive_path, attempts_without_progress, conclude, last_line
from gpas_cli.state.cancellation import request, request_path, requested
from gpas_cli.state.claims import read_claim
from gpas_cli.store.records import ElementRecord, RankExit
from gpas_cli.store.rundir import AttemptDir, attempts, read_record, write_record
from gpas_cli.worker.ranks import GPUS, outlive_log, recorded_failure

_KILLED = "killed by SIGKILL without a sign that memory ran out; the micro-batch stays the same"
_READY_SECONDS = 20.0  # after which a job is asked to exit even if it has not installed its signal handlers
_POLL_SECONDS = 0.2  # between two checks of the children
_CHECK_SECONDS = 2.0  # between two checks of the files
_REPORT_SECONDS = 5.0  # for a failed task to report its end, which the other tasks may notice earlier
_IDLE_SECONDS = 60.0  # after which a task of higher rank exits if all its processes have ended
_WARNINGS = (signal.SIGUSR2, signal.SIGTERM, signal.SIGALRM)


@dataclass
class _Child:
    """The job of one attempt, or this task's process of it. `node` is where it runs."""

    attempt: AttemptDir
    job: ElementRecord
    process: subprocess.Popen[bytes]
    since: float
    node: str = ""
    exit_requested: bool = False
    superseded: bool = False
    peer_exit: RankExit | None = None  # how a process of higher rank ended, if one has failed

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def exit(self) -> RankExit:
        """How the job ended; `node` is a node that cannot run it, "" if none is known."""
        code = self.process.wait()
        if self.peer_exit:
            return self.peer_exit
        node = self.node if code == JobExit.FAULTY_NODE else ""
        return RankExit(code=None if code < 0 else code, signal=-code if code < 0 else None, node=node)

    def request_exit(self) -> None:
        """Ask the job to save and exit, once it has installed its signal handlers."""
        ready = self.attempt.journal_path.exists() or time.monotonic() - self.since > _READY_SECONDS
        if not self.exit_requested and ready:
            self.exit_requested = True
            with suppress(ProcessLookupError):
                self.process.terminate()

    def kill_if_peer_ended(self) -> None:
        """Kill the job if a process of higher rank has ended: the others would wait for it until the time limit."""
        report = next(self.attempt.path.glob("rank[0-9]*.json"), None)
        if report is not None:
            self.peer_exit = read_record(RankExit, report)
            self.process.kill()

    def killed(self) -> bool:
        """Return whether the job, which has ended, was killed although this task did not ask it to exit."""
        return self.exit.signal == signal.SIGKILL and not (self.exit_requested and not self.peer_exit)

    def out_of_memory(self, evidence: str) -> str:
        """Return why the job, which has ended, counts as out of memory; "" without evidence.

        `evidence` comes from this node's memory, and applies to processes that were killed.
        """
        if self.killed():
            return self.peer_exit.memory if self.peer_exit else evidence
        if self.peer_exit:
            return self.peer_exit.error if is_memory(self.peer_exit.error) else ""
        seen = conclude(self.attempt)
        return seen.cause if seen.state == "failed" and is_memory(seen.cause) else ""

    def end(self, evidence: str, *, warned: bool) -> End:
        """Return how the job ended. `evidence`: what `out_of_memory` returned; `warned`: this task was warned."""
        code = self.process.wait()
        if self.superseded:
            return End.SUPERSEDED
        if self.out_of_memory(evidence):
            return End.MEMORY
        if self.killed():
            return End.KILLED
        if self.exit.node:
            return End.FAULTY_NODE
        if code >= 0 and code != JobExit.INTERRUPTED:
            return End.ENDED
        if not warned:
            return End.INTERRUPTED
        return End.TIME_LIMIT if reached_limit(self.job.resources, time.monotonic() - self.since) else End.PREEMPTED

    def record(self, memory: str = "") -> int:
        """Write exit.json; `memory` shows that memory ran out. Return the job's exit code, or an interrupted
        job's if it is to run again.
        """
        ended, superseded = self.exit, self.superseded and not self.peer_exit
        error = f"out of memory: {memory}" if memory and not self.peer_exit else ended.error
        record_exit(self.attempt, ended.code, ended.signal, error=error, node=ended.node, superseded=superseded)
        if superseded or ended.signal or ended.code == JobExit.FAULTY_NODE:
            return JobExit.INTERRUPTED
        return 1 if self.peer_exit else ended.code or 0


class _TaskSupervisor:
    """The supervisor of one task of an array element: `RankZeroSupervisor` or, for a higher rank, `PeerSupervisor`."""

    def __init__(self, start: ElementStart):
        self.start = start
        self.memory = MemoryWatch(start.memory)
        self.warning: int | None = None
        self.children: list[_Child] = []

    def run(self) -> int:
        for number in _WARNINGS:
            signal.signal(number, self._on_warning)
        signal.alarm(self.start.seconds_to_warning())
        checked = -_CHECK_SECONDS
        self._begin()
        while self._continues():
            time.sleep(_POLL_SECONDS)
            if self.warning:
                for child in self.children:
                    child.request_exit()
            if time.monotonic() - checked >= _CHECK_SECONDS:
                checked = time.monotonic()
                self.memory.measure(child.process.pid for child in self.children if child.alive)
                with suppress(OSError, GpasError):  # a brief failure of the file system: the next check may succeed
                    self._check()
        for number in _WARNINGS:  # a signal while Python shuts down would make a finished job a failed one
            signal.signal(number, signal.SIG_IGN)
        return self._end()

    def _begin(self) -> None: ...

    def _continues(self) -> bool:
        raise NotImplementedError

    def _check(self) -> None: ...

    def _end(self) -> int:
        raise NotImplementedError

    def _on_warning(self, number: int, _frame: object) -> None:
        self.warning = self.warning if self.warning == signal.SIGUSR2 else number

    def _spawn(self, attempt: AttemptDir, job: ElementRecord) -> None:
        start = self.start
        threads = str(max(1, job.threads // start.tasks))
        arguments = [str(attempt.path), *(["--rank"] if start.tasks > 1 else [])]
        log = attempt.path / f"log-rank{start.rank}.txt" if start.rank else attempt.log_path
        alive = os.open(os.devnull, os.O_RDONLY) if start.rank else locks.hold(alive_path(attempt))
        env = {**start.environ, **dict.fromkeys(THREAD_VARIABLES, threads), "PYTHONUNBUFFERED": "1"}
        env[GPUS] = str(job.resources.gpus_in_slurm)
        if start.tasks > 1 and (place := attempt.read_attempt().slurm):
            env["MASTER_PORT"] = str(place.port)  # of each attempt: cells may share a job, or start again in it
        self.memory.reset()
        try:
            with append_regular(log) as file:
                process = subprocess.Popen(
                    [*JOB, *arguments], env=env,
                    stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, pass_fds=(alive,),
                    preexec_fn=_die_with_parent,
                )  # fmt: skip
        finally:
            os.close(alive)
        self.children.append(_Child(attempt, job, process, time.monotonic(), start.node))


class _RankZeroSupervisor(_TaskSupervisor):
    """The supervisor of rank 0, which makes every decision."""

    _unstarted = False

    def _begin(self) -> None:
        self._start_attempts(self.start.jobs)

    def _continues(self) -> bool:
        return any(child.alive for child in self.children) or self._retry_jobs()

    def _start_attempts(self, jobs: Iterable[ElementRecord]) -> None:
        """Create and start an attempt at each job. If the disk refuses that, the other jobs continue."""
        first = len(self.children)
        try:
            for job in jobs:
                if attempt := self.start.create_attempt(job):
                    self._spawn(attempt, job)
            self.start.publish_roster([child.attempt for child in self.children[first:]])
        except OSError as error:
            print(f"no attempt could be created: {error}; the next `gpas run` submits the remaining cells")
            self._unstarted = True
            for child in self.children[first:] if self.start.tasks > 1 else ():
                child.exit_requested = True  # the other tasks will not start their processes of it
                child.process.kill()

    def _check(self) -> None:
        """Carry out requests to cancel, and stop jobs that another job has superseded."""
        for child in (child for child in self.children if child.alive):
            if self.start.tasks > 1:
                child.kill_if_peer_ended()
            if self._cancelled(child.attempt) or child.superseded:
                child.request_exit()
            elif reason := self._superseded_by(child.attempt):
                print(f"{child.attempt.path}: {reason}; exiting")
                child.superseded = True
                child.request_exit()

    def _cancelled(self, attempt: AttemptDir) -> bool:
        """Return whether the cell is to be cancelled.

        The request is copied to the attempt, where the job looks for it when it is asked to exit.
        """
        path = request_path(attempt.path)
        if not path.exists() and requested(self.start.runs, attempt.key):
            with suppress(OSError):
                request(attempt.path, signalled=True)
        return path.exists()

    def _superseded_by(self, attempt: AttemptDir) -> str:
        """Return why another job supersedes this one (started elsewhere when the node seemed dead), or ""."""
        claim = read_claim(self.start.runs, attempt.key)
        if claim is not None and not self.start.claims(attempt.key):
            return f"now claimed by {claim}"
        last = max(a.number for a in attempts(self.start.runs, attempt.key))
        return f"attempt {last} has been started" if last > attempt.number else ""

    def _retry_jobs(self) -> bool:
        """Start jobs again, with half the micro-batch if they ran out of memory and unchanged if they were killed.

        Return whether any was started.
        """
        for child in self.children if not self.warning else ():
            self._await_peer_report(child)
        if self.warning:  # perhaps only while this task waited
            return False
        retried: list[tuple[_Child, ElementRecord]] = []
        for child in self.children:
            evidence = child.out_of_memory(self.memory.evidence())
            match self._next_step(child):
                case Step.REDUCE:
                    retried.append((child, replace(child.job, reduce=evidence, again="")))
                case Step.AGAIN:
                    retried.append((child, replace(child.job, reduce=False, again=_KILLED)))
        for child, _ in retried:
            self.children.remove(child)
            child.record()
        if retried:
            self._start_attempts(job for _, job in retried)
        return bool(retried)  # a job may have ended again already

    def _next_step(self, child: _Child) -> Step:
        """Return what follows a job that has ended. Only a job that was killed had too little memory on its node."""
        end = child.end(self.memory.evidence(), warned=self.warning is not None)
        in_vain = attempts_without_progress(self.start.runs, child.attempt.key)
        rows = halved_micro_batch(child.attempt) if end is End.MEMORY else 0
        larger = [name for name in child.job.larger if name != "mem" or child.killed()]
        packed = len(self.start.jobs) > 1
        return next_step(end, in_vain, child.job.resources.retries, rows=rows, larger=larger, packed=packed)

    def _await_peer_report(self, child: _Child) -> None:
        """Wait for another task to record how its process ended, if that end interrupted the job."""
        until = time.monotonic() + _REPORT_SECONDS
        while child.process.returncode == JobExit.INTERRUPTED and not child.exit_requested and not child.peer_exit:
            if self.start.tasks == 1 or time.monotonic() > until:
                break
            time.sleep(_POLL_SECONDS)
            child.kill_if_peer_ended()

    def _end(self) -> int:
        codes, interrupted = list[int](), list[_Child]()
        for child in self.children:
            codes.append(child.record(self.memory.evidence() if child.killed() else ""))
            if codes[-1] == JobExit.INTERRUPTED:
                interrupted.append(child)
            else:
                self.start.release(child.attempt.key)
            if codes[-1] == 1:
                self._count_failure(child)
        resume = any(not child.superseded for child in interrupted)
        if resume:
            self._requeue(interrupted)
        if resume or self._unstarted:
            return JobExit.INTERRUPTED
        if not codes or 0 in codes:
            with suppress(OSError):  # other tasks then exit after IDLE_SECONDS
                self.start.publish_roster((), over=True)
            return 0
        return codes[0]

    def _count_failure(self, child: _Child) -> None:
        """Hold the rest of the array back if too many of its cells fail for the same reason."""
        submission = self.start.submission
        cause = count_failure(submission, self.start.index, conclude(child.attempt).cause)
        if cause and not is_memory(cause):
            print(breaker(submission.folder))
            with suppress(BatchError):  # if this fails, elements find the open breaker when they start
                self.start.remove_waiting()

    def _requeue(self, interrupted: list[_Child]) -> None:
        """Requeue this job if it was warned or its node is faulty; else the next `gpas run` submits it.

        A job that is being cancelled or has made no progress is not requeued.
        """
        steps = [self._next_step(child) for child in interrupted if not child.superseded]
        node = next((child.exit.node for child in interrupted if child.exit.node), "")
        try:
            if set(steps) == {Step.GIVE_UP}:
                print(f"not requeued: {len(steps)} cells made no progress in their last attempts")
            elif self.warning == signal.SIGTERM and (cancelled := self.start.cancelled()):
                print(f"{cancelled}; not requeued")
            elif Step.ELSEWHERE in steps:
                self.start.requeue(node)
            elif self.warning and Step.GROW in steps:
                print("not requeued: the next `gpas run` submits it with a longer time limit, or more memory")
            elif self.warning:
                self.start.requeue()
        except BatchError as error:
            print(f"{error}; the next `gpas run` submits the remaining cells")


class _PeerSupervisor(_TaskSupervisor):
    """The supervisor of a higher rank, which starts the processes that rank 0 calls for and always exits with 0.

    If it exited with an error, SLURM would kill rank 0 before rank 0 has recorded anything.
    """

    _over = False
    _idle = 0.0

    def _continues(self) -> bool:
        while not self._over and (roster := self.start.next_roster()):
            new, self._over = roster
            for attempt in new:
                for child in [child for child in self.children if child.attempt.key == attempt.key]:
                    child.process.kill()
                    child.process.wait()
                    self.children.remove(child)
                record = attempt.read_attempt()
                self._spawn(attempt, ElementRecord.of(record, threads=record.threads))
        alive = [child.alive for child in self.children]
        self._idle = 0.0 if any(alive) or not alive else self._idle or time.monotonic()
        return any(alive) or not (self._over or (self._idle and time.monotonic() - self._idle > _IDLE_SECONDS))

    def _check(self) -> None:
        for child in [child for child in self.children if not child.alive]:
            self._report(child)

    def _end(self) -> int:
        for child in self.children:
            self._report(child)
        return 0

    def _report(self, child: _Child) -> None:
        """Record how a process exited, unless it exited cleanly, with its own cause or the last line of its log."""
        code, rank, place = child.process.wait(), self.start.rank, child.attempt.path
        report = place / f"rank{rank}.json"
        if code not in (0, JobExit.INTERRUPTED, JobExit.CANCELLED) and not report.exists():
            memory = self.memory.evidence() if child.killed() else ""
            error = recorded_failure(child.attempt) or f"rank {rank}: {last_line(place / f'log-rank{rank}.txt')}"
            with suppress(OSError):
                write_record(report, replace(child.exit, memory=memory, error=error))


def main(place: Path, kind: type[ElementStart] = ElementStart) -> int:
    """Run this task of the submission in `place`, whose starts are of that `kind`. Return its exit code."""
    try:
        start = kind(place)
        return (_PeerSupervisor if start.rank else _RankZeroSupervisor)(start).run()
    except OSError as error:
        print(f"{error}; the next `gpas run` submits the remaining cells")
        return JobExit.INTERRUPTED


def _die_with_parent() -> None:
    """Make the kernel kill this process if its supervisor dies; the system would not notice a job left behind."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


if __name__ == "__main__":
    outlive_log()
    sys.exit(main(Path(sys.argv[1]).absolute()))
