"""The process of an attempt: its environment, and how queued and running stages are cancelled."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from launching import (
    Background,
    entry,
    go,
    job_pid,
    key,
    orphaned,
    other_run,
    ran,
    run,
    scheduler,
    seen,
    states,
    until,
    working,
)

from gpas_cli.errors import GpasError
from gpas_cli.grid import Entry
from gpas_cli.project import Project
from gpas_cli.schedule.local.scheduler import LocalScheduler
from gpas_cli.schedule.process import Cancelling, job_environment, token
from gpas_cli.schedule.scheduler import cancel, choose
from gpas_cli.schedule.slurm import client
from gpas_cli.schedule.slurm.scheduler import SlurmScheduler
from gpas_cli.state.attempt import process_path
from gpas_cli.state.observe import cell_statuses, observe
from gpas_cli.store.rundir import AttemptDir, attempts, read_json, write_json


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPAS_DB", "postgresql://me:secret@host/name")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("HOME_SWEET_HOME", "kept")


def test_jobs_do_not_get_the_database_password() -> None:
    for environment in (job_environment(Path("/code"), {}), client._environment()):
        assert "GPAS_DB" not in environment
        assert environment["HOME_SWEET_HOME"] == "kept"


def test_a_job_imports_the_package_of_its_snapshot_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", ":/elsewhere::mine:")
    environment = job_environment(Path("/code"), {"OMP_NUM_THREADS": "2"})
    assert environment["PYTHONPATH"].split(os.pathsep) == ["/code", "/elsewhere", str(Path.cwd() / "mine")]
    assert environment["PYTHONSAFEPATH"] == "1"
    assert environment["OMP_NUM_THREADS"] == "2"


def cancel_now(project: Project, *cells: Entry) -> list[Cancelling]:
    return cancel(project.runs, cell_statuses(project.runs, cells))


def test_a_running_cell_stops_as_cancelled_and_a_queued_one_never_starts(project: Project) -> None:
    cells = [entry("wait", 1), entry("wait", 2), entry("wait", 3)]
    first = scheduler(project, *cells, at_once=1)
    summaries = []
    thread = threading.Thread(target=lambda: summaries.append(first.run()))
    thread.start()
    until(working(project, cells[0]))
    until(seen(project, cells[1], "queued"))
    answers = cancel_now(project, *cells[:2])
    assert [answer.asked for answer in answers] == [True, True]
    assert "was asked to stop" in answers[0].what
    until(seen(project, cells[0], "cancelled"))
    go(project)
    thread.join(10)
    assert states(summaries[0]) == {"cancelled": ["wait-1", "wait-2"], "done": ["wait-3"]}
    assert summaries[0].cancelled[1].reason == "cancelled before it started"
    assert sorted(ran(project)) == ["wait-1 1", "wait-3 1"]
    # Only a retry runs them again, even those that had not started.
    assert states(run(project, *cells)) == {"cancelled": ["wait-1", "wait-2"], "done": ["wait-3"]}
    assert [state.state for state in cell_statuses(project.runs, cells)] == ["cancelled", "cancelled", "done"]
    assert states(run(project, *cells, retry=["cancelled"])) == {"done": ["wait-1", "wait-2", "wait-3"]}
    assert sorted(ran(project)) == ["wait-1 1", "wait-1 2", "wait-2 1", "wait-3 1"]


def test_cancelling_does_not_depend_on_clocks(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [entry("wait", 1), entry("wait", 2)]
    first = Background(scheduler(project, *cells, at_once=1))
    until(working(project, cells[0]))
    until(seen(project, cells[1], "queued"))
    with monkeypatch.context() as patched:
        patched.setattr(time, "time", lambda: 1000.0)
        assert cancel_now(project, cells[1])[0].asked
    go(project)
    assert states(first.result()) == {"done": ["wait-1"], "cancelled": ["wait-2"]}


def test_a_cell_that_is_cancelled_and_retried_at_once_runs_once(project: Project) -> None:
    """The first run has it in its queue and has not yet noticed the cancellation; the retry takes it over."""
    cells = [entry("wait", 1), entry("done", 2)]
    first = scheduler(project, *cells, at_once=1)
    assert first.submit() == {"waiting": 2}
    assert cancel_now(project, cells[1])[0].asked
    second = scheduler(project, cells[1], retry=["cancelled"])
    assert second.submit() == {"waiting": 1}
    go(project)
    assert states(second.follow()) == {"done": ["done-2"]}
    assert states(first.follow()) == {"done": ["wait-1", "done-2"]}
    assert sorted(ran(project)) == ["done-2 1", "wait-1 1"]


def test_a_follower_does_not_run_cells_cancelled_in_another_queue(project: Project) -> None:
    words = [f"wait:{seed}" for seed in range(1, 6)]
    cells = [entry("wait", seed) for seed in range(1, 6)]
    with other_run(project, *words):
        until(lambda: sum(observe(project.runs, key(cell)).state == "running" for cell in cells) == 4)
        second = scheduler(project, *cells)
        assert second.submit() == {"followed": 5}
        assert all(answer.asked for answer in cancel_now(project, cells[4]))
        until(seen(project, cells[4], "cancelled"))
        go(project)
        summary = second.follow()
    assert states(summary) == {"done": [cell.name for cell in cells[:4]], "cancelled": ["wait-5"]}
    assert len(ran(project)) == 4


def test_a_job_without_its_scheduler_can_be_cancelled(project: Project) -> None:
    cell = entry("wait", 1)
    orphaned(project, cell)
    assert cancel_now(project, cell)[0].asked
    assert until(seen(project, cell, "cancelled")).outcome == "cancelled"


def test_one_request_for_a_shared_stage(project: Project) -> None:
    cell = entry("wait", 1)
    with other_run(project, "wait:1"):
        until(working(project, cell))
        answers = cancel_now(project, cell, replace(cell, name="twin"))
        assert [answer.what for answer in answers] == [answers[0].what] * 2
        assert answers[1].state.entry.name == "twin"
        until(seen(project, cell, "cancelled"))


def test_a_process_that_merely_has_the_recorded_id_is_not_signalled(project: Project) -> None:
    """The id in process.json belongs to an unrelated process, so the scheduler, which knows its child, must act."""
    cell = entry("wait", 1)
    stranger = subprocess.Popen([sys.executable, "-Sc", "input()"], stdin=subprocess.PIPE)
    with other_run(project, "wait:1"):
        status = until(working(project, cell))
        assert status.directory is not None
        path = process_path(AttemptDir(status.directory))
        write_json(path, {**read_json(path), "pid": stranger.pid})
        (answer,) = cancel_now(project, cell)
        assert answer.asked
        assert "will stop it" in answer.what
        until(seen(project, cell, "cancelled"))
    assert stranger.poll() is None
    stranger.communicate(b"\n")


def test_an_unreachable_process_is_reported(project: Project) -> None:
    cell = entry("wait", 1)
    orphaned(project, cell)
    pid = job_pid(observe(project.runs, key(cell)))
    (attempt,) = attempts(project.runs, key(cell))
    write_json(process_path(attempt), {"host": "elsewhere", "pid": pid, "token": token(pid)})
    (answer,) = cancel_now(project, cell)
    os.kill(pid, signal.SIGKILL)
    assert not answer.asked
    assert "cannot be reached from here" in answer.what


def test_only_queued_and_running_cells_are_cancelled(project: Project) -> None:
    run(project, entry("done", 1))
    answers = cancel_now(project, entry("done", 1), entry("done", 2))
    assert [answer.what for answer in answers] == [
        "is done: there is nothing to cancel",
        "is missing: there is nothing to cancel",
    ]
    assert not any(answer.asked for answer in answers)
    assert not list(project.runs.rglob("cancel.json"))


def test_a_token_names_one_process() -> None:
    assert token(os.getpid()) == token(os.getpid()) != ""
    child = subprocess.Popen([sys.executable, "-Sc", ""])
    time.sleep(0.02)
    assert token(child.pid) not in ("", token(os.getpid()))
    child.wait()
    assert token(child.pid) == ""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that is the whole PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    return tmp_path


def install(programs: Path, name: str, script: str = "") -> None:
    (programs / name).write_text(f"#!/bin/sh\n{script}\n")
    (programs / name).chmod(0o755)


def test_auto_chooses_slurm_if_a_controller_answers(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = programs / "runs"

    def chosen(word: str) -> tuple[type, str]:
        scheduler, note = choose(word, runs)
        return type(scheduler), note

    assert chosen("auto") == (LocalScheduler, "")
    install(programs, "sbatch")
    assert chosen("local") == (LocalScheduler, "")
    here, note = chosen("auto")
    assert (here, "no SLURM controller answers" in note) == (LocalScheduler, True)
    runs.mkdir()
    assert chosen("auto") == (LocalScheduler, "")  # jobs have run here before, and nowhere else
    (runs / ".slurm").mkdir()
    assert chosen("auto") == (LocalScheduler, note)
    install(programs, "scontrol", "echo 'Slurmctld(primary) at here is UP'")
    assert chosen("auto") == (SlurmScheduler, "")
    assert chosen("local") == (LocalScheduler, "")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    assert chosen("auto") == (LocalScheduler, "")


@pytest.mark.parametrize(("word", "message"), [("slurm", "--executor local"), ("slrum", "did you mean 'slurm'")])
def test_an_unavailable_executor_is_refused(word: str, message: str, programs: Path) -> None:
    with pytest.raises(GpasError, match=message):
        choose(word, programs)
