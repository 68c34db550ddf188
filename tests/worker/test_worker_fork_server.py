"""The imports of the fork server leave a process that may be forked, and it refuses to serve otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

from gpas_cli.plan.machine import THREAD_VARIABLES


def said(script: str) -> str:
    environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1"), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_what_a_training_imports_starts_no_thread() -> None:
    script = "from gpas_cli.worker.fork_server import load; import sys; print(load(), 'torch._dynamo' in sys.modules)"
    assert said(script) == "True True"


def test_a_process_with_a_second_thread_may_not_be_forked() -> None:
    script = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start();"
    assert said(f"{script} from gpas_cli.worker.fork_server import load; print(load(()))") == "False"


def test_a_server_that_may_not_be_forked_exits_without_a_word() -> None:
    server = "import runpy, threading; threading.Thread(target=threading.Event().wait, daemon=True).start();"
    server += "runpy.run_module('gpas_cli.worker.fork_server', run_name='__main__')"
    script = "import socket, subprocess, sys; ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET);"
    script += f"command = [sys.executable, '-c', {server!r}, str(theirs.fileno())];"
    script += "done = subprocess.run(command, pass_fds=[theirs.fileno()]); theirs.close();"
    script += "print(done.returncode, ours.recv(100))"
    assert said(script) == "0 b''"
