"""A controller that hangs, dies or loses jobs: nothing is lost or doubled, and status stays true."""

import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from cluster import Cluster, until
from slurm_toy import job_of, node_of, one_cell, paused, started, wait

pytestmark = pytest.mark.long


@contextmanager
def forgotten(cluster: Cluster, aside: Path) -> Iterator[None]:
    """Lose the jobs accepted inside the block: at its end the controller crashes before saving any of them."""
    cluster.kill("slurmctld", signal.SIGTERM)  # an earlier state has jobs that have ended since then
    shutil.copytree(cluster.folder / "state", aside)
    cluster.up()
    yield
    cluster.kill("slurmctld")
    shutil.rmtree(cluster.folder / "state")  # a new cluster had no file of jobs, which would stay
    shutil.copytree(aside, cluster.folder / "state")
    cluster.up()


def test_states_stay_correct_and_age_while_the_controller_is_down(cluster: Cluster, tmp_path: Path) -> None:
    """F10, and F8 in short: while SLURM does not answer, nothing is submitted."""
    toy = started(cluster, tmp_path / "toy", resources="at_once: 1")
    toy.edit("seed: [1]", "seed: [1, 2]")
    with paused(toy):
        cluster.run("scontrol", "update", "partitionname=low", "state=down")
        toy.submit()
        assert toy.states() == {"pre-gpas-s1": "running", "pre-gpas-s2": "queued"}
        saved = cluster.folder / "state/job_state"  # jobs that a dying controller has not saved never existed: F9
        (name,) = cluster.run("squeue", "-h", "-t", "PD", "-o", "%j").split()
        until(lambda: name.encode() in saved.read_bytes(), 60, "the controller to save the queue")
        cluster.kill("slurmctld")
        assert toy.states() == {"pre-gpas-s1": "running", "pre-gpas-s2": "queued"}
        refused = toy("run", "grid", "--executor", "slurm", "--yes", expect=2)
        assert "nothing was submitted" in refused.err
        time.sleep(4)
        cells = toy.status()
        assert {name: cell["state"] for name, cell in cells.items()} == {
            "pre-gpas-s1": "running",
            "pre-gpas-s2": "queued",
        }
        assert "ago; since then" in cells["pre-gpas-s2"]["evidence"]
    wait(lambda: toy.states()["pre-gpas-s1"] == "done")
    cluster.up()
    cluster.run("scontrol", "update", "partitionname=low", "state=up")
    toy.finish()
    toy.trained_once()


@pytest.mark.release
def test_forgotten_pending_jobs_are_submitted_again(cluster: Cluster, tmp_path: Path) -> None:
    """F9: a crashed controller has lost the jobs it accepted, and reuses their ids for other jobs."""
    toy = one_cell(cluster, tmp_path / "toy", steps=20, resources="sbatch: [--hold]")
    with forgotten(cluster, tmp_path / "state"):
        toy.submit()
        lost = job_of(toy).partition("_")[0]
        assert toy.states() == {"pre-gpas-s1": "queued"}
    words = ("--array=0", "-H", "-J", "gpas-other", "-o", "/dev/null", "--wrap", "true")
    other = [cluster.run("sbatch", "--parsable", *words).strip() for _ in range(3)]
    assert lost in other, "the id was handed out again"
    # The previous answer is cached for some seconds.
    toy.until(lambda states: states == {"pre-gpas-s1": "missing"}, allowed=("queued", "missing"))
    assert "does not know" in toy.status()["pre-gpas-s1"]["cause"]
    toy.edit(", sbatch: [--hold]", "")
    assert "1 job submitted" in toy.submit()
    wait(lambda: toy.states() == {"pre-gpas-s1": "done"})
    assert len(toy.attempts()) == 1
    wait(lambda: list(toy.queue().values()) == ["PENDING"] * 3)  # the others are not submitted again
    toy.trained_once()


def test_a_forgotten_running_job_is_run_again(cluster: Cluster, tmp_path: Path) -> None:
    """F9: the job's processes are killed when their node reports them, and its id is given to another job."""
    toy = one_cell(cluster, tmp_path / "toy", checkpoint_every=20)
    with ExitStack() as afterwards:
        with forgotten(cluster, tmp_path / "state"):
            toy.submit()
            wait(toy.training)
            node = node_of(cluster)
            afterwards.enter_context(paused(toy))
        toy.until(lambda states: states["pre-gpas-s1"] == "interrupted", allowed=("running", "interrupted"))
        # A node that has not cleaned up the first job of that id refuses the second, or ends it with the first.
        wait(lambda: not cluster.steps(node))
    assert "1 job submitted" in toy.submit()
    toy.finish()
    assert len(toy.attempts()) == 2
    toy.trained_once()


def test_an_array_is_found_by_name_when_the_answer_of_sbatch_is_lost(cluster: Cluster, tmp_path: Path) -> None:
    """F8: the controller hangs during sbatch, which fails although the array exists."""
    toy = one_cell(cluster, tmp_path / "toy", steps=20)
    hook = tmp_path / "bin"
    hook.mkdir()
    program = hook / "sbatch"
    pid = cluster.alive("slurmctld")
    real = shutil.which("sbatch")
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
    assert "found the array in the queue" in said
    assert "1 job submitted" in said
    program.unlink()
    toy.finish()
    assert len(toy.attempts()) == 1
    toy.trained_once()
