"""The process of an attempt: its identity, its environment, its libraries, its cancellation, the record of its exit."""

import os
import signal
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpas_cli.errors import GpasError, explain, user_name
from gpas_cli.plan.stage_jobs import StageJob
from gpas_cli.state import locks
from gpas_cli.state.attempt import lives, process_path
from gpas_cli.state.cancellation import request
from gpas_cli.state.claims import Claim
from gpas_cli.state.status import UNREADABLE, CellStatus
from gpas_cli.state.view import SchedulerView
from gpas_cli.store.records import ExitRecord, ProcessRecord
from gpas_cli.store.rundir import AttemptDir, read_record, stage_dir, write_record
from gpas_cli.structure import Frozen
from gpas_cli.words import grouped, listed

_PRIVATE_VARIABLES = frozenset({"GPAS_DB"})
_ISOLATED = {"PYTHONSAFEPATH": "1"}  # no process that a job starts imports modules from its working directory
JOB = (sys.executable, "-P", "-m", "gpas_cli.worker.job")  # -P: modules are not imported from the working directory
_OPTIONAL = {"tensorboard": "TensorBoard", "wandb": "Weights & Biases"}  # modules, and so settings and extras


def token(pid: int) -> str:
    """Return a text that distinguishes a process from a later one with the same id; "" if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        # The name may contain anything and ends at the last bracket; the start time is the 20th field after it.
        return f"{locks.boot_id()}/{stat.rpartition(')')[2].split()[19]}"
    except (OSError, IndexError):
        pass
    import psutil  # only where there is no /proc

    with suppress(psutil.Error):
        return f"{psutil.Process(pid).create_time():.2f}"
    return ""


def record_exit(attempt: AttemptDir, code: int | None, number: int | None, **more: Any) -> None:
    """Write exit.json: the exit code or the signal that ended the process, and further fields of `ExitRecord`."""
    record = ExitRecord(code=code, signal=number, t=time.time(), **more)
    with suppress(OSError):  # a full disk: the released lock still shows that the process ended, but not how
        write_record(attempt.exit_path, record)


def without_secrets(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return `environ` without the URL of the database: jobs never open it and need not know its password."""
    return {name: value for name, value in environ.items() if name not in _PRIVATE_VARIABLES}


def job_environment(package: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a job on this machine: this process's, with `variables`.

    The job imports the package from the folder `package`, wherever it starts. The folders of PYTHONPATH follow, as this
    process sees them: an empty one would be the job's working directory, from which it imports nothing.
    """
    more = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    search_path = os.pathsep.join([str(package), *(str(Path(folder).absolute()) for folder in more if folder)])
    return {**without_secrets(), **variables, "PYTHONPATH": search_path, **_ISOLATED, "PYTHONUNBUFFERED": "1"}


def require_libraries(jobs: Iterable[StageJob]) -> None:
    """Raise GpasError if a job asks for a library that is not installed."""
    asked = grouped((name, job.id) for job in jobs for name in _OPTIONAL if getattr(job.watch, name))
    lines = [
        f"{listed(ids, 1)}: watch.{name} asks for {_OPTIONAL[name]}, which is not installed: "
        f"pip install 'gpas-cli[{name}]'"
        for name, ids in asked.items()
        if find_spec(name) is None
    ]
    if lines:
        raise GpasError("\n".join(lines))


class Cancelling(Frozen):
    """The outcome of cancelling one cell. `asked` is False if there was nothing to cancel, or the request failed."""

    state: CellStatus
    asked: bool
    what: str


def cancel_process(view: SchedulerView, status: CellStatus, claim: Claim | None) -> Cancelling:
    """Cancel a queued or running stage, claimed or not."""
    try:
        if status.state == "queued" or status.source == "ending":
            request(stage_dir(view.runs, status.key))
            who = status.claim or "its scheduler"
            return Cancelling(status, True, f"{who} will not start it; `gpas retry` runs it")
        if status.state == "running" and status.directory is not None:
            return Cancelling(status, *_cancel_running(view, AttemptDir(status.directory), claim))
    except UNREADABLE as error:
        return failed(status, error)
    return Cancelling(status, False, f"is {status.state}: there is nothing to cancel")


def failed(status: CellStatus, error: Exception) -> Cancelling:
    """Return the outcome for a stage that could not be cancelled."""
    return Cancelling(status, False, f"could not be cancelled: {explain(error)}")


def _cancel_running(view: SchedulerView, attempt: AttemptDir, claim: Claim | None) -> tuple[bool, str]:
    """Signal the attempt's process if it can be verified; otherwise write a request for the run that owns it.

    Return whether it was asked to stop, and what was done.
    """
    pid = _verified(attempt)
    # Written before the signal: the job reads it to distinguish a cancellation from a preemption.
    request(attempt.path, signalled=pid is not None)
    if pid is not None:
        try:
            return True, _terminate(pid, attempt)
        except PermissionError:  # another user's process: the run that started it can signal it
            request(attempt.path, signalled=False)
    if claim is not None and view.lives_now(claim):
        return True, f"{claim} will stop it"
    host = attempt.read_attempt().submitter.host or "its host"
    where = f"as {user_name(attempt.path.stat().st_uid)}" if pid is not None else f"on {host}"
    return False, f"its process cannot be reached from here; cancel it {where}"


def _verified(attempt: AttemptDir) -> int | None:
    """Return the id of the attempt's process if it runs here, holds alive.lock and is the one started; else None."""
    try:
        process = read_record(ProcessRecord, process_path(attempt))
    except (OSError, GpasError):
        return None
    here = process.host == socket.gethostname() and lives(attempt)
    if not here or process.pid <= 0 or not process.token:
        return None
    return process.pid if process.token == token(process.pid) else None


def _terminate(pid: int, attempt: AttemptDir) -> str:
    try:
        if hasattr(os, "pidfd_open"):  # a handle on this process: its id may be reused meanwhile
            handle = os.pidfd_open(pid)
            try:
                if _verified(attempt) == pid:
                    signal.pidfd_send_signal(handle, signal.SIGTERM)
            finally:
                os.close(handle)
        else:
            os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return "its process has just ended"
    return f"process {pid} was asked to stop"
