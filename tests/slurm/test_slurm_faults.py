"""What a cluster does to jobs, done to a real one: each time the grid completes, and status says nothing false."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from cluster import Cluster, until
from end_to_end import Toy
from slurm_toy import BROKEN, SlurmToy, kill, wait

pytestmark = pytest.mark.long

LONG = 800  # updates: long enough to be caught in the middle on a busy machine


def one_cell(cluster: Cluster, folder: Path, *, resources: str = "", **more: object) -> SlurmToy:
    """A project of a single cell, pre-gpas-s1."""
    toy = SlurmToy(folder, cluster, resources=resources, **{"steps": LONG, "checkpoint_every": 100, **more})
    toy.edit("gate: [none, gpas]", "gate: [gpas]")
    toy.edit("against: {gate: none}", "against: {gate: gpas}")
    return toy


def started(cluster: Cluster, folder: Path, **more: object) -> SlurmToy:
    """A project of a single cell whose job is training."""
    toy = one_cell(cluster, folder, **more)
    toy.submit()
    wait(toy.training)
    return toy


def job_of(toy: SlurmToy) -> str:
    return next(iter(toy.queue()))


def test_warned_jobs_save_requeue_and_repeat_no_update(cluster: Cluster, tmp_path: Path) -> None:
    """F1, F2, F3: a warning signal as before a time limit, then a requeue without any; the curve is unbroken."""
    straight = one_cell(cluster, tmp_path / "straight")
    straight_run = Toy.start(straight, "run", "grid", "--executor", "local", "--yes")
    toy = started(cluster, tmp_path / "toy")
    cluster.run("scancel", "--signal=USR2", job_of(toy))
    wait(lambda: len(toy.attempts()) == 2 and toy.training())
    cluster.run("scontrol", "requeue", job_of(toy))
    toy.finish()
    assert straight_run.wait(120) == 0
    assert len(toy.attempts()) == 3
    assert [event["outcome"] for event in toy.events() if event["kind"] == "outcome"][-1] == "done"
    assert toy.losses() == straight.losses()
    toy.trained_once()


def test_a_log_is_followed_across_requeues_to_the_end_of_the_cell(cluster: Cluster, tmp_path: Path) -> None:
    toy = one_cell(cluster, tmp_path / "toy")
    toy.submit()
    follower = toy.start("logs", "pre-gpas-s1", "-f")
    said = toy.folder / "said.txt"
    wait(toy.training)
    for attempts in (2, 3):
        cluster.run("scontrol", "requeue", job_of(toy))
        wait(lambda attempts=attempts: len(toy.attempts()) == attempts and toy.training())
        assert follower.poll() is None, said.read_text()
    toy.finish()
    assert follower.wait(30) == 0
    lines = said.read_text().splitlines()
    headings = [i for i, line in enumerate(lines) if line.startswith("==>")]
    assert [lines[i].split(", ")[1].split(":")[0] for i in headings] == ["attempt 1", "attempt 2", "attempt 3"]
    logs = [path / "log.txt" for path in toy.attempts()]
    assert [lines[a + 1 : b] for a, b in itertools.pairwise([*headings, len(lines)])] == [
        path.read_text().splitlines() for path in logs
    ]
    assert logs[-1].read_text()


@pytest.mark.parametrize("told", ["warned", "ended"])
def test_preempted_jobs_go_on_where_they_were(cluster: Cluster, tmp_path: Path, told: str) -> None:
    """F2: warned by USR2 at once because of preempt_send_user_signal, or only told to end by TERM, SLURM's default."""
    if told == "ended":
        cluster.configure("SlurmctldParameters=", "#SlurmctldParameters=")
    toy = started(cluster, tmp_path / "toy", checkpoint_every=10**6)
    words = ("-p", "high", "-N", "4", "--exclusive", "-t", "1", "-o", "/dev/null", "--wrap", "sleep 1")
    cluster.run("sbatch", *words)
    toy.finish()
    cluster.configure("#SlurmctldParameters=", "SlurmctldParameters=")
    resumed = [event["resumed_from"] for event in toy.events() if "resumed_from" in event]
    assert len(resumed) == 2
    assert resumed[1] > 0
    toy.trained_once()


def test_an_orphan_on_a_node_taken_for_dead_is_fenced(cluster: Cluster, tmp_path: Path) -> None:
    """F4: SLURM starts the job elsewhere while the first goes on; that one notices, saves and leaves."""
    toy = started(cluster, tmp_path / "toy")
    orphan = next(event["pid"] for event in toy.events() if event["kind"] == "start")
    os.kill(orphan, signal.SIGSTOP)  # or it might be done before its rival has started
    node = cluster.run("squeue", "-h", "-o", "%N").strip()
    cluster.kill(f"slurmd.{node}")
    cluster.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    wait(lambda: len(toy.attempts()) == 2)
    os.kill(orphan, signal.SIGCONT)
    first = toy.attempts()[0]
    wait(lambda: (first / "exit.json").exists())
    assert json.loads((first / "exit.json").read_text())["superseded"] is True
    assert "attempt 2 has been started" in toy.said()
    cluster.up()
    toy.finish()
    assert len(toy.attempts()) == 2
    toy.trained_once()


