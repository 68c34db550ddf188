"""The processes of a job: their ranks and meeting point, their parent on this machine, their output. Needs no torch.

`run` and torchrun set RANK, WORLD_SIZE, LOCAL_RANK and the meeting point (GPAS_RENDEZVOUS, or MASTER_ADDR and
MASTER_PORT); a SLURM step sets SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID and its node list.

The parent (`run`) starts the processes of a machine, forwards signals, and ends all if one dies. It trains nothing.
Only the first process writes the journal; the parent adds an outcome after all have died without one. Every process
inherits the locks of the attempt and of its slots from the parent. If the parent dies, its processes see the end of
their standard input, save and exit.
"""

import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gpas_cli.errors import GpasError
from gpas_cli.events import Outcome
from gpas_cli.plan.machine import THREAD_VARIABLES
from gpas_cli.state.attempt import JobExit, outcome
from gpas_cli.store.journal import Journal, raw_tail
from gpas_cli.store.records import RankFailure
from gpas_cli.store.rundir import AttemptDir, read_record, write_record
from gpas_cli.structure import Frozen

RENDEZVOUS = "GPAS_RENDEZVOUS"
GPUS = "GPAS_GPUS"  # how many GPUs the job has, where its scheduler gives it another number than its resources name
PORTS = range(15000, 32000)  # ports for rendezvous, below the ephemeral ports of Linux
_GRACE_SECONDS = 20.0  # from the end of the first process until the others are killed
_POLL_SECONDS = 0.05
_UNFINISHED = (JobExit.INTERRUPTED, JobExit.FAULTY_NODE, JobExit.CANCELLED)  # how a job ended that has not failed
LOST_PEER = "another process of the job was killed"  # the cause of an interrupted job of several processes


class RankEnv(Frozen):
    """Process `rank` of `size`, and `local_rank` on its machine.

    `meeting` is the init method by which the processes find each other in torch, "" for a single process.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    meeting: str = ""


ALONE = RankEnv()


def place(environ: Mapping[str, str]) -> RankEnv:
    """Return the place of this process in its job. Raises GpasError if variables are missing or contradictory."""
    names = _names(environ)
    try:
        rank, size, local_rank = (int(environ[name]) for name in names)
    except KeyError as error:
        raise GpasError(f"{error.args[0]} is not set: start ranks with torchrun, srun or `gpas run`") from error
    except ValueError as error:
        raise GpasError(f"{', '.join(names)}: {error}") from error
    if not 0 <= rank < size:
        raise GpasError(f"{names[0]}={rank} and {names[1]}={size}: a rank is at least 0 and below the number of ranks")
    return RankEnv(rank, size, local_rank, _meeting(environ) if size > 1 else "")


def _meeting(environ: Mapping[str, str]) -> str:
    """Return the init method for torch.distributed. Raises GpasError if the environment sets no address or port."""
    if method := environ.get(RENDEZVOUS):
        return method
    address, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT")
    if nodes := environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST"):
        address = address or _first_host(nodes)
    if job := environ.get("SLURM_JOB_ID"):
        # This port is the same in every task of a step and after a requeue. Jobs of gpas set a free port instead.
        port = port or str(PORTS[zlib.crc32(f"{job}.{environ.get('SLURM_STEP_ID', '')}".encode()) % len(PORTS)])
    if not address or not port:
        raise GpasError("several processes need an address at which they connect; set MASTER_ADDR and MASTER_PORT")
    host = f"[{address}]" if ":" in address else address
    return f"tcp://{host}:{port}"


def _first_host(nodes: str) -> str:
    """Return the first name in a SLURM node list: "n[007-010,12],m1" -> "n007"."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    assert first is not None
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", first[0])


def _names(environ: Mapping[str, str]) -> tuple[str, str, str]:
    if "RANK" in environ or "SLURM_PROCID" not in environ:
        return "RANK", "WORLD_SIZE", "LOCAL_RANK"
    # The count of the step, because `srun -n` may start fewer tasks than the job has.
    size = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS"
    return "SLURM_PROCID", size, "SLURM_LOCALID"


