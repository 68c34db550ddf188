"""Stopped and killed jobs and schedulers, and concurrent runs: nothing is lost and nothing runs twice."""

import signal
import socket
import time
from dataclasses import replace

import pytest
from launching import (
    Background,
    Notices,
    entry,
    go,
    job_pid,
    key,
    kill,
    orphaned,
    other_run,
    ran,
    run,
    scheduler,
    seen,
    states,
    until,
    working,
)  # fmt: skip

from gpas_cli import file_systems
from gpas_cli.grid import Entry
from gpas_cli.plan.machine import ThisMachine
from gpas_cli.project import Project
from gpas_cli.schedule.scheduler import exit_code
from gpas_cli.state import claims, locks
from gpas_cli.state.claims import SILENCE_SECONDS
from gpas_cli.state.observe import observe
from gpas_cli.store.rundir import attempts


def test_a_killed_job_is_started_again_by_the_same_run(project: Project) -> None:
    cell = entry("wait", 1)
    notices = Notices()
    first = Background(scheduler(project, cell, reporter=notices))
    kill(job_pid(until(working(project, cell))))
    until(lambda: ran(project) == ["wait-1 1", "wait-1 2"])
    go(project)
    assert states(first.result()) == {"done": ["wait-1"]}
    assert notices.heard == ["g/wait-1: attempt 1 was killed (signal 9); it starts again"]


def test_a_job_killed_repeatedly_is_interrupted(project: Project) -> None:
    """`retries` limits the number of attempts in a row without progress."""
    killed = entry("killed", 1)
    cells = [replace(killed, resources=replace(killed.resources, retries=2)), entry("done", 2)]
    summary = run(project, *cells)
    assert states(summary) == {"interrupted": ["killed-1"], "done": ["done-2"]}
    assert summary.interrupted[0].reason.startswith("2 attempts in a row made no progress; ")
    assert "signal 9, exit.json" in summary.interrupted[0].reason
    assert summary.interrupted[0].status.signal == 9
    assert exit_code(summary) == 3
    assert [line for line in ran(project) if "killed" in line] == ["killed-1 1", "killed-1 2"]


def test_a_job_out_of_memory_is_started_again_with_half_the_rows(project: Project) -> None:
    cell = entry("hungry", 1)
    notices = Notices()
    assert states(run(project, cell, reporter=notices)) == {"done": ["hungry-1"]}
    tried = [attempt.read_attempt() for attempt in attempts(project.runs, key(cell))]
    assert [record.resources.micro_batch for record in tried] == [0, 4, 2]
    assert [record.retry.why for record in tried[1:] if record.retry] == [
        f"out of memory; now {rows} rows at a time" for rows in (4, 2)
    ]
    assert notices.heard == [
        f"g/hungry-1: attempt {number} ran out of memory; it starts again with {rows} rows at a time"
        for number, rows in ((1, 4), (2, 2))
    ]


def test_a_job_out_of_memory_with_one_row_has_failed(project: Project) -> None:
    cell = entry("hungry", 1)
    cell = replace(cell, resources=replace(cell.resources, micro_batch=1, retries=9), axes={"act": "greedy"})
    summary = run(project, cell)
    assert [(item.status.attempt, item.reason) for item in summary.failed] == [
        (1, "out of memory: 1 rows at once do not fit the device")
    ]


def test_a_job_killed_after_each_checkpoint_finishes(project: Project) -> None:
    cell = entry("progressing", 1)
    cell = replace(cell, resources=replace(cell.resources, retries=1))
    assert states(run(project, cell)) == {"done": ["progressing-1"]}
    assert ran(project) == [f"progressing-1 {number}" for number in (1, 2, 3)]


def test_stop_interrupts_and_the_next_run_resumes(project: Project) -> None:
    cells = [entry("wait", 1), entry("wait", 2)]
    first = Background(scheduler(project, *cells, at_once=1))
    until(working(project, cells[0]))
    first.scheduler.stop()
    summary = first.result()
    assert states(summary) == {"interrupted": ["wait-1"], "skipped": ["wait-2"]}
    assert summary.skipped[0].reason == "not started, because the command was stopped"
    assert observe(project.runs, key(cells[0])).outcome == "interrupted"
    go(project)
    assert states(run(project, *cells)) == {"done": ["wait-1", "wait-2"]}


def test_a_second_stop_kills(project: Project) -> None:
    cell = entry("stubborn", 1)
    first = Background(scheduler(project, cell))
    step = until(working(project, cell)).progress.step
    first.scheduler.stop()
    until(lambda: first.scheduler._stops_carried_out)
    until(lambda: until(working(project, cell)).progress.step > step + 2)
    first.scheduler.stop()
    assert "signal 9" in first.result().interrupted[0].reason