def test_a_node_that_loses_power_costs_an_attempt(cluster: Cluster, tmp_path: Path) -> None:
    """F6: the job's processes are gone with their node; SLURM runs it again, and nobody submits it once more."""
    toy = started(cluster, tmp_path / "toy")
    cluster.power_off(cluster.run("squeue", "-h", "-o", "%N").strip())
    assert "0 jobs submitted, 1 already" in toy.submit()
    toy.finish()
    assert len(toy.attempts()) == 2
    toy.trained_once()


def test_while_the_controller_is_down_states_grow_older_and_stay_true(cluster: Cluster, tmp_path: Path) -> None:
    """F10; and F8 in short: where SLURM cannot be asked, nothing is submitted."""
    toy = started(cluster, tmp_path / "toy", seeds="1", resources="at_once: 1")
    toy.edit("seed: [1]", "seed: [1, 2]")
    cluster.run("scontrol", "update", "partitionname=low", "state=down")
    before = time.time()
    toy.submit()
    assert toy.states() == {"pre-gpas-s1": "running", "pre-gpas-s2": "queued"}
    saved = cluster.folder / "state/job_state"  # what a controller has not saved when it dies never was: F9
    until(lambda: saved.stat().st_mtime > before + 1, 30, "the controller to save the queue")
    cluster.kill("slurmctld")
    cells = toy.status()
    assert {name: cell["state"] for name, cell in cells.items()} == {"pre-gpas-s1": "running", "pre-gpas-s2": "queued"}
    refused = toy.gpas("run", "grid", "--executor", "slurm", "--yes", expect=2)
    assert "nothing was submitted" in refused.stderr
    time.sleep(4)
    told = toy.status()["pre-gpas-s2"]
    assert told["state"] == "queued"
    assert "ago; since then" in told["evidence"]
    wait(lambda: toy.states()["pre-gpas-s1"] == "done")
    cluster.up()
    cluster.run("scontrol", "update", "partitionname=low", "state=up")
    toy.finish()
    toy.trained_once()


def test_jobs_that_the_controller_forgot_are_submitted_again(cluster: Cluster, tmp_path: Path) -> None:
    """F9: a controller that crashed has lost what it accepted, and hands its job ids out to others."""
    toy = one_cell(cluster, tmp_path / "toy", steps=20, resources="sbatch: [--hold]")
    toy.submit()
    lost = job_of(toy)
    cluster.kill("slurmctld")
    for name in ("job_state", "job_state.old", "last_config_lite"):
        (cluster.folder / "state" / name).unlink(missing_ok=True)
    cluster.up()
    other = cluster.run(
        "sbatch", "--parsable", "--array=0", "-H", "-J", "gpas-other", "-o", "/dev/null", "--wrap", "true"
    )
    toy.edit("sbatch: [--hold]", "at_once: 1")
    state = toy.status()["pre-gpas-s1"]
    assert state["state"] == "missing", (state, lost, other)
    assert "does not know" in state["cause"]
    assert "1 jobs submitted" in toy.submit()
    toy.finish()
    assert cluster.run("squeue", "-h", "-n", "gpas-other", "-o", "%T").strip() == "PENDING"
    toy.trained_once()


def test_an_sbatch_whose_answer_is_lost_is_found_by_name(cluster: Cluster, tmp_path: Path) -> None:
    """F8: the controller hangs as sbatch asks; sbatch fails, the array exists all the same."""
    toy = one_cell(cluster, tmp_path / "toy", steps=20)
    hook = tmp_path / "bin"
    hook.mkdir()
    program = hook / "sbatch"
    pid = cluster.alive("slurmctld")
    real = "/usr/bin/sbatch"
    program.write_text(
        f'#!/bin/sh\nkill -STOP {pid}\n(sleep 5; kill -CONT {pid}) > /dev/null 2>&1 &\nexec timeout 3 {real} "$@"\n'
    )
    program.chmod(0o755)
    environment = {**toy.environment(), "PATH": f"{hook}:{toy.environment()['PATH']}"}
    toy.environment = lambda: environment  # type: ignore[method-assign]
    try:
        said = toy.submit()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert "looking for the array in the queue" in said
    assert "1 jobs submitted" in said
    program.unlink()
    toy.finish()
    assert len(toy.attempts()) == 1


