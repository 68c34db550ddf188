"""Node failures under real jobs: each time the grid completes, and status stays true."""

import json
import signal
from pathlib import Path

import pytest
from cluster import NODES, Cluster
from slurm_toy import job_of, node_of, paused, started, wait

pytestmark = pytest.mark.long


def test_an_orphan_on_a_node_presumed_dead_is_fenced(cluster: Cluster, tmp_path: Path) -> None:
    """F4: SLURM starts the job elsewhere while the first copy still runs; the first copy notices, saves and exits."""
    toy = started(cluster, tmp_path / "toy")
    node = node_of(cluster)
    with paused(toy):  # otherwise it might finish before its rival has started
        cluster.kill(f"slurmd.{node}")
        cluster.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
        wait(lambda: len(toy.attempts()) == 2)
    first = toy.attempts()[0]
    wait(lambda: (first / "exit.json").exists())
    assert json.loads((first / "exit.json").read_text())["superseded"] is True
    assert "attempt 2 has been started" in toy.said()
    cluster.up()
    toy.finish()
    assert len(toy.attempts()) == 2
    toy.trained_once()


def test_a_result_from_a_node_presumed_dead_counts(cluster: Cluster, tmp_path: Path) -> None:
    """F5: the orphan finishes while SLURM has its job pending, which then finds nothing left to do."""
    toy = started(cluster, tmp_path / "toy")
    node = node_of(cluster)
    others = ",".join(f"n{i}" for i in range(1, NODES + 1) if f"n{i}" != node)
    cluster.run("scontrol", "update", f"nodename={others}", "state=drain", "reason=test")
    with paused(toy):
        cluster.kill(f"slurmd.{node}")
        cluster.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
        wait(lambda: set(toy.queue().values()) == {"PENDING"})
    toy.until(lambda states: states["pre-gpas-s1"] == "done", allowed=("queued", "running", "done"))
    assert set(toy.queue().values()) == {"PENDING"}
    cluster.run("scontrol", "update", f"nodename={others}", "state=resume")
    wait(lambda: toy.queue() == {})
    assert "has its result already" in toy.said()
    assert toy.states() == {"pre-gpas-s1": "done"}
    assert len(toy.attempts()) == 1
    toy.trained_once()


def test_a_node_that_loses_power_costs_only_an_attempt(cluster: Cluster, tmp_path: Path) -> None:
    """F6: the job's processes die with their node; SLURM requeues the job, and no command submits it again."""
    toy = started(cluster, tmp_path / "toy")
    cluster.power_off(node_of(cluster))
    assert "0 jobs submitted, 1 already" in toy.submit()
    toy.finish()
    assert len(toy.attempts()) == 2
    toy.trained_once()


def test_a_hanging_node_may_finish_a_job_that_slurm_gave_up(cluster: Cluster, tmp_path: Path) -> None:
    """F7: the node is silent for longer than SlurmdTimeout; its job and the replacement agree."""
    toy = started(cluster, tmp_path / "toy")
    node = node_of(cluster)
    cluster.kill(f"slurmd.{node}", signal.SIGSTOP)
    wait(lambda: len(toy.attempts()) == 2 or toy.states()["pre-gpas-s1"] == "done")
    cluster.kill(f"slurmd.{node}", signal.SIGCONT)
    toy.finish()
    assert "0 jobs submitted" in toy.submit()
    toy.trained_once()


def test_a_suspended_job_is_alive_and_drained_nodes_only_delay_jobs(cluster: Cluster, tmp_path: Path) -> None:
    """F16 and F17."""
    toy = started(cluster, tmp_path / "toy", resources="at_once: 1")
    job = job_of(toy)
    nodes = ",".join(f"n{i}" for i in range(1, NODES + 1))
    cluster.run("scontrol", "update", f"nodename={nodes}", "state=drain", "reason=test")
    cluster.run("scontrol", "suspend", job)
    wait(lambda: "SUSPENDED" in toy.queue().values())
    assert toy.states() == {"pre-gpas-s1": "running"}
    toy.edit("seed: [1]", "seed: [1, 2]")
    assert "1 job submitted, 1 already queued or running" in toy.submit()
    assert toy.states() == {"pre-gpas-s1": "running", "pre-gpas-s2": "queued"}
    cluster.run("scontrol", "resume", job)
    toy.until(lambda states: states["pre-gpas-s1"] == "done", allowed=("queued", "running", "done"))
    assert toy.states()["pre-gpas-s2"] == "queued"
    cluster.run("scontrol", "update", f"nodename={nodes}", "state=resume")
    toy.finish()
    assert len(toy.attempts()) == 2
    toy.trained_once()
