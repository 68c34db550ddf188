"""A grid on a real SLURM controller: submitted once, whichever submitter dies, with a true status throughout."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster import Cluster
from marks import release_but
from slurm_toy import INSTANTS, TIMEOUT_SECONDS, SlurmToy, die_at, gated, wait


@contextmanager
def closed(cluster: Cluster) -> Iterator[None]:
    """Accept jobs inside the block, but start none."""
    cluster.run("scontrol", "update", "PartitionName=low", "State=DOWN")
    try:
        yield
    finally:
        cluster.run("scontrol", "update", "PartitionName=low", "State=UP")


def test_a_grid_is_submitted_trained_and_tabulated(toy: SlurmToy) -> None:
    preview = toy.submit("--dry-run")
    assert "#SBATCH --array=0-1" in preview
    assert "wckey" not in preview
    assert not toy.runs.exists()
    with closed(toy.cluster):
        assert "2 jobs submitted" in toy.submit()
        again = toy.submit()
    assert "0 jobs submitted, 2 already queued or running" in again
    toy.edit("A toy grid", "Another title")  # edits after submission do not affect the jobs
    toy.finish()
    assert "no job to start" in toy.submit()
    assert len(toy.attempts()) == 2
    assert {fact["executor"] for fact in toy.facts()} == {"slurm"}
    assert "Pre-LN" in toy("table", "--format", "markdown").out
    toy.trained_once()


@pytest.mark.long
@pytest.mark.parametrize(("nodes", "pack"), release_but([(1, 2), (2, 1)], (2, 1)))
def test_tasks_of_one_job_train_one_cell_together(cluster: Cluster, tmp_path: Path, nodes: int, pack: int) -> None:
    """Two cells that share a job do so as well."""
    # The names of this cluster's nodes do not resolve.
    together = f"ranks: 2, nodes: {nodes}, pack: {pack}, cpus: 2, environment: [MASTER_ADDR=127.0.0.1]"
    toy, alone = SlurmToy(tmp_path / "toy", cluster, resources=together), SlurmToy(tmp_path / "alone", cluster)
    toy.edit("mem: 1000M", "mem: 2000M")
    toy.submit()
    assert alone.start("run", "grid", "--executor", "local", "--yes").wait(TIMEOUT_SECONDS) == 0
    toy.finish()
    toy.trained_once()
    assert {event["processes"] for event in toy.events() if event["kind"] == "start"} == {2}
    assert toy.losses() == pytest.approx(alone.losses(), rel=1e-5)


@pytest.mark.long
def test_two_submitters_at_once_submit_each_cell_once(cluster: Cluster, tmp_path: Path) -> None:
    toy = SlurmToy(tmp_path / "toy", cluster, seeds="1, 2, 3")
    rivals = [toy.start("run", "grid", "--executor", "slurm", "--yes") for _ in range(3)]
    assert [rival.wait(TIMEOUT_SECONDS) for rival in rivals] == [0, 0, 0]
    assert len(toy.queue()) <= 6
    toy.finish()
    assert len(toy.attempts()) == 6
    toy.trained_once()


@pytest.mark.release
def test_submitters_killed_at_any_instant_lose_and_duplicate_no_job(cluster: Cluster, tmp_path: Path) -> None:
    """Each submitter has its own cells; one more command completes all of them."""
    toy = SlurmToy(tmp_path / "toy", cluster, seeds=", ".join(map(str, range(1, len(INSTANTS) + 3))))
    gated(toy)
    seed = 1
    for instant in INSTANTS:
        seeds = (seed, seed + 1) if instant in ("first-claim", "last-claim") else (seed,)
        seed += len(seeds)
        die_at(instant, toy, "--where", f"seed={','.join(map(str, seeds))}")
        assert set(toy.states().values()) <= {"missing", "queued", "running", "done"}
    toy.submit()
    toy.finish()
    assert len(toy.attempts()) == len(INSTANTS) + 2, toy.said()
    toy.trained_once()


def test_a_refused_submission_is_removed(cluster: Cluster, tmp_path: Path) -> None:
    toy = SlurmToy(tmp_path / "toy", cluster, resources="partition: nowhere")
    done = toy("run", "grid", "--executor", "slurm", expect=2)
    assert "nowhere" in done.err or "partition" in done.err
    assert "Traceback" not in done.err
    assert set(toy.states().values()) == {"missing"}
    assert not [path for path in toy.runs.glob(".slurm/*") if path.is_dir()]
    assert not list(toy.runs.glob("??/*/claim.json"))


def test_cells_beyond_the_array_limit_are_spread_over_several_arrays(cluster: Cluster, tmp_path: Path) -> None:
    seeds = ", ".join(map(str, range(1, 31)))
    toy = SlurmToy(tmp_path / "toy", cluster, seeds=seeds, resources="sbatch: [--hold], at_once: 3")
    said = toy.submit()
    assert said.count("submitted gpas-small-") == 2
    assert "51 elements" in said
    assert "9 elements" in said
    assert len(toy.queue()) == 60
    assert set(toy.states().values()) == {"queued"}


def test_a_single_cell_can_be_cancelled_before_it_starts(cluster: Cluster, tmp_path: Path) -> None:
    toy = SlurmToy(tmp_path / "toy", cluster, resources="sbatch: [--hold]")
    toy.submit()
    toy("cancel", "pre-s1")
    assert toy.states() == {"pre-s1": "cancelled", "pre-gpas-s1": "queued"}
    wait(lambda: len(toy.queue()) == 1)
    assert "1 already queued" in toy.submit()
    assert toy.states() == {"pre-s1": "cancelled", "pre-gpas-s1": "queued"}


def test_an_array_cancelled_as_a_whole_in_slurm_is_cancelled_here(cluster: Cluster, tmp_path: Path) -> None:
    toy = SlurmToy(tmp_path / "toy", cluster, resources="sbatch: [--hold]")
    toy.submit()
    cluster.run("scancel", "-u", str(os.getuid()))
    assert toy.until(lambda states: "queued" not in states.values())
    assert set(toy.states().values()) == {"cancelled"}
    assert "0 jobs submitted" in toy.submit()
