"""Jobs that are forked from a server: what they get, how they end, and what happens without the server."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from launching import COMMAND as FAKE_JOB
from launching import (
    Background,
    Notices,
    entry,
    go,
    job_pid,
    key,
    kill,
    run,
    scheduler,
    seen,
    states,
    until,
    working,
)

from gpas_cli.plan.machine import Machine
from gpas_cli.project import Project
from gpas_cli.schedule.local import process
from gpas_cli.schedule.local.forked import LOST, ForkedJob, ForkServer
from gpas_cli.spec.run import Resources
from gpas_cli.state import locks
from gpas_cli.store.rundir import attempts, read_json
from gpas_cli.worker.fork_server import FORK, POLL

# A server without torch. Its jobs run the code in the file `act` of their directory.
SERVER = """
import os, runpy, signal, socket, sys, time
from gpas_cli.worker.fork_server import load, serve
directory = serve(socket.socket(fileno=int(sys.argv[1]))) if load(()) else None
if directory is not None:
    exec((directory / "act").read_text())
"""
# The same with the fake job of these tests.
FAKES = SERVER.replace('exec((directory / "act").read_text())', "sys.argv[1] = str(directory); runpy.run_path({!r})")


@contextmanager
def server(folder: Path, script: str = SERVER, **variables: str) -> Iterator[ForkServer]:
    made = ForkServer(folder, {**os.environ, **variables}, (sys.executable, "-c", script))
    try:
        until(lambda: not made.loading())
        yield made
    finally:
        made.close()


def start(made: ForkServer, folder: Path, act: str, *held: int) -> ForkedJob:
    (folder / "act").write_text(act)
    with (folder / "log.txt").open("ab") as log:
        return made.fork(folder, log.fileno(), held)


def ended(job: ForkedJob) -> int | None:
    until(lambda: job.poll() is not None)
    return job.returncode


def test_a_job_has_its_session_log_folder_and_environment(tmp_path: Path) -> None:
    act = "print(os.getpid(), os.getsid(0), os.getpgid(0), os.getcwd(), os.environ['X'], flush=True); sys.stdin.read();"
    act += "os.system('echo from a child'); print('oh', file=sys.stderr)"
    with server(tmp_path, X="y") as made:
        job = start(made, tmp_path, act)
        assert ended(job) == 0
    log = (tmp_path / "log.txt").read_text()
    assert log == f"{job.pid} {job.pid} {job.pid} {tmp_path} y\nfrom a child\noh\n"


def test_a_job_alone_holds_its_locks(tmp_path: Path) -> None:
    lock = tmp_path / "alive.lock"
    held = locks.hold(lock)
    with server(tmp_path) as made:
        job = start(made, tmp_path, "time.sleep(60)", held)
        other = start(made, tmp_path, "time.sleep(60)")
        os.close(held)
        assert locks.probe(lock) is locks.Lock.HELD
        kill(job.pid)
        assert ended(job) == -signal.SIGKILL
        assert locks.probe(lock) is locks.Lock.FREE
        other.terminate()
        assert ended(other) == -signal.SIGTERM


def test_the_processes_of_a_job_inherit_its_locks(tmp_path: Path) -> None:
    lock = tmp_path / "alive.lock"
    held = locks.hold(lock)
    act = "import subprocess; subprocess.Popen(['sleep', '60'], close_fds=False)"
    with server(tmp_path) as made:
        job = start(made, tmp_path, act, held)
        os.close(held)
        assert ended(job) == 0
        assert locks.probe(lock) is locks.Lock.HELD
        os.killpg(job.pid, signal.SIGKILL)
        until(lambda: locks.probe(lock) is locks.Lock.FREE)


@pytest.mark.parametrize(("act", "code"), [("sys.exit(75)", 75), ("raise RuntimeError", 1), ("pass", 0)])
def test_return_codes(tmp_path: Path, act: str, code: int) -> None:
    with server(tmp_path) as made:
        job = start(made, tmp_path, act)
        assert ended(job) == code
        job.terminate()  # changes nothing


def test_a_job_outlives_its_server(tmp_path: Path) -> None:
    with server(tmp_path) as made:
        job = start(made, tmp_path, "while not (directory / 'go').exists(): time.sleep(0.01)")
    assert job.poll() is None
    (tmp_path / "go").touch()
    assert ended(job) == LOST
    with pytest.raises(OSError, match="has ended"):
        start(made, tmp_path, "pass")
    assert not made.serves(os.environ)


def test_a_job_is_signalled_without_its_server(tmp_path: Path) -> None:
    with server(tmp_path) as made:
        job = start(made, tmp_path, "time.sleep(60)")
    job.terminate()
    assert ended(job) == LOST


def test_only_jobs_with_the_environment_of_the_server_are_forked(tmp_path: Path) -> None:
    with server(tmp_path, X="y") as made:
        assert made.serves({**os.environ, "X": "y"})
        assert not made.serves({**os.environ, "X": "z"})
        assert not made.serves(os.environ)


def test_a_server_that_fails_serves_nothing(tmp_path: Path) -> None:
    with server(tmp_path, "import no_such_library") as made:
        assert not made.serves(os.environ)


def test_a_server_that_loads_slowly_is_used_once_it_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpas_cli.schedule.local.forked.LOADING_SECONDS", 0.0)
    slow = f"import time, pathlib\nwhile not pathlib.Path('go').exists(): time.sleep(0.01)\n{SERVER}"
    with server(tmp_path, slow) as made:
        assert not made.loading()
        assert not made.serves(os.environ)
        (tmp_path / "go").touch()
        until(lambda: made.serves(os.environ))
        assert ended(start(made, tmp_path, "sys.exit(3)")) == 3


def test_a_request_that_was_given_up_is_never_carried_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by a server that was stopped, nor by a job that it had forked already."""
    monkeypatch.setattr("gpas_cli.schedule.local.forked.ANSWER_SECONDS", 0.2)
    lock = tmp_path / "alive.lock"
    held = locks.hold(lock)
    with server(tmp_path) as made:
        os.kill(made._process.pid, signal.SIGSTOP)
        with pytest.raises(ConnectionError, match="silent: timed out"):
            start(made, tmp_path, "(directory / 'trace').touch()", held)
        os.close(held)
        until(lambda: locks.probe(lock) is locks.Lock.FREE)  # the server, killed, holds nothing
        assert not made.serves(os.environ)
    (tmp_path / "act").write_text("(directory / 'trace').touch()")
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-c", SERVER, str(theirs.fileno())]
    with mine, (tmp_path / "log.txt").open("ab") as log:
        child = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        theirs.close()
        assert json.loads(mine.recv(99)) == "ready"
        wanted, other = socket.socketpair()
        with wanted, other:
            socket.send_fds(mine, [json.dumps({FORK: str(tmp_path)}).encode()], [other.fileno(), log.fileno()])
            job = json.loads(mine.recv(99))
        mine.send(json.dumps({POLL: job}).encode())
        until(lambda: not psutil.pid_exists(job) or psutil.Process(job).status() == psutil.STATUS_ZOMBIE)
    child.wait()
    assert not (tmp_path / "trace").exists()
    assert (tmp_path / "log.txt").read_bytes() == b""


