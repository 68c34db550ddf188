"""Jobs that are forked from a process which has imported torch already (`worker.fork_server`)."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from gpas_cli.schedule.process import token
from gpas_cli.worker.fork_server import FORK, MESSAGE_BYTES, POLL, STILL_WANTED

COMMAND = (sys.executable, "-P", "-m", "gpas_cli.worker.fork_server")
LOADING_SECONDS = 30.0  # for the imports; jobs are started without the server after that, until it is ready
ANSWER_SECONDS = 10.0  # a server that is silent for longer, because it is stopped or swapped out, is given up
LOST = 256  # instead of a return code, that of a job which ended after the server had


class ForkServer:
    """A server in `folder` with `environment`, which all its jobs have too. It ends with this process.

    Jobs outlive the server. Whether they live can then still be seen, but not how they ended.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str], command: Sequence[str] = COMMAND):
        self._environment = dict(environment)
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._until = time.monotonic() + LOADING_SECONDS
        self._loaded = False
        self._lost = False
        with theirs:
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno())], cwd=folder, env=self._environment, pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def loading(self) -> bool:
        """Return whether jobs should wait for the server, which is still importing."""
        if not self._loaded and not self._lost:
            self._connection.settimeout(0)
            try:
                self._loaded = self._received() == "ready"
            except BlockingIOError:
                return time.monotonic() < self._until
            except OSError:
                self._lost = True
        return False

    def serves(self, environment: Mapping[str, str]) -> bool:
        """Return whether jobs with this environment can be forked."""
        return not self.loading() and self._loaded and not self._lost and self._environment == environment

    def fork(self, directory: Path, log: int, locks: Sequence[int]) -> ForkedJob:
        """Start the job of the attempt in `directory`, with the descriptors of its log and of its locks.

        Raises OSError: the job does not run and never will, even if the server carries out the request later.
        """
        wanted, theirs = socket.socketpair()
        with wanted:
            with theirs:
                pid = self._ask({FORK: str(directory)}, (theirs.fileno(), log, *locks))
            if not isinstance(pid, int):
                raise OSError(pid)
            job = ForkedJob(self, pid)
            wanted.send(STILL_WANTED)
        return job

    def return_code(self, pid: int) -> int | None:
        """Return the return code of a job, None while it runs. Raises OSError if the server has ended."""
        code = self._ask({POLL: pid})
        assert code is None or isinstance(code, int)
        return code

    def close(self) -> None:
        """End the server."""
        self._connection.close()
        self._process.kill()
        self._process.wait()

    def _ask(self, request: Mapping[str, object], descriptors: Sequence[int] = ()) -> object:
        try:
            if self._lost:
                raise ConnectionError("it was given up")
            self._connection.settimeout(ANSWER_SECONDS)
            socket.send_fds(self._connection, [json.dumps(request).encode()], list(descriptors))
            return self._received()
        except OSError as error:
            self._lost = True
            self._process.kill()  # it may hold the locks of the job that it was asked for
            raise ConnectionError(f"the process that starts jobs has ended or is silent: {error}") from error

    def _received(self) -> object:
        answer = self._connection.recv(MESSAGE_BYTES)
        if not answer:
            raise ConnectionError("its connection is closed")
        return json.loads(answer)


@dataclass
class ForkedJob:
    """The process of a job, with the methods of `subprocess.Popen` that a scheduler uses."""

    server: ForkServer
    pid: int
    returncode: int | None = None
    _token: str = field(init=False)

    def __post_init__(self) -> None:
        self._token = token(self.pid)

    def poll(self) -> int | None:
        """Return the return code, None while the process runs; LOST if it is unknown."""
        if self.returncode is None:
            try:
                self.returncode = self.server.return_code(self.pid)
            except OSError:
                self.returncode = None if _runs(self.pid, self._token) else LOST
        return self.returncode

    def terminate(self) -> None:
        """Send SIGTERM, unless the process has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)


def _runs(pid: int, before: str) -> bool:
    """Return whether the process `pid` whose token was `before` still runs."""
    try:
        return token(pid) == before and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
