"""Stopped and killed jobs and schedulers, and concurrent runs: nothing is lost and nothing runs twice."""

import signal
import socket
import time
from dataclasses import replace

import pytest
from launching import Background, Lab, Notices, entry, job_pid, kill, states, until

from gpas_cli import file_systems
from gpas_cli.grid import Entry
from gpas_cli.plan.machine import ThisMachine
from gpas_cli.project import Project
from gpas_cli.schedule.scheduler import exit_code
from gpas_cli.state import claims, locks
from gpas_cli.state.claims import SILENCE_SECONDS


def test_a_killed_job_is_started_again_by_the_same_run(lab: Lab) -> None:
    cell = entry("wait", 1)
    notices = Notices()
    first = Background(lab.scheduler(cell, reporter=notices))
    kill(job_pid(until(lab.working(cell))))
    until(lambda: lab.ran() == ["wait-1 1", "wait-1 2"])
    lab.go()
    assert states(first.result()) == {"done": ["wait-1"]}
    assert notices.heard == ["g/wait-1: attempt 1 was killed (signal 9); it starts again"]


def test_a_job_killed_repeatedly_is_interrupted(lab: Lab) -> None:
    """`retries` limits the number of attempts in a row without progress."""
    killed = entry("killed", 1)
    cells = [replace(killed, resources=replace(killed.resources, retries=2)), entry("done", 2)]
    summary = lab.run(*cells)
    assert states(summary) == {"interrupted": ["killed-1"], "done": ["done-2"]}
    assert summary.interrupted[0].reason.startswith("2 attempts in a row made no progress; ")
    assert "signal 9, exit.json" in summary.interrupted[0].reason
    assert summary.interrupted[0].status.signal == 9
    assert exit_code(summary) == 3
    assert [line for line in lab.ran() if "killed" in line] == ["killed-1 1", "killed-1 2"]


def test_a_job_out_of_memory_is_started_again_with_half_the_rows(lab: Lab) -> None:
    cell = entry("hungry", 1)
    notices = Notices()
    assert states(lab.run(cell, reporter=notices)) == {"done": ["hungry-1"]}
    tried = [attempt.read_attempt() for attempt in lab.attempts(cell)]
    assert [record.resources.micro_batch for record in tried] == [0, 4, 2]
    assert [record.retry.why for record in tried[1:] if record.retry] == [
        f"out of memory; now {rows} rows at a time" for rows in (4, 2)
    ]
    assert notices.heard == [
        f"g/hungry-1: attempt {number} ran out of memory; it starts again with {rows} rows at a time"
        for number, rows in ((1, 4), (2, 2))
    ]


def test_a_job_out_of_memory_with_one_row_has_failed(lab: Lab) -> None:
    cell = entry("hungry", 1)
    cell = replace(cell, resources=replace(cell.resources, micro_batch=1, retries=9), axes={"act": "greedy"})
    summary = lab.run(cell)
    assert [(item.status.attempt, item.reason) for item in summary.failed] == [
        (1, "out of memory: 1 rows at once do not fit the device")
    ]


def test_a_job_killed_after_each_checkpoint_finishes(lab: Lab) -> None:
    cell = entry("progressing", 1)
    cell = replace(cell, resources=replace(cell.resources, retries=1))
    assert states(lab.run(cell)) == {"done": ["progressing-1"]}
    assert lab.ran() == [f"progressing-1 {number}" for number in (1, 2, 3)]


def test_stop_interrupts_and_the_next_run_resumes(lab: Lab) -> None:
    cells = [entry("wait", 1), entry("wait", 2)]
    first = Background(lab.scheduler(*cells, at_once=1))
    until(lab.working(cells[0]))
    first.scheduler.stop()
    summary = first.result()
    assert states(summary) == {"interrupted": ["wait-1"], "skipped": ["wait-2"]}
    assert summary.skipped[0].reason == "not started, because the command was stopped"
    assert lab.observe(cells[0]).outcome == "interrupted"
    lab.go()
    assert states(lab.run(*cells)) == {"done": ["wait-1", "wait-2"]}


def test_a_second_stop_kills(lab: Lab) -> None:
    cell = entry("stubborn", 1)
    first = Background(lab.scheduler(cell))
    step = until(lab.working(cell)).progress.step
    first.scheduler.stop()
    until(lambda: first.scheduler._stops_carried_out)
    until(lambda: until(lab.working(cell)).progress.step > step + 2)
    first.scheduler.stop()
    assert "signal 9" in first.result().interrupted[0].reason


def test_ctrl_c_sends_sigterm_to_the_jobs(lab: Lab) -> None:
    cell = entry("wait", 1)
    with lab.other_run("wait:1") as other:
        until(lab.working(cell))
        other.send_signal(signal.SIGINT)
        output = other.communicate(timeout=10)
    assert "{'interrupted': ['wait-1']}" in output
    assert lab.observe(cell).outcome == "interrupted"