def run(attempt: AttemptDir, size: int, threads: int, command: Sequence[str], signals: Sequence[int]) -> int:
    """Run `size` processes of `command` to their end, forward `signals` to them, and return one exit code for all.

    If a signal kills them before they record an outcome, this process ends itself with the same signal.
    """
    for old in attempt.path.glob("failed-*.json"):
        old.unlink()
    folder = Path(tempfile.mkdtemp(prefix="gpas-"))
    children = list[subprocess.Popen[bytes]]()

    def forward(number: int, _frame: object) -> None:
        for child in children:
            with suppress(ProcessLookupError):
                child.send_signal(number)

    for number in signals:
        signal.signal(number, forward)
    try:
        for rank in range(size):
            children.append(_start(command, rank, size, threads, folder))
        first = _wait(children)
    finally:
        for child in children:
            child.kill()
            child.wait()
        shutil.rmtree(folder, ignore_errors=True)
    return _conclude(attempt, [child.returncode for child in children], first)


def record_failure(attempt: AttemptDir, rank: int, cause: str) -> None:
    """Record why process `rank` failed, for the first process or the parent to journal."""
    with suppress(OSError):
        write_record(attempt.path / f"failed-{rank}.json", RankFailure(rank=rank, cause=cause))


def recorded_failure(attempt: AttemptDir, patience: float = 0.0) -> str | None:
    """Return why a process other than the first failed, None if none has recorded it after `patience` seconds."""
    until = time.monotonic() + patience
    while True:
        for path in sorted(attempt.path.glob("failed-*.json")):
            failure = read_record(RankFailure, path)
            return f"process {failure.rank}: {failure.cause}"
        if time.monotonic() >= until:
            return None
        time.sleep(_POLL_SECONDS)


def watch_parent(act: Callable[[], None]) -> None:
    """Call `act` in a thread when standard input ends. The parent of this process holds it open while it lives."""

    def wait() -> None:
        while os.read(0, 1024):
            pass
        act()

    threading.Thread(target=wait, daemon=True).start()


def _start(command: Sequence[str], rank: int, size: int, threads: int, folder: Path) -> subprocess.Popen[bytes]:
    place = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, RENDEZVOUS: f"file://{folder}/meeting"}
    numbers = place | dict.fromkeys(THREAD_VARIABLES, threads)
    return subprocess.Popen(
        command,
        env={**os.environ, **{name: str(value) for name, value in numbers.items()}},
        stdin=subprocess.PIPE,
        close_fds=False,  # inherited locks stay open; Python marks its own descriptors as not inheritable
    )


def _wait(children: Sequence[subprocess.Popen[bytes]]) -> int:
    """Wait until all have ended, at most `_GRACE_SECONDS` after the first. Return the first nonzero code, or 0."""
    first = 0
    until = None
    while True:
        codes = [child.poll() for child in children]
        first = first or next((code for code in codes if code), 0)
        if until is None and any(code is not None for code in codes):
            until = time.monotonic() + _GRACE_SECONDS
        if None not in codes or (until is not None and time.monotonic() > until):
            return first
        time.sleep(_POLL_SECONDS)


def _conclude(attempt: AttemptDir, codes: Sequence[int], first: int) -> int:
    """Return the exit code for the outcome in the journal. If it has none, journal a failure and return 1.

    The cause is taken from `failed-*.json`, or else from the return code `first`. If no process has recorded a failure,
    `first` may itself say how the job ended, on a disk too full to record it: such a code is returned, and if it is
    that of a signal, this process ends itself with the signal.
    """
    if codes[0] >= 0 and outcome(raw_tail(attempt.journal_path)):
        return codes[0]
    cause = recorded_failure(attempt)
    if not cause and first < 0:
        _die_of(-first)
    if not cause and first in _UNFINISHED:
        return first
    journal = Journal(attempt.journal_path)
    journal.append(Outcome("failed", cause=cause or f"a process exited with code {first}"))
    journal.close()
    return 1


def _die_of(number: int) -> None:
    """End this process with the signal that killed its child, so that the scheduler sees an interruption."""
    print(f"a process of this job was ended by signal {number}", file=sys.stderr)
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


class _Log(io.TextIOWrapper):
    """A text stream whose `write` and `flush` never raise OSError."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            super().flush()


def outlive_log() -> None:
    """Replace stdout and stderr with streams that drop output instead of raising OSError."""
    streams = (io.FileIO(number, "wb", closefd=False) for number in (1, 2))
    sys.stdout, sys.stderr = (_Log(raw, "utf-8", errors="replace", write_through=True) for raw in streams)