def test_ctrl_c_sends_sigterm_to_the_jobs(project: Project) -> None:
    cell = entry("wait", 1)
    with other_run(project, "wait:1") as other:
        until(working(project, cell))
        other.send_signal(signal.SIGINT)
        output = other.communicate(timeout=10)
    assert "{'interrupted': ['wait-1']}" in output
    assert observe(project.runs, key(cell)).outcome == "interrupted"


def test_two_racing_runs_start_each_stage_once(project: Project) -> None:
    seeds = range(1, 9)
    words = [f"done:{seed}" for seed in seeds]
    with other_run(project, *words) as one, other_run(project, *words) as two:
        outputs = [run.communicate(timeout=20) for run in (one, two)]
    everything = [f"done-{seed}" for seed in seeds]
    assert outputs == [f"{ ({'done': everything}) }\n"] * 2
    assert sorted(ran(project)) == [f"{name} 1" for name in everything]


def test_jobs_outlive_a_killed_scheduler_and_are_followed(project: Project) -> None:
    cells = [entry("wait", 1), entry("wait", 2)]
    orphaned(project, *cells)
    assert [observe(project.runs, key(cell)).state for cell in cells] == ["running", "running"]
    second = scheduler(project, *cells)
    assert second.submit() == {"followed": 2}
    go(project)
    assert states(second.follow()) == {"done": ["wait-1", "wait-2"]}
    assert sorted(ran(project)) == ["wait-1 1", "wait-2 1"]


def test_a_job_that_outlives_its_scheduler_keeps_its_slot(project: Project) -> None:
    cells = [entry("wait", 1), entry("done", 2)]
    orphaned(project, cells[0])
    one_slot = ThisMachine(gpus=(), cores=(0,))
    notices = Notices()
    second = Background(scheduler(project, *cells, machine=one_slot, reporter=notices))
    until(seen(project, cells[1], "queued"))
    notices.round()
    assert observe(project.runs, key(cells[1])).state == "queued"
    go(project)
    assert states(second.result()) == {"done": ["wait-1", "done-2"]}
    assert ran(project) == ["wait-1 1", "done-2 1"]


@pytest.fixture
def local_disk(project: Project) -> None:
    if file_systems.type_of(project.config) not in file_systems.LOCAL or not locks.boot_id():
        pytest.skip("the folder for tests is on a file system that may be shared, or there is no boot id")


def killed_with_its_run(project: Project, cell: Entry) -> None:
    """Recreate the files left when a container is killed with a `gpas run` and its job in it."""
    orphaned(project, cell)
    kill(job_pid(observe(project.runs, key(cell))))
    until(seen(project, cell, "interrupted"))


@pytest.mark.parametrize("container", ["this", "another"])
def test_a_run_and_a_job_that_were_killed_are_run_again(
    project: Project, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, container: str
) -> None:
    """The name of a host does not distinguish containers, and changes with them."""
    cell = entry("wait", 1)
    killed_with_its_run(project, cell)
    if container == "another":
        request.getfixturevalue("local_disk")
        monkeypatch.setattr(socket, "gethostname", lambda: "another-container")
    assert observe(project.runs, key(cell)).state == "interrupted"
    assert "its exit was not recorded" in observe(project.runs, key(cell)).evidence
    go(project)
    began = time.monotonic()
    assert states(run(project, cell)) == {"done": ["wait-1"]}
    assert ran(project) == ["wait-1 1", "wait-1 2"]
    assert time.monotonic() - began < SILENCE_SECONDS / 4
    assert not list(claims.folder(project.runs).iterdir())


@pytest.mark.parametrize("elsewhere", ["another kernel", "a shared file system"])
def test_a_free_lock_proves_nothing_about_another_host(
    project: Project, monkeypatch: pytest.MonkeyPatch, elsewhere: str
) -> None:
    cell = entry("wait", 1)
    killed_with_its_run(project, cell)
    monkeypatch.setattr(socket, "gethostname", lambda: "another-host")
    if elsewhere == "another kernel":
        monkeypatch.setattr(locks, "boot_id", lambda: "another-boot")
    else:
        monkeypatch.setattr(file_systems, "type_of", lambda _path: "nfs4")
    assert observe(project.runs, key(cell)).source == "silence"


def test_the_queue_of_a_dead_run_is_taken_over(project: Project) -> None:
    """This run follows the other run's job and, after the other run's death, finishes it and the rest of its queue."""
    seeds = (1, 2, 3, 4, 5, 6)
    cells = [entry("wait", seed) for seed in seeds]
    with other_run(project, *[f"wait:{seed}" for seed in seeds]) as other:
        until(lambda: sum(observe(project.runs, key(cell)).state == "running" for cell in cells) == 4)
        second = scheduler(project, *cells)
        assert second.submit() == {"followed": 6}
        kill(other.pid)
        other.wait()
    go(project)
    assert states(second.follow()) == {"done": [cell.name for cell in cells]}
    assert sorted(ran(project)) == [f"wait-{seed} 1" for seed in seeds]
