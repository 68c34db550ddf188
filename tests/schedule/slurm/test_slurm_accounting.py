"""A cluster with accounting: additions to the queue, limits, and the effects of an outage."""

import time
from pathlib import Path

import pytest
from cluster import Cluster, until
from slurm_toy import SlurmToy, job_of, one_cell, paused, started, wait

pytestmark = pytest.mark.long


def test_states_are_complete_without_accounting(accounted: Cluster, tmp_path: Path) -> None:
    """F12: first slurmdbd is down, then its database as well."""
    toy = started(accounted, tmp_path / "toy")
    accounted.kill("slurmdbd")
    assert toy.states() == {"pre-gpas-s1": "running"}
    accounted.kill("mariadbd")
    toy.finish()
    accounted.up()
    assert "no job to start" in toy.submit()
    toy.trained_once()


def test_forgotten_jobs_are_looked_up_in_accounting(accounted: Cluster, tmp_path: Path) -> None:
    toy = started(accounted, tmp_path / "toy")
    accounted.run("scancel", job_of(toy))
    until(lambda: not accounted.run("squeue", "-h", "-t", "all"), 120, "the controller to forget the job")
    # slurmdbd writes the end of the job later than the controller forgets it.
    until(lambda: toy.states() == {"pre-gpas-s1": "cancelled"}, 60, "accounting to have the end of the job")
    assert "CANCELLED" in toy.status()["pre-gpas-s1"]["evidence"]


def test_an_element_cancelled_with_scancel_while_it_waits_stays_cancelled(accounted: Cluster, tmp_path: Path) -> None:
    """SLURM forgets it at once: the absence of a record is the evidence, also for a user who has not looked before."""
    toy = SlurmToy(tmp_path / "toy", accounted, steps=5)
    accounted.run("scontrol", "update", "partitionname=low", "state=down")
    toy.submit()
    (removed,) = (job for job in toy.queue() if job.endswith("_1"))
    accounted.run("scancel", removed)
    for _ in range(2):
        assert toy.states() == {"pre-s1": "queued", "pre-gpas-s1": "cancelled"}
        assert "0 jobs submitted, 1 already queued or running, 1 failed or cancelled" in toy.submit()
        for path in toy.runs.glob(".slurm/.queue-*.json"):
            path.unlink()


@pytest.mark.release
def test_jobs_beyond_the_submit_limit_are_submitted_by_a_later_command(accounted: Cluster, tmp_path: Path) -> None:
    toy = SlurmToy(tmp_path / "toy", accounted, seeds="1, 2, 3, 4", steps=20)
    accounted.run("sacctmgr", "-i", "modify", "user", "root", "set", "maxsubmitjobs=3")
    try:
        said = toy.submit()
        assert "not yet submitted" in said
        assert 1 <= len(toy.queue()) <= 3
        waited = toy.submit("--wait", expect=0)
        assert "8 done" in waited
    finally:
        accounted.run("sacctmgr", "-i", "modify", "user", "root", "set", "maxsubmitjobs=-1")
    toy.trained_once()


def test_memory_grows_by_attempt_and_usage_compares_it_with_what_was_used(accounted: Cluster, tmp_path: Path) -> None:
    """The first attempt asks for less than a training needs, and SLURM or the kernel ends it. Its array was renamed."""
    toy = one_cell(accounted, tmp_path / "toy", steps=20)
    toy.edit("mem: 1000M", "mem: [150M, 2000M]")
    accounted.run("scontrol", "update", "partitionname=low", "state=down")
    toy.submit()
    accounted.run("scontrol", "update", f"jobid={job_of(toy).partition('_')[0]}", "jobname=other")
    accounted.run("scontrol", "update", "partitionname=low", "state=up")
    said = toy.submit("--wait", expect=0)
    assert "1 done" in said
    asked = [facts["resources"]["mem"] for facts in toy.facts()]
    assert (asked[0], asked[-1], len(set(asked))) == ("150M", "2000M", 2), toy.said()
    assert "out of memory at 150M, now 2000M" in toy("why", "pre-gpas-s1").out

    def profiles() -> dict[int, int]:
        used = toy("top", "small", "--usage", "--json").json["profiles"]
        return {profile["memory"] >> 20: profile["used_memory"] for profile in used}

    until(lambda: profiles().keys() == {150, 2000} and profiles()[2000], 60, "accounting to have both jobs")
    assert {"150M", "1.953G"} <= set(toy("top", "small", "--usage").out.split())


@pytest.mark.release
def test_time_grows_after_an_attempt_that_reached_its_limit(cluster: Cluster, tmp_path: Path) -> None:
    """SLURM warns it 20 to 50 seconds before the limit; until then the training is stopped, so that it does not end."""
    toy = one_cell(cluster, tmp_path / "toy")
    toy.edit("time: '0:10:00'", "time: ['0:02:00', '0:10:00']")
    toy.submit()
    wait(toy.training)
    with paused(toy):
        time.sleep(100)
    wait(lambda: not toy.queue())
    assert "longer time limit" in toy.said()
    assert toy.states() == {"pre-gpas-s1": "interrupted"}
    toy.submit()
    toy.finish()
    assert "it reached the time limit of 0:02:00, now 0:10:00" in toy("why", "pre-gpas-s1").out
    toy.trained_once()
