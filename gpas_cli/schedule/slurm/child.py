"""The job of one attempt, as seen by its supervisor: alive, asked to exit, or ended, and how it ended."""

from __future__ import annotations

import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gpas_cli.schedule.out_of_memory import is_memory, ran_out_of_memory
from gpas_cli.schedule.process import record_exit
from gpas_cli.schedule.slurm.growth import reached_limit
from gpas_cli.state.attempt import conclude_or_unknown
from gpas_cli.state.job_exit import JobExit
from gpas_cli.state.logs import last_line
from gpas_cli.store.records import ElementRecord, RankExit
from gpas_cli.store.rundir import AttemptDir, read_record
from gpas_cli.worker.ranks import recorded_failure

READY_SECONDS = 20.0  # after which a job is asked to exit even if it has not installed its signal handlers


@dataclass
class Child:
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
    def faulty_node(self) -> str:
        """The node that cannot run this job, "" if none is known. Read it after the job has ended."""
        if self.peer_exit:
            return self.peer_exit.node if self.peer_exit.code == JobExit.FAULTY_NODE else ""
        return self.node if self.process.wait() == JobExit.FAULTY_NODE else ""

    @property
    def outgrew_limit(self) -> bool:
        """Whether the job reached its time limit, and the next one asks for a longer one."""
        return "time" in self.job.larger and reached_limit(self.job.resources, time.monotonic() - self.since)

    def request_exit(self) -> None:
        """Ask the job to save and exit, once it has installed its signal handlers."""
        ready = self.attempt.journal_path.exists() or time.monotonic() - self.since > READY_SECONDS
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
        code = self.process.wait()
        if self.peer_exit:
            return self.peer_exit.signal == signal.SIGKILL
        return code == -signal.SIGKILL and not self.exit_requested

    def out_of_memory(self, evidence: str) -> str:
        """Return why the job, which has ended, counts as out of memory; "" without evidence.

        `evidence` comes from this node's memory, and applies to processes that were killed.
        """
        if self.killed():
            return self.peer_exit.memory if self.peer_exit else evidence
        if self.peer_exit:
            return self.peer_exit.error if is_memory(self.peer_exit.error) else ""
        seen = conclude_or_unknown(self.attempt)
        return seen.cause if ran_out_of_memory(seen) else ""

    def why_failed(self, rank: int) -> str:
        """Return why the process `rank` of the job, which has ended, failed: the cause that it recorded, or else the
        last line of its log."""
        cause = recorded_failure(self.attempt)
        return cause or f"rank {rank}: {last_line(self.attempt.path / f'log-rank{rank}.txt')}"

    def record(self, memory: str = "") -> int:
        """Write exit.json; `memory` shows that memory ran out. Return the job's exit code, or that of an interrupted
        job if it is to run again.
        """
        code = self.process.wait()
        more: dict[str, Any] = {"node": self.faulty_node} if self.faulty_node else {}
        more |= {"error": f"out of memory: {memory}"} if memory and not self.peer_exit else {}
        if self.peer_exit:
            record_exit(self.attempt, self.peer_exit.code, self.peer_exit.signal, error=self.peer_exit.error, **more)
            return JobExit.INTERRUPTED if self.peer_exit.signal or more else 1
        more |= {"superseded": True} if self.superseded else {}
        record_exit(self.attempt, None if code < 0 else code, -code if code < 0 else None, **more)
        return JobExit.INTERRUPTED if self.superseded or code < 0 or code == JobExit.FAULTY_NODE else code