def test_a_job_is_started_without_a_server_that_is_silent(
    project: Project, servers: list[ForkServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpas_cli.schedule.local.forked.ANSWER_SECONDS", 0.2)

    def loading(self: ForkServer) -> bool:
        self._process.send_signal(signal.SIGSTOP)
        return False

    monkeypatch.setattr(ForkServer, "serves", lambda self, environment: not self._lost)
    monkeypatch.setattr(ForkServer, "loading", loading)
    summary = run(project, entry("done", 1), entry("done", 2))
    assert states(summary) == {"done": ["done-1", "done-2"]}
    assert [item.status.attempt for item in summary.done] == [1, 1]


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> list[ForkServer]:
    """Return the servers that are started. Their jobs are the fake ones, and so are those started without a server."""
    started: list[ForkServer] = []
    script = FAKES.format(FAKE_JOB[-1])

    def make(folder: Path, environment: dict[str, str]) -> ForkServer:
        started.append(ForkServer(folder, environment, (sys.executable, "-c", script)))
        return started[-1]

    monkeypatch.setattr(process, "ForkServer", make)
    monkeypatch.setattr(process, "JOB", FAKE_JOB)
    return started


def test_a_run_forks_its_jobs_and_records_how_they_end(project: Project, servers: list[ForkServer]) -> None:
    cells = [entry("done", 1), entry("fail", 2), entry("crash", 3), entry("exit", 4), entry("killed", 5)]
    cells[4] = replace(cells[4], resources=replace(cells[4].resources, retries=2))
    notices = Notices()
    summary = run(project, *cells, reporter=notices)
    assert len(servers) == 1
    assert states(summary) == {
        "done": ["done-1"],
        "failed": ["fail-2", "crash-3"],
        "interrupted": ["exit-4", "killed-5"],
    }
    assert summary.failed[1].reason == "RuntimeError: the fake job fell over"
    assert "signal 9, exit.json" in summary.interrupted[1].reason
    assert notices.heard == ["g/killed-5: attempt 1 was killed (signal 9); it starts again"]
    (attempt,) = attempts(project.runs, key(cells[0]))
    assert read_json(attempt.exit_path)["code"] == 0


def test_stopping_a_run_ends_forked_jobs(project: Project, servers: list[ForkServer]) -> None:
    cells = [entry("wait", 1), entry("stubborn", 2)]
    first = Background(scheduler(project, *cells))
    for cell in cells:
        until(working(project, cell))
    first.scheduler.stop()
    until(seen(project, cells[0], "interrupted"))
    first.scheduler.stop()
    summary = first.result()
    assert states(summary) == {"interrupted": ["wait-1", "stubborn-2"]}
    assert "signal 9" in summary.interrupted[1].reason


def test_jobs_are_forked_by_a_child_of_the_run(project: Project, servers: list[ForkServer]) -> None:
    cells = [entry("wait", 1), entry("wait", 2)]
    first = Background(scheduler(project, *cells))
    parents = {psutil.Process(job_pid(until(working(project, cell)))).parent() for cell in cells}
    (parent,) = parents
    assert parent is not None
    assert parent.ppid() == os.getpid()
    go(project)
    assert states(first.result()) == {"done": ["wait-1", "wait-2"]}
    assert not parent.is_running()


def test_a_run_survives_the_death_of_its_server(project: Project, servers: list[ForkServer]) -> None:
    """Running jobs continue, those that die with it start again, and the following ones are started without it."""
    cells = [entry("wait", 1), entry("wait", 2), entry("done", 3)]
    notices = Notices()
    first = Background(scheduler(project, *cells, machine=Machine(gpus=(), cores=(0, 1)), reporter=notices))
    found = [until(working(project, cell)) for cell in cells[:2]]
    parent = psutil.Process(job_pid(found[0])).parent()
    assert parent is not None
    parent.kill()
    kill(job_pid(found[1]))
    go(project)
    summary = first.result()
    assert states(summary) == {"done": ["wait-1", "wait-2", "done-3"]}
    assert notices.heard == ["g/wait-2: attempt 1 was killed (its exit was not recorded); it starts again"]


def test_jobs_start_without_a_server_that_has_just_died(
    project: Project, servers: list[ForkServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ForkServer, "serves", lambda self, environment: True)
    monkeypatch.setattr(ForkServer, "loading", lambda self: self._process.kill())
    assert states(run(project, entry("done", 1), entry("done", 2))) == {"done": ["done-1", "done-2"]}


@pytest.mark.parametrize("kept", ["one job", "GPU", "threads", "own command"])
def test_other_jobs_are_not_forked(project: Project, servers: list[ForkServer], kept: str) -> None:
    cells = [entry("done", 1), entry("done", 2)][: 1 if kept == "one job" else 2]
    if kept == "threads":
        cells = [replace(cell, resources=Resources(cpus=2)) for cell in cells]
    machine = Machine(gpus=("0", "1") if kept == "GPU" else (), cores=(0, 1))
    command = [*FAKE_JOB[:-1], "-u", FAKE_JOB[-1]] if kept == "own command" else FAKE_JOB
    summary = run(project, *cells, machine=machine, command=command)
    assert len(summary.done) == len(cells)
    assert not servers