def test_two_racing_runs_start_each_stage_once(lab: Lab) -> None:
    seeds = range(1, 9)
    words = [f"done:{seed}" for seed in seeds]
    with lab.other_run(*words) as one, lab.other_run(*words) as two:
        outputs = [run.communicate(timeout=20) for run in (one, two)]
    everything = [f"done-{seed}" for seed in seeds]
    assert outputs == [f"{ ({'done': everything}) }\n"] * 2
    assert sorted(lab.ran()) == [f"{name} 1" for name in everything]


def test_jobs_outlive_a_killed_scheduler_and_are_followed(lab: Lab) -> None:
    cells = [entry("wait", 1), entry("wait", 2)]
    lab.orphaned(*cells)
    assert [lab.observe(cell).state for cell in cells] == ["running", "running"]
    second = lab.scheduler(*cells)
    assert second.submit() == {"followed": 2}
    lab.go()
    assert states(second.follow()) == {"done": ["wait-1", "wait-2"]}
    assert sorted(lab.ran()) == ["wait-1 1", "wait-2 1"]


def test_a_job_that_outlives_its_scheduler_keeps_its_slot(lab: Lab) -> None:
    cells = [entry("wait", 1), entry("done", 2)]
    lab.orphaned(cells[0])
    one_slot = ThisMachine(gpus=(), cores=(0,))
    notices = Notices()
    second = Background(lab.scheduler(*cells, machine=one_slot, reporter=notices))
    until(lab.seen(cells[1], "queued"))
    notices.round()
    assert lab.observe(cells[1]).state == "queued"
    lab.go()
    assert states(second.result()) == {"done": ["wait-1", "done-2"]}
    assert lab.ran() == ["wait-1 1", "done-2 1"]


@pytest.fixture
def local_disk(project: Project) -> None:
    if file_systems.type_of(project.config) not in file_systems.LOCAL or not locks.boot_id():
        pytest.skip("the folder for tests is on a file system that may be shared, or there is no boot id")


def killed_with_its_run(lab: Lab, cell: Entry) -> None:
    """Recreate the files left when a container is killed with a `gpas run` and its job in it."""
    lab.orphaned(cell)
    kill(job_pid(lab.observe(cell)))
    until(lab.seen(cell, "interrupted"))


@pytest.mark.parametrize("container", ["this", "another"])
def test_a_run_and_a_job_that_were_killed_are_run_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, container: str
) -> None:
    """The name of a host does not distinguish containers, and changes with them."""
    cell = entry("wait", 1)
    killed_with_its_run(lab, cell)
    if container == "another":
        request.getfixturevalue("local_disk")
        monkeypatch.setattr(socket, "gethostname", lambda: "another-container")
    assert lab.observe(cell).state == "interrupted"
    assert "its exit was not recorded" in lab.observe(cell).evidence
    lab.go()
    began = time.monotonic()
    assert states(lab.run(cell)) == {"done": ["wait-1"]}
    assert lab.ran() == ["wait-1 1", "wait-1 2"]
    assert time.monotonic() - began < SILENCE_SECONDS / 4
    assert not list(claims.folder(lab.runs).iterdir())


@pytest.mark.parametrize("elsewhere", ["another kernel", "a shared file system"])
def test_a_free_lock_proves_nothing_about_another_host(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, elsewhere: str
) -> None:
    cell = entry("wait", 1)
    killed_with_its_run(lab, cell)
    monkeypatch.setattr(socket, "gethostname", lambda: "another-host")
    if elsewhere == "another kernel":
        monkeypatch.setattr(locks, "boot_id", lambda: "another-boot")
    else:
        monkeypatch.setattr(file_systems, "type_of", lambda _path: "nfs4")
    assert lab.observe(cell).source == "silence"


def test_the_queue_of_a_dead_run_is_taken_over(lab: Lab) -> None:
    """This run follows the other run's job and, after the other run's death, finishes it and the rest of its queue."""
    seeds = (1, 2, 3, 4, 5, 6)
    cells = [entry("wait", seed) for seed in seeds]
    with lab.other_run(*[f"wait:{seed}" for seed in seeds]) as other:
        until(lambda: sum(lab.observe(cell).state == "running" for cell in cells) == 4)
        second = lab.scheduler(*cells)
        assert second.submit() == {"followed": 6}
        kill(other.pid)
        other.wait()
    lab.go()
    assert states(second.follow()) == {"done": [cell.name for cell in cells]}
    assert sorted(lab.ran()) == [f"wait-{seed} 1" for seed in seeds]
