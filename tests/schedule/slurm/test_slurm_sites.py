"""Sites and users with a different setup from the test cluster's, and nodes that differ from their description."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster
from slurm_toy import SlurmToy, one_cell, wait

pytestmark = pytest.mark.long


def test_a_cell_with_gpus_never_trains_on_a_node_without_them(cluster: Cluster, tmp_path: Path) -> None:
    """The GPUs of this cluster exist only in its configuration."""
    toy = one_cell(cluster, tmp_path / "toy", steps=20, resources="gpus: 1, retries: 2")
    toy.submit()
    toy.until(lambda states: states["pre-gpas-s1"] == "failed", allowed=("queued", "running", "failed"))
    nodes = [fact["slurm"]["nodes"] for fact in toy.facts()]
    assert len(set(nodes)) == 2, nodes
    cell = toy.status()["pre-gpas-s1"]
    assert "asked for 1 GPU, but none is visible on" in cell["cause"]
    assert not [event for event in toy.events() if event["kind"] in ("start", "step")]
    assert "is requeued, to run on another node than" in toy.said()
    toy("retry", "--executor", "slurm", "--yes")
    (script,) = [path for path in toy.runs.glob(".slurm/*/submission.sh") if "--exclude" in path.read_text()]
    assert f"#SBATCH --exclude={','.join(sorted(nodes))}\n" in script.read_text()


def test_site_and_user_defaults_for_slurm_programs_are_ignored(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = {"SBATCH_EXPORT": "NONE", "SBATCH_JOB_NAME": "mine", "SBATCH_ARRAY_INX": "9", "SBATCH_OPEN_MODE": "t",
              "SQUEUE_STATES": "COMPLETING", "SQUEUE_PARTITION": "high", "SCANCEL_PARTITION": "high",
              "SCANCEL_STATE": "RUNNING"}  # fmt: skip
    for name, value in theirs.items():
        monkeypatch.setenv(name, value)
    toy = SlurmToy(tmp_path / "toy", cluster, resources="sbatch: ['--comment=it''s a \"test\"']", norms="pre, post")
    cluster.run("scontrol", "update", "partitionname=low", "state=down")
    toy.submit()
    assert "already queued" in toy.submit()
    toy("cancel", "post-s1")
    states = toy.states()
    assert (states["post-s1"], states["pre-s1"]) == ("cancelled", "queued")
    cluster.run("scontrol", "update", "partitionname=low", "state=up")
    toy.until(
        lambda states: set(states.values()) == {"done", "cancelled"}, allowed=("queued", "running", "done", "cancelled")
    )


def test_values_of_resources_are_in_no_file_that_other_users_can_read(cluster: Cluster, tmp_path: Path) -> None:
    secret = "S3CRETTOK"
    wrapper = tmp_path / f"{secret}-python"
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    resources = f"environment: [A={secret}], setup: [export B=1, 'source {tmp_path}/{secret}'], python: {wrapper}"
    toy = one_cell(cluster, tmp_path / "toy", steps=20, resources=resources)
    before = os.umask(0o022)
    toy.submit()
    failed = toy.until(lambda states: "failed" in states.values(), allowed=("queued", "running", "failed"))
    (name,) = failed
    cause = toy.status()[name]["cause"]
    assert "resources.setup failed with exit 1 in its line 2" in cause
    assert secret not in cause
    (tmp_path / secret).touch()
    try:
        toy("retry", "--executor", "slurm", "--yes")
        toy.finish()
    finally:
        os.umask(before)
    files = [path for path in toy.folder.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    names = {path.name for path in files if path.name != "experiments.yaml"}
    assert {path.name.partition("_")[2] for path in files} >= {"0_0_log.out"}, names  # the shell names the missing file
    assert "submission.sh" in names
    assert [path for path in files if path.stat().st_mode & 0o077] == [toy.folder / "experiments.yaml"]


def asked(toy: SlurmToy) -> dict[str, str]:
    """Return the findings of `gpas doctor --nodes`: name -> detail."""
    found = toy("doctor", "--nodes", "--json", expect=4).json["findings"]
    return {each["what"]: each["detail"] for each in found}


def test_doctor_probes_a_node_and_leaves_no_job_behind(cluster: Cluster, tmp_path: Path) -> None:
    toy = one_cell(cluster, tmp_path / "toy", resources="gpus: 1")
    found = asked(toy)
    assert "torch finds none" in found["GPUs on nodes"]
    toy.edit("gpus: 1", "python: /no/such/python, partition: high")
    found = asked(toy)
    assert "/no/such/python: not found" in found["SLURM node"]
    cluster.run("scontrol", "update", "partitionname=high", "state=down")
    found = asked(toy)
    cluster.run("scontrol", "update", "partitionname=high", "state=up")
    assert "PartitionDown" in found["SLURM node"]
    assert toy.queue() == {}


@pytest.fixture
def private(cluster: Cluster) -> Iterator[Cluster]:
    """Yield a cluster that shows users only their own jobs."""
    cluster.configure("MaxJobCount=", "PrivateData=jobs\nMaxJobCount=")
    yield cluster
    cluster.configure("PrivateData=jobs\n", "")


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to act as another user")
def test_two_users_of_one_folder_submit_each_cell_once(private: Cluster, tmp_path: Path) -> None:
    toy = SlurmToy(tmp_path / "toy", private)
    private.run("scontrol", "update", "partitionname=low", "state=down")
    toy.submit()
    before = toy.queue()

    def other(*words: str) -> str:
        # A different user to SLURM, who may still read this Python and the folder wherever they are.
        user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=+dac_override",
                "--ambient-caps=+dac_override"]  # fmt: skip
        env = {**toy.environment(), "HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [*user, *toy.command(*words)]
        done = subprocess.run(command, cwd=toy.folder, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    cells = json.loads(other("status", "--json"))["cells"]
    assert {cell["state"] for cell in cells} == {"unknown"}, cells
    assert "root submitted it" in cells[0]["evidence"]
    assert "0 jobs submitted" in other("run", "grid", "--executor", "slurm", "--yes")
    assert set(toy.states().values()) == {"queued"}  # the other user's cached answers affect only that user
    assert toy.queue() == before
    private.run("scontrol", "update", "partitionname=low", "state=up")
    toy.finish()
    toy.trained_once()


def test_a_cell_cancelled_with_scancel_while_it_waits_for_another_stays_cancelled(
    accounted: Cluster, tmp_path: Path
) -> None:
    """This also holds when the controller has forgotten the job and only accounting remembers it."""
    toy = one_cell(accounted, tmp_path / "toy", tokenised=False)
    accounted.run("scontrol", "update", "partitionname=low", "state=down")
    toy.submit()
    names = accounted.run("squeue", "-h", "-r", "-o", "%i %E").splitlines()
    (waits,) = [line.split()[0] for line in names if "after" in line]
    accounted.run("scancel", waits)
    assert toy.states() == {"pre-gpas-s1": "cancelled"}
    for path in toy.runs.glob(".slurm/.queue-*.json"):
        path.unlink()
    wait(lambda: waits.split("_")[0] not in accounted.run("squeue", "-h", "-t", "all", "-o", "%F"))
    assert toy.states() == {"pre-gpas-s1": "cancelled"}
    assert "0 jobs submitted" in toy.submit()
    accounted.run("scontrol", "update", "partitionname=low", "state=up")
    toy("retry", "--executor", "slurm", "--yes")
    toy.finish()
    toy.trained_once(texts=1)
