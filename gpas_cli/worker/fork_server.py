"""The process from which `gpas run` forks jobs: `python -m gpas_cli.worker.fork_server FD`, FD a Unix socket.

It imports what a training imports, once for all jobs, which takes longer than anything else that a small cell does
besides its updates. The other end of the socket is a `schedule.local.forked.ForkServer`:

    FORK directory, with a socket, the log and the locks   -> the process id of the new job
    POLL process id                                        -> its return code, null while it runs

A job begins when STILL_WANTED arrives at that socket, and exits if the other end closes first: whoever asked for it has
given up, and may have started it in another way. A job has its own session, its log as standard output, and those
locks. Its environment, folder and standard input are those of this process. A process may be forked only while it has
one thread: a lock that another thread holds would stay locked in the copy forever. If the imports have started threads
(as libraries for linear algebra or GPUs may do), this process exits instead of serving, and jobs are started in the
usual way.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

FORK, POLL = "fork", "poll"
STILL_WANTED = b"1"
MESSAGE_BYTES = 65536
MOST_DESCRIPTORS = 253  # that one message can carry
# What a training imports. torch imports the last two with its first optimizer and its first choice of deterministic
# algorithms.
LIBRARIES = ("gpas_cli.worker.job", "gpas_cli.worker.stages.pretrain", "torch._dynamo", "torch._inductor.config")
THREADS = Path("/proc/self/task")


def load(libraries: Sequence[str] = LIBRARIES) -> bool:
    """Import `libraries`. Return whether this process may be forked now, that is, whether it has one thread."""
    gc.disable()  # as it takes a fifth of the time of imports
    for name in libraries:
        importlib.import_module(name)
    gc.freeze()  # a collection in a job would otherwise write to every page that it shares with this process
    gc.enable()
    return len(list(THREADS.iterdir())) == 1


def serve(connection: socket.socket) -> Path | None:
    """Answer requests until the other end closes, and return None. In a forked job, return its attempt's directory."""
    _send(connection, "ready")
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, MESSAGE_BYTES, MOST_DESCRIPTORS)
        if not message:
            return None
        asked = json.loads(message)
        if POLL in asked:
            _send(connection, _return_code(asked[POLL]))
        elif _forked(connection, descriptors):
            return Path(asked[FORK])


def _forked(connection: socket.socket, descriptors: Sequence[int]) -> bool:
    """Fork a job, which sends its process id to the other end. Return whether this process is the job."""
    try:
        child = os.fork() == 0
    except OSError as error:
        _send(connection, str(error))
        child = False
    if child:
        os.setsid()  # Ctrl-C or closing the terminal does not signal the jobs
        wanted, log, *locks = descriptors
        _exit_unless_wanted(connection, socket.socket(fileno=wanted))
        os.dup2(log, 1)
        os.dup2(log, 2)
        for lock in locks:
            os.set_inheritable(lock, True)  # for the processes that the job starts
        os.close(log)
    else:
        for descriptor in descriptors:
            os.close(descriptor)
    return child


def _exit_unless_wanted(connection: socket.socket, wanted: socket.socket) -> None:
    """Send the process id of this job, and end it at once if nobody waits for it any more."""
    try:
        _send(connection, os.getpid())
        answer = wanted.recv(len(STILL_WANTED))
    except OSError:
        answer = b""
    if answer != STILL_WANTED:
        os._exit(0)
    connection.close()
    wanted.close()


def _return_code(pid: int) -> int | None:
    """Return the code with which a job has exited, negative if a signal has ended it; None while it runs."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def _send(connection: socket.socket, answer: object) -> None:
    connection.send(json.dumps(answer).encode())


if __name__ == "__main__":
    directory = serve(socket.socket(fileno=int(sys.argv[1]))) if load() else None
    if directory is not None:
        from gpas_cli.worker.job import main
        from gpas_cli.worker.stdio import outlive_log

        outlive_log()
        sys.exit(main(directory))
