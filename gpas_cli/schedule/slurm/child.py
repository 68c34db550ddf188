"""The job of one attempt as its supervisor sees it: whether it is alive, asked to exit or ended, and how it ended."""

from __future__ import annotations

import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gpas_cli.schedule.process import record_exit
from gpas_cli.schedule.slurm.retry import is_memory
from gpas_cli.state.attempt import conclude_or_unknown
from gpas_cli.state.job_exit import JobExit
from gpas_cli.store.records import ElementRecord, RankExit
from gpas_cli.store.rundir import AttemptDir, read_record

READY_SECONDS = 20.0  # after which a job is asked to exit even if it has not installed its signal handlers


@dataclass
class Child:
    """The job of one attempt, or this task's process of it. `node` is where it runs."""

    attempt: AttemptDir
    job: ElementRecord
    process: subprocess.Popen[bytes]
    since: float
    node: str = ""
    told: bool = False
    superseded: bool = False
    broken: RankExit | None = None  # how the process of a higher rank ended, if it ended by itself

    @property
    def lives(self) -> bool:
        return self.process.poll() is None

    @property
    def faulty_node(self) -> str:
        """The node that cannot run this job, "" if none is known. Read it after the job has ended."""
        if self.broken:
            return self.broken.node if self.broken.code == JobExit.FAULTY_NODE else ""
        return self.node if self.process.wait() == JobExit.FAULTY_NODE else ""

    def leave(self) -> None:
        """Ask the job to save and exit, once it has installed its signal handlers."""
        ready = self.attempt.journal_path.exists() or time.monotonic() - self.since > READY_SECONDS
        if not self.told and ready:
            self.told = True
            with suppress(ProcessLookupError):
                self.process.terminate()

    def hear(self) -> None:
        """Kill the job if a process of higher rank has ended: the others would wait for it until the time limit."""
        word = next(self.attempt.path.glob("rank[0-9]*.json"), None)
        if word is not None:
            self.broken = read_record(RankExit, word)
            self.process.kill()

    def killed(self) -> bool:
        """Return whether the job, which has ended, was killed although this task did not ask it to exit."""
        code = self.process.wait()
        if self.broken:
            return self.broken.signal == signal.SIGKILL
        return code == -signal.SIGKILL and not self.told

    def out_of_memory(self, evidence: str) -> str:
        """Return why the job, which has ended, counts as out of memory; "" without evidence.

        `evidence` comes from this node's memory, and applies to processes that were killed.
        """
        if self.killed():
            return self.broken.memory if self.broken else evidence
        if self.broken:
            return self.broken.error if is_memory(self.broken.error) else ""
        seen = conclude_or_unknown(self.attempt)
        return seen.cause if seen.state == "failed" and is_memory(seen.cause) else ""

    def record(self) -> int:
        """Write exit.json. Return the job's exit code, or that of an interrupted job if it is to run again."""
        code = self.process.wait()
        more: dict[str, Any] = {"node": self.faulty_node} if self.faulty_node else {}
        if self.broken:
            record_exit(self.attempt, self.broken.code, self.broken.signal, error=self.broken.error, **more)
            return JobExit.INTERRUPTED if self.broken.signal or more else 1
        more |= {"superseded": True} if self.superseded else {}
        record_exit(self.attempt, None if code < 0 else code, -code if code < 0 else None, **more)
        return JobExit.INTERRUPTED if self.superseded or code < 0 or code == JobExit.FAULTY_NODE else code