def test_a_signal_at_start_up_kills_nothing(cluster: Cluster, tmp_path: Path) -> None:
    """F13: the warning comes while Python is still starting."""
    toy = one_cell(cluster, tmp_path / "toy", steps=20)
    toy.submit()
    until(lambda: "RUNNING" in toy.queue().values(), 20, "the job")
    job = job_of(toy)
    for _ in range(20):
        cluster.run("scancel", "--signal=USR2", job, check=False)
        time.sleep(0.05)
    toy.finish()


@pytest.mark.parametrize("victim", ["job", "supervisor"])
def test_a_killed_process_is_interrupted_and_goes_on(cluster: Cluster, tmp_path: Path, victim: str) -> None:
    """F15: SIGKILL of the training, or of everything that could have told of it."""
    toy = started(cluster, tmp_path / "toy", resources="micro_batch: 1")
    (supervisor,) = toy.supervisors()
    if victim == "supervisor":
        kill(supervisor)
    else:
        start = next(event for event in toy.events() if event["kind"] == "start")
        kill(start["pid"])
    toy.until(lambda states: states["pre-gpas-s1"] == "interrupted", 30, ("running", "interrupted"))
    assert "1 jobs submitted" in toy.submit()
    toy.finish()
    assert len(toy.attempts()) == 2
    toy.trained_once()


def test_scancel_is_a_cancellation_and_not_a_preemption(cluster: Cluster, tmp_path: Path) -> None:
    """F15: what the user took away with SLURM's own command is not run again until `gpas retry`."""
    toy = started(cluster, tmp_path / "toy")
    cluster.run("scancel", job_of(toy))
    toy.until(lambda states: states["pre-gpas-s1"] == "cancelled", 30, ("running", "cancelled"))
    assert "0 jobs submitted" in toy.submit()
    assert toy.queue() == {}
    toy.gpas("retry", "--executor", "slurm", "--yes")
    toy.finish()
    toy.trained_once()


def test_gpas_cancel_stops_one_running_cell_of_a_packed_job(cluster: Cluster, tmp_path: Path) -> None:
    toy = SlurmToy(tmp_path / "toy", cluster, steps=LONG, resources="pack: 2")
    assert "1 elements" in toy.submit()
    wait(toy.training)
    toy.gpas("cancel", "pre-s1")
    toy.until(lambda states: states["pre-s1"] == "cancelled", 30, ("running", "cancelled"))
    toy.until(lambda states: states["pre-gpas-s1"] == "done", 120, ("running", "cancelled", "done"))
    assert toy.states()["pre-s1"] == "cancelled"


def test_a_suspended_job_is_alive_and_a_drained_node_only_delays(cluster: Cluster, tmp_path: Path) -> None:
    """F16, F17."""
    toy = started(cluster, tmp_path / "toy")
    node = cluster.run("squeue", "-h", "-o", "%N").strip()
    cluster.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    cluster.run("scontrol", "suspend", job_of(toy))
    time.sleep(1)
    assert toy.states() == {"pre-gpas-s1": "running"}
    assert "1 already queued or running" in toy.submit()
    cluster.run("scontrol", "resume", job_of(toy))
    toy.finish()
    assert len(toy.attempts()) == 1


def test_cells_that_fail_alike_hold_the_rest_of_their_array_back(cluster: Cluster, tmp_path: Path) -> None:
    toy = SlurmToy(tmp_path / "toy", cluster, seeds="1, 2, 3", resources=f"at_once: 1, {BROKEN}")
    toy.submit()
    states = toy.until(lambda states: set(states.values()) == {"failed", "cancelled"}, 120)
    assert sorted(states.values()) == ["cancelled"] * 3 + ["failed"] * 3
    told = [cell for cell in toy.status().values() if cell["state"] == "cancelled"]
    assert all("failed alike" in cell["cause"] for cell in told)
    assert "0 jobs submitted" in toy.submit()
    toy.edit(f"at_once: 1, {BROKEN}", "at_once: 6")
    toy.gpas("retry", "--executor", "slurm", "--yes")
    toy.finish(200)
    toy.trained_once()


def test_a_time_limit_shorter_than_the_run_takes_several_requeues(cluster: Cluster, tmp_path: Path) -> None:
    """F1, with SLURM's own clock: a minute at a time, warned 40 seconds before (SLURM may be 60 s early)."""
    toy = one_cell(cluster, tmp_path / "toy", steps=4 * LONG, checkpoint_every=10**6)
    toy.edit("0:10:00", "0:01:00")
    straight = one_cell(cluster, tmp_path / "straight", steps=4 * LONG)
    straight.gpas("run", "grid", "--executor", "local", "--yes")
    toy.submit()
    toy.finish(600)
    assert len(toy.attempts()) >= 2
    assert toy.losses() == straight.losses()


