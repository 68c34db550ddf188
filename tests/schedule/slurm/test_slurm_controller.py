"""Controllers that hang, die or lose jobs, accounting, and sites with a different setup from the test cluster's."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from cluster import Cluster, until
from programs import program
from slurm_toy import SlurmToy, job_of, node_of, one_cell, paused, started, wait

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
    toy.finish_once()


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
    toy.finish_once(2)


def test_an_array_is_found_by_name_when_the_answer_of_sbatch_is_lost(cluster: Cluster, tmp_path: Path) -> None:
    """F8: the controller hangs during sbatch, which fails although the array exists."""
    toy = one_cell(cluster, tmp_path / "toy", steps=20)
    pid, real = cluster.alive("slurmctld"), shutil.which("sbatch")
    halting = f'kill -STOP {pid}\n(sleep 5; kill -CONT {pid}) > /dev/null 2>&1 &\nexec timeout 3 {real} "$@"'
    wrapper = program(tmp_path / "bin/sbatch", halting)
    environment = {**toy.environment(), "PATH": f"{tmp_path}/bin:{toy.environment()['PATH']}"}
    toy.environment = lambda: environment  # type: ignore[method-assign]
    try:
        said = toy.submit()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert "found the array in the queue" in said
    assert "1 job submitted" in said
    wrapper.unlink()
    toy.finish_once(1)


@pytest.mark.release
def test_jobs_beyond_the_submit_limit_are_submitted_by_a_later_command(accounted: Cluster, tmp_path: Path) -> None:
    toy = SlurmToy(tmp_path / "toy", accounted, seeds="1, 2, 3, 4", steps=20)
    accounted.run("sacctmgr", "-i", "modify", "user", "root", "set", "maxsubmitjobs=3")
    try:
        assert "not yet submitted" in toy.submit()
        assert 1 <= len(toy.queue()) <= 3
        assert "8 done" in toy.submit("--wait", expect=0)
    finally:
        accounted.run("sacctmgr", "-i", "modify", "user", "root", "set", "maxsubmitjobs=-1")
    toy.trained_once()


def test_memory_grows_by_attempt_and_usage_compares_it_with_what_was_used(accounted: Cluster, tmp_path: Path) -> None:
    """The first attempt asks for less than a training needs, and SLURM or the kernel ends it. Its array was renamed."""
    toy = one_cell(accounted, tmp_path / "toy", steps=600)  # SLURM looks at the memory every 2 s
    toy.edit("mem: 1000M", "mem: [150M, 2000M]")
    accounted.run("scontrol", "update", "partitionname=low", "state=down")
    toy.submit()
    accounted.run("scontrol", "update", f"jobid={job_of(toy).partition('_')[0]}", "jobname=other")
    accounted.run("scontrol", "update", "partitionname=low", "state=up")
    assert "1 done" in toy.submit("--wait", expect=0)
    asked = [facts["resources"]["mem"] for facts in toy.facts()]
    assert (asked[0], asked[-1], len(set(asked))) == ("150M", "2000M", 2), toy.said()
    assert "out of memory at 150M, now 2000M" in toy("why", "pre-gpas-s1").out

    def profiles() -> dict[int, int]:
        used = toy("status", "small", "--usage", "--json").json["profiles"]
        return {profile["memory"] >> 20: profile["used_memory"] for profile in used}

    until(lambda: profiles().keys() == {150, 2000} and profiles()[2000], 60, "accounting to have both jobs")
    assert {"150M", "1.953G"} <= set(toy("status", "small", "--usage").out.split())


def test_a_cell_with_gpus_never_trains_on_a_node_without_them(cluster: Cluster, tmp_path: Path) -> None:
    """The GPUs of this cluster exist only in its configuration."""
    toy = one_cell(cluster, tmp_path / "toy", steps=20, resources="gpus: 1, retries: 2")
    toy.submit()
    toy.until(lambda states: states["pre-gpas-s1"] == "failed", allowed=("queued", "running", "failed"))
    nodes = [fact["slurm"]["nodes"] for fact in toy.facts()]
    assert len(set(nodes)) == 2, nodes
    assert "asked for 1 GPU, but none is visible on" in toy.status()["pre-gpas-s1"]["cause"]
    assert not [event for event in toy.events() if event["kind"] in ("start", "step")]
    assert "is requeued, to run on another node than" in toy.said()
    toy("retry", "--executor", "slurm", "--yes")
    (script,) = [path for path in toy.runs.glob(".slurm/*/submission.sh") if "--exclude" in path.read_text()]
    assert f"#SBATCH --exclude={','.join(sorted(nodes))}\n" in script.read_text()


def test_defaults_of_programs_are_ignored(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = {"SBATCH_EXPORT": "NONE", "SBATCH_JOB_NAME": "mine", "SBATCH_ARRAY_INX": "9", "SBATCH_OPEN_MODE": "t",
              "SQUEUE_STATES": "COMPLETING", "SQUEUE_PARTITION": "high", "SCANCEL_PARTITION": "high",
              "SCANCEL_STATE": "RUNNING"}  # fmt: skip
    for name, value in theirs.items():
        monkeypatch.setenv(name, value)
    toy = SlurmToy(tmp_path / "toy", cluster, resources="sbatch: ['--comment=it''s a \"test\"']", norms="pre, post")
    cluster.run("scontrol", "update", "partitionname=low", "state=down")
    toy.submit()
    assert "already queued" in toy.submit()
    toy("cancel", "post-s1", "--yes")
    states = toy.states()
    assert (states["post-s1"], states["pre-s1"]) == ("cancelled", "queued")
    cluster.run("scontrol", "update", "partitionname=low", "state=up")
    toy.until(
        lambda states: set(states.values()) == {"done", "cancelled"}, allowed=("queued", "running", "done", "cancelled")
    )


def test_values_of_resources_are_in_no_file_that_other_users_can_read(cluster: Cluster, tmp_path: Path) -> None:
    secret = "S3CRETTOK"
    wrapper = program(tmp_path / f"{secret}-python", f'exec {sys.executable} "$@"')
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
    toy.finish_once()


def test_a_waiting_cell_cancelled_with_scancel_stays_cancelled(accounted: Cluster, tmp_path: Path) -> None:
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
    toy.finish_once(texts=1)
