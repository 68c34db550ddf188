"""One attempt on this machine: its slots, its directory, its process, its exit.

Every job is a new process, which imports the copy of the code. Forks of a process that has imported torch would save
1.6 s for each small cell, 35 s of the quickstart. multiprocessing's fork server can pass the locks on, but imports from
this process's search path, not from the copy, and waits for its jobs when this process exits. Our own fork server took
180 lines and failed in new ways.

A slot is an accelerator, or a core if there is none: a lock file `runs/.slots/<host>/<device>.lock`. The job inherits
its descriptor, so that a job which outlives the process that started it still occupies its slot.
"""

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpas_cli.errors import advise
from gpas_cli.files import append_regular
from gpas_cli.plan.machine import THREAD_VARIABLES, ThisMachine
from gpas_cli.project import Project
from gpas_cli.schedule.process import JOB, job_environment, record_exit, token
from gpas_cli.schedule.retry import adjusted_to_last_attempt
from gpas_cli.spec.run import Resources
from gpas_cli.state import locks
from gpas_cli.state.attempt import alive_path, process_path
from gpas_cli.state.claims import LOCAL
from gpas_cli.state.locks import Lock
from gpas_cli.store.records import AttemptRecord, Author, ProcessRecord, StageRecord
from gpas_cli.store.rundir import AttemptDir, attempts, create_attempt, write_record
from gpas_cli.store.snapshot import Snapshot
from gpas_cli.structure import Frozen

_GRACE_SECONDS = 30.0  # for the other processes of a job to save and exit after the first was killed
_NOT_STARTED = 127  # the shell's exit code for a command that could not be run


class Lease(Frozen):
    """Slots taken for one job. The open descriptors `fds` hold them; `variables` go into the job's environment."""

    fds: tuple[int, ...]
    devices: tuple[str, ...]
    threads: int
    variables: Mapping[str, str]

    def close(self) -> None:
        """Close this process's descriptors; the slots are released when the job's copies close too."""
        for fd in self.fds:
            with suppress(OSError):
                os.close(fd)


class Slots:
    """The slots of one machine."""

    def __init__(self, runs: Path, machine: ThisMachine):
        self.machine = machine
        self._folder = runs / ".slots" / socket.gethostname()
        self._folder.mkdir(parents=True, exist_ok=True)

    def take(self, resources: Resources) -> Lease | None:
        """Return the slots that a job needs, None if too few are free. Raises GpasError if locks do not work."""
        wanted = self.machine.needs(resources)
        taken = dict[str, int]()
        with locks.locked(self._folder / ".lock"):  # otherwise two processes could each hold half of what both need
            for device in self._devices():
                fd = locks.try_hold(self._folder / f"{re.sub(r'[^A-Za-z0-9-]', '_', device)}.lock")
                if fd is not None:
                    taken[device] = fd
                if len(taken) == wanted:
                    gpus = [device.removeprefix("gpu-") for device in taken] if self.machine.gpus else []
                    threads = self.machine.threads(resources)
                    variables = dict.fromkeys(THREAD_VARIABLES, str(threads)) | {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}
                    return Lease(tuple(taken.values()), tuple(taken), threads, variables)
            for fd in taken.values():
                os.close(fd)
        return None

    def _devices(self) -> list[str]:
        return [f"gpu-{gpu}" for gpu in self.machine.gpus] or [f"cpu-{core}" for core in self.machine.cores]


@dataclass
class Process:
    """The running process of one attempt, a child of this one."""

    attempt: AttemptDir
    child: subprocess.Popen[bytes]
    _died: float | None = None

    def ended(self) -> bool:
        """Return whether the process has ended. Write exit.json the first time that it has.

        If it was killed, the other processes of its job have `_GRACE_SECONDS` to save and exit.
        """
        if self.child.poll() is None or self._others_live():
            return False
        code = self.child.returncode
        if code is not None and not self.attempt.exit_path.exists():
            record_exit(self.attempt, None if code < 0 else code, -code if code < 0 else None)
        return True

    def _others_live(self) -> bool:
        """Return whether other processes of the job still hold its lock. Kill them if they hold it for too long."""
        if locks.probe(alive_path(self.attempt)) is not Lock.HELD:
            return False
        self._died = self._died or time.monotonic()
        if time.monotonic() - self._died > _GRACE_SECONDS:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.child.pid, signal.SIGKILL)
            return False
        return True

    def terminate(self) -> None:
        """Ask the job to save and exit. It passes the signal on to its own children."""
        with suppress(ProcessLookupError):
            self.child.terminate()

    def kill(self) -> None:
        """Kill the job and everything in its session."""
        if self.child.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.child.pid, signal.SIGKILL)


@dataclass
class Spawner:
    """A launcher of attempts on this machine. The attempt directory is appended to `command`.

    `author` is the process that the attempts name.
    """

    project: Project
    author: Author
    command: Sequence[str] = JOB

    def start(self, stage: StageRecord, code: Snapshot, lease: Lease, *, reduce: bool = False) -> Process:
        """Create the next attempt at a stage and start its process, which inherits its slots and its alive.lock.

        `reduce`: the last attempt ran out of memory, and this one gets half its micro-batch.

        Raises OSError if that fails; if the attempt had already been created, it is recorded as failed.
        """
        runs = self.project.runs
        record = adjusted_to_last_attempt(self._record(stage, code, lease), attempts(runs, stage.key), reduce=reduce)
        attempt = create_attempt(runs, record)
        alive = locks.hold(alive_path(attempt))
        try:
            child = self._launch(attempt, code, lease, alive)
        except OSError as error:
            record_exit(attempt, _NOT_STARTED, None, error=f"could not be started: {advise(error)}")
            raise
        finally:
            os.close(alive)
        with suppress(OSError):  # a full disk: the job runs nevertheless, and this process can still signal it
            process = ProcessRecord(host=self.author.host, pid=child.pid, token=token(child.pid))
            write_record(process_path(attempt), process)
        return Process(attempt, child)

    def _launch(self, attempt: AttemptDir, code: Snapshot, lease: Lease, alive: int) -> subprocess.Popen[bytes]:
        with append_regular(attempt.log_path) as log:
            return subprocess.Popen(
                [*self.command, str(attempt.path)], cwd=self.project.config.parent,
                env=job_environment(code.path, {**lease.variables, **self.project.variables}),
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, pass_fds=(alive, *lease.fds),
                start_new_session=True,  # Ctrl-C or closing the terminal does not signal the jobs
            )  # fmt: skip

    def _record(self, stage: StageRecord, code: Snapshot, lease: Lease) -> AttemptRecord:
        root = self.project.config.parent
        return AttemptRecord.of(
            stage, executor=LOCAL, created=time.time(), code=code.code, git=dict(code.git),
            submitter=self.author, devices=tuple(lease.devices), cache=str(self.project.cache), root=str(root),
            threads=lease.threads,
        )  # fmt: skip
