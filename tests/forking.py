"""Processes that start in milliseconds: forked from a server, this script, that has imported most of the package.

A request is a line of JSON: what to start, answered with the id of the process, or an id, answered with its exit code.
"""

import atexit
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

IMPORTED = ("launching", "gpas_cli.schedule.slurm.supervisor", "gpas_cli.worker.ranks")


@cache
def _server() -> subprocess.Popen[str]:
    from descriptors import KEPT

    tests = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": f"{tests.parent}{os.pathsep}{tests}"}
    command = [sys.executable, "-P", __file__]
    server = subprocess.Popen(
        command, env=environment, cwd=tests, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdin is not None
    assert server.stdout is not None
    KEPT.update({str(server.stdin.fileno()), str(server.stdout.fileno())})
    atexit.register(server.communicate)
    return server


def _ask(*request: Any) -> Any:
    server = _server()
    print(json.dumps(request), file=server.stdin, flush=True)
    assert server.stdout is not None
    return json.loads(server.stdout.readline())


class Forked:
    """`python -c SCRIPT WORDS`, with methods of `subprocess.Popen`. All that it prints is in a file."""

    def __init__(self, script: str, *words: str, output: Path, environment: Mapping[str, str] | None = None):
        self.output = output
        self.code: int | None = None
        self.pid = int(_ask(script, words, str(output), dict(os.environ if environment is None else environment)))

    def wait(self, timeout: float = 60.0) -> int:
        deadline = time.monotonic() + timeout
        while self.code is None:
            self.code = _ask(self.pid)
            if self.code is None:
                if time.monotonic() > deadline:
                    raise subprocess.TimeoutExpired("forked", timeout)
                time.sleep(0.01)
        return self.code

    def communicate(self, timeout: float = 60.0) -> str:
        self.wait(timeout)
        return self.output.read_text()

    def send_signal(self, number: int) -> None:
        if self.code is None:
            os.kill(self.pid, number)

    def end(self) -> None:
        self.send_signal(signal.SIGKILL)
        self.wait()


def _run(script: str, words: list[str], output: str, environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["-c", *words]
    to = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number, descriptor in enumerate((os.open(os.devnull, os.O_RDONLY), to, to)):
        os.dup2(descriptor, number)
    code: Any = 1
    try:
        exec(compile(script, "<script>", "exec"), {"__name__": "__main__"})
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(int(code))


def serve() -> None:
    for name in IMPORTED:
        importlib.import_module(name)
    for line in sys.stdin:
        request = json.loads(line)
        if len(request) > 1:
            answer: int | None = os.fork()
            if answer == 0:
                _run(*request)
        else:
            found, status = os.waitpid(request[0], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if found else None
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
