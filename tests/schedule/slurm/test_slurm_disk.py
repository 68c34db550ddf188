"""A disk that is read-only, full, littered or gone, under jobs and submitters: one more command completes all."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster import Cluster
from disks import full
from slurm_toy import SlurmToy, job_of, kill, one_cell, started, wait

pytestmark = pytest.mark.long


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Make everything in `folder` immutable, even for root and for processes with open files."""
    if os.geteuid() != 0 or subprocess.run(["chattr", "-R", "+i", str(folder)], capture_output=True).returncode:
        pytest.skip("making a folder immutable needs root and a file system with chattr")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-R", "-i", str(folder)], check=True)


def complete(toy: SlurmToy) -> None:
    """Check that one more `gpas run grid` completes the table, with nothing done twice."""
    toy.submit()
    toy.finish()
    assert "GPAS" in toy("table", "--format", "markdown").out
    toy.trained_once()


@pytest.mark.release
def test_a_folder_made_read_only_under_a_running_job_costs_only_an_attempt(cluster: Cluster, tmp_path: Path) -> None:
    toy = started(cluster, tmp_path / "toy")
    with read_only(toy.runs):
        refused = toy("run", "grid", "--executor", "slurm", "--yes", expect=2)
        assert "Traceback" not in refused.err
        toy.until(lambda states: states["pre-gpas-s1"] == "interrupted", allowed=("running", "interrupted"))
        wait(lambda: toy.queue() == {})
    complete(toy)
    assert len(toy.attempts()) == 2


@pytest.mark.release
def test_a_folder_made_read_only_before_a_job_starts_only_delays_it(cluster: Cluster, tmp_path: Path) -> None:
    """F18: SLURM cannot open the job's log, and ends the job without a message."""
    toy = one_cell(cluster, tmp_path / "toy", steps=20, resources="sbatch: [--hold]")
    toy.submit()
    with read_only(toy.runs):
        cluster.run("scontrol", "release", job_of(toy))
        toy.until(lambda states: states["pre-gpas-s1"] == "missing", allowed=("queued", "running", "missing"))
    assert "log" in toy.status()["pre-gpas-s1"]["cause"]
    toy.edit(", sbatch: [--hold]", "")
    complete(toy)
    assert len(toy.attempts()) == 1


def test_a_read_only_cell_folder_is_reported_and_the_job_runs_again(cluster: Cluster, tmp_path: Path) -> None:
    """The log can be written, but no attempt can be created."""
    toy = one_cell(cluster, tmp_path / "toy", steps=20, resources="sbatch: [--hold]")
    toy.submit()
    (stage,) = (path.parent for path in toy.runs.glob("??/*/claim.json"))
    with read_only(stage):
        cluster.run("scontrol", "release", job_of(toy))
        toy.until(lambda states: states["pre-gpas-s1"] == "missing", allowed=("queued", "running", "missing"))
    assert "no attempt could be created" in toy.said()
    assert "Traceback" not in toy.said()
    toy.edit(", sbatch: [--hold]", "")
    complete(toy)


def test_a_disk_that_fills_up_during_training_costs_only_an_attempt(
    cluster: Cluster, tmp_path: Path, small_disk: Path
) -> None:
    toy = one_cell(cluster, tmp_path / "toy")
    (toy.folder / "runs").symlink_to(small_disk)
    toy.submit()
    wait(lambda: bool(list(small_disk.glob("??/*/*/checkpoints/step-*"))))
    with full(small_disk):
        toy.until(lambda states: states["pre-gpas-s1"] == "interrupted", allowed=("running", "interrupted"))
        wait(lambda: toy.queue() == {})
        refused = toy("run", "grid", "--executor", "slurm", "--yes", expect=2)
        assert "are free there" in refused.err
        assert "Traceback" not in refused.err
    complete(toy)
    assert len(toy.attempts()) == 2
    assert [event["resumed_from"] for event in toy.events() if "resumed_from" in event][1] > 0


def test_a_disk_that_is_full_when_jobs_start_only_delays_them(
    cluster: Cluster, tmp_path: Path, small_disk: Path
) -> None:
    toy = SlurmToy(tmp_path / "toy", cluster, resources="sbatch: [--hold]")
    (toy.folder / "runs").symlink_to(small_disk)
    toy.submit()
    with full(small_disk):
        for job in toy.queue():
            cluster.run("scontrol", "release", job)
        toy.until(lambda states: set(states.values()) <= {"missing", "interrupted"})
        wait(lambda: toy.queue() == {})
    toy.edit(", sbatch: [--hold]", "")
    complete(toy)


@pytest.mark.release
def test_half_written_files_of_killed_processes_are_ignored(cluster: Cluster, tmp_path: Path) -> None:
    """F14: stale temporary files of every file that is replaced by renaming, and files torn by a power failure."""
    toy = started(cluster, tmp_path / "toy", resources="micro_batch: 1")
    wait(lambda: bool(list(toy.attempts()[0].glob("checkpoints/step-*"))))
    kill(toy.supervisors()[0])
    toy.until(lambda states: states["pre-gpas-s1"] == "interrupted", allowed=("running", "interrupted"))
    (attempt,) = toy.attempts()
    stage = attempt.parent
    for half in ("checkpoints/.writing-step-00000999", "checkpoints/step-00000998", "../.new-0123456789abcdef"):
        (attempt / half).mkdir()
        (attempt / half / "00000.safetensors").write_bytes(b"half")
        (attempt / half / ".attempt.json.0123456789abcdef").write_text('{"schema": 1, "ke')
    with (attempt / "journal.jsonl").open("ab") as journal:
        journal.write(b'0123abcd {"n":99,"kind":"outc')
    (attempt / ".exit.json.0123456789abcdef").write_text('{"code": 0')
    (stage / ".claim.json.host-1-abcd").write_text("{")
    (stage / "claim.json").write_text('{"submitter": "h')
    (toy.runs / ".slurm/gpas-small-0123456789ab").mkdir()
    (toy.runs / ".slurm/gpas-small-0123456789ab/elements.jsonl").write_text("[{")
    (toy.runs / f".slurm/.queue-{os.getuid()}.json").write_text('{"time": 1')
    (toy.runs / f".slurm/..queue-{os.getuid()}.json.0123456789abcdef").write_text("{")
    (toy.runs / ".code/.new-0123456789abcdef").mkdir()
    (toy.runs / ".submitters/login-1-abcd.lock").touch()
    assert toy.states() == {"pre-gpas-s1": "interrupted"}
    complete(toy)
    assert len(toy.attempts()) == 2
    assert next(e["resumed_from"] for e in reversed(toy.events()) if "resumed_from" in e) in range(100, 998)


def test_removing_a_submission_folder_frees_its_cells(cluster: Cluster, tmp_path: Path) -> None:
    """F18: when the job starts, the folder of its log is gone, and with it the record of its work."""
    toy = one_cell(cluster, tmp_path / "toy", steps=20, resources="sbatch: [--hold]")
    toy.submit()
    (place,) = (path for path in toy.runs.glob(".slurm/gpas-*") if path.is_dir())
    shutil.rmtree(place)
    assert toy.states() == {"pre-gpas-s1": "missing"}
    cluster.run("scontrol", "release", job_of(toy))
    wait(lambda: toy.queue() == {})
    assert toy.states() == {"pre-gpas-s1": "missing"}
    toy.edit(", sbatch: [--hold]", "")
    complete(toy)
    assert len(toy.attempts()) == 1
