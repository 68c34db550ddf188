"""A cluster with accounting: additions to the queue, limits, and the effects of an outage."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster import Cluster, until
from slurm_toy import SlurmToy, job_of, started

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
    cell = toy.status()["pre-gpas-s1"]
    assert cell["state"] == "cancelled"
    assert "CANCELLED" in cell["evidence"]


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