def test_a_job_out_of_memory_goes_on_with_fewer_rows(cluster: Cluster, tmp_path: Path) -> None:
    """F15: SLURM kills the step; the next command submits it with half the micro-batch, and says why."""
    toy = one_cell(cluster, tmp_path / "toy", steps=20, resources="micro_batch: 4")
    toy.edit("mem: 1000M", "mem: 200M")
    toy.submit()
    cell = toy.until(lambda states: states["pre-gpas-s1"] == "interrupted", 60) and toy.status()["pre-gpas-s1"]
    assert "out of memory" in cell["cause"]
    toy.edit("mem: 200M", "mem: 1000M")
    toy.submit()
    toy.finish()
    assert toy.facts()[-1]["resources"]["micro_batch"] == 2
    assert "out of memory" in toy.facts()[-1]["retry"]["why"]
    toy.trained_once()


def test_a_hanging_node_may_finish_what_slurm_gave_up(cluster: Cluster, tmp_path: Path) -> None:
    """F7: the node does not answer for longer than SlurmdTimeout; its job and the one that replaces it agree."""
    toy = started(cluster, tmp_path / "toy")
    node = cluster.run("squeue", "-h", "-o", "%N").strip()
    cluster.kill(f"slurmd.{node}", signal.SIGSTOP)
    wait(lambda: len(toy.attempts()) == 2 or toy.states()["pre-gpas-s1"] == "done", 90)
    cluster.kill(f"slurmd.{node}", signal.SIGCONT)
    toy.finish()
    assert "0 jobs submitted" in toy.submit()


def test_accounting_that_is_down_hides_nothing(accounted: Cluster, tmp_path: Path) -> None:
    """F12."""
    toy = started(accounted, tmp_path / "toy")
    accounted.kill("slurmdbd")
    assert toy.states() == {"pre-gpas-s1": "running"}
    toy.finish()
    accounted.up()


def test_what_the_controller_has_forgotten_is_asked_of_accounting(accounted: Cluster, tmp_path: Path) -> None:
    toy = started(accounted, tmp_path / "toy")
    accounted.run("scancel", job_of(toy))
    until(lambda: not accounted.run("squeue", "-h", "-t", "all"), 120, "the controller to forget the job")
    cell = toy.status()["pre-gpas-s1"]
    assert cell["state"] == "cancelled"
    assert "CANCELLED" in cell["evidence"]


def test_what_a_limit_on_submitted_jobs_keeps_out_comes_with_a_later_command(
    accounted: Cluster, tmp_path: Path
) -> None:
    toy = SlurmToy(tmp_path / "toy", accounted, seeds="1, 2, 3, 4", steps=20)
    accounted.run("sacctmgr", "-i", "modify", "user", "root", "set", "maxsubmitjobs=3")
    try:
        said = toy.submit()
        assert "left for the next command" in said
        assert 1 <= len(toy.queue()) <= 3
        waited = toy.submit("--wait", expect=0)
        assert "8 done" in waited
    finally:
        accounted.run("sacctmgr", "-i", "modify", "user", "root", "set", "maxsubmitjobs=-1")
    toy.trained_once()


def test_later_stages_wait_in_slurm_for_the_training_they_build_on(cluster: Cluster, tmp_path: Path) -> None:
    """Both stages are submitted at once; a child of a stage that failed does not run, and retry brings both back."""
    toy = SlurmToy(tmp_path / "toy", cluster, resources=BROKEN)
    toy.edit("base: {size: toy, data: notes}", "base: {size: toy, data: notes, importance: {eval_tokens: 200}}")
    said = toy.submit()
    assert said.count("2 elements") == 2
    toy.until(lambda states: set(states.values()) == {"failed"}, 60)
    wait(lambda: toy.queue() == {})
    toy.edit(f", {BROKEN}", "")
    toy.gpas("retry", "--executor", "slurm", "--yes")
    toy.finish(200)
    assert {fact["stage"] for fact in toy.facts()} == {"pretrain", "importance"}
    assert len(toy.attempts()) == 2 + 4


def test_without_scontrol_on_the_node_the_next_command_submits_again(cluster: Cluster, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("srun", "sh"):
        (tools / name).symlink_to(shutil.which(name) or name)
    toy = started(cluster, tmp_path / "toy", resources=f"environment: ['PATH={tools}']")
    cluster.run("scancel", "--signal=USR2", job_of(toy))
    toy.until(lambda states: states["pre-gpas-s1"] == "interrupted", 60, ("running", "interrupted"))
    assert "scontrol is not on the PATH; the next `gpas run` submits what is left" in toy.said()
    assert "1 jobs submitted" in toy.submit()
    toy.finish()
    assert len(toy.attempts()) == 2
    toy.trained_once()
