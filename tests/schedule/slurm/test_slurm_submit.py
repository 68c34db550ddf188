"""Submission with a fake sbatch, and a grid on a real controller: submitted once, whichever submitter dies."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
from cases import cases
from cluster import Cluster
from fake_slurm import Site, row
from marks import release_but
from slurm_steps import Steps
from slurm_toy import INSTANTS, TIMEOUT_SECONDS, SlurmToy, die_at, gated

from gpas_cli.schedule.retry import reached_limit
from gpas_cli.schedule.slurm import squeue
from gpas_cli.spec.run import Resources


@cases("schedule/slurm/cases.yaml")
def test_the_job_id_is_found_in_the_output_of_a_wrapper(site: Site, says: str) -> None:
    site.sbatch(says)
    said = site.submit().out
    assert "as SLURM job 7:" in said
    assert "as SLURM job 8:" in said  # the trainings depend on the text, whose job id was parsed
    (script,) = [path for path in site.gpas.runs.glob(".slurm/*/submission.sh") if "--dependency" in path.read_text()]
    assert "#SBATCH --dependency=afterok:7_0\n" in script.read_text()


@pytest.mark.parametrize("says", ["true", "echo submitted", "echo 7; echo 8", "echo 'Submitted batch job 7'"])
def test_a_missing_job_id_is_looked_up_by_name(site: Site, says: str) -> None:
    site.sbatch(says)
    listed = row("@", ArrayJobID="31").rstrip("\n").replace("@".ljust(width := squeue._COLUMNS["Name"]), "")
    found = f"for word; do case $word in --name=*) printf '%-{width}s%s\\n' \"${{word#*=}}\" '{listed}';; esac; done"
    site.programs.script("squeue", f"cat $0.says; {found}")
    assert "as SLURM job 31:" in site.submit().out
    assert all(f"--name={name}" in " ".join(site.programs.calls("squeue")) for name in site.names())


@pytest.mark.skipif(find_spec("wandb") is not None, reason="wandb is installed")
def test_missing_libraries_are_reported_before_submission(site: Site) -> None:
    site.gpas.edit("    title: Small\n", "    title: Small\n    watch: {wandb: somewhere}\n")
    assert "asks for Weights & Biases, which is not installed" in site.submit(expect=2).err
    assert not site.names()


def test_user_defaults_do_not_override_the_script(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = ("SBATCH_JOB_NAME", "SBATCH_ARRAY_INX", "SBATCH_SIGNAL", "SBATCH_NO_REQUEUE", "SBATCH_OPEN_MODE",
            "SBATCH_WAIT", "SBATCH_CPUS_PER_GPU", "SQUEUE_STATES", "SQUEUE_PARTITION", "SCANCEL_PARTITION",
            "SACCT_FORMAT", "SINFO_FORMAT", "SCONTROL_FEDERATION", "SLURM_JOB_ID")  # fmt: skip
    theirs = ("SBATCH_ACCOUNT", "SBATCH_PARTITION", "SBATCH_EXPORT", "SBATCH_TIMELIMIT", "SLURM_CLUSTERS")
    for name in (*ours, *theirs):
        monkeypatch.setenv(name, "1")
    site.submit()
    seen = site.environment(2)
    assert not set(ours) & set(seen)
    assert set(theirs) <= set(seen)
    for name, call in zip(site.names(), site.programs.calls("sbatch"), strict=True):
        assert f"--job-name={name} --array=0" in call


def test_options_of_a_profile_override_user_defaults(site: Site, steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    steps.resources("time: '1:00:00', mem: 1G")
    for name in ("SBATCH_TIMELIMIT", "SBATCH_MEM_PER_CPU", "SBATCH_PARTITION"):
        monkeypatch.setenv(name, "1")
    site.submit()
    assert {name for name in site.environment(2) if name.startswith("SBATCH_")} == {"SBATCH_PARTITION"}


@cases("schedule/slurm/cases.yaml")
def test_when_a_time_limit_counts_as_reached(limit: str, seconds: float, wanted: bool) -> None:
    assert reached_limit(Resources(time=limit, notice=20), seconds) is wanted


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
    toy.finish_once()
    assert {event["processes"] for event in toy.events() if event["kind"] == "start"} == {2}
    assert toy.losses() == pytest.approx(alone.losses(), rel=1e-5)


@pytest.mark.long
def test_two_submitters_at_once_submit_each_cell_once(cluster: Cluster, tmp_path: Path) -> None:
    toy = SlurmToy(tmp_path / "toy", cluster, seeds="1, 2, 3")
    rivals = [toy.start("run", "grid", "--executor", "slurm", "--yes") for _ in range(3)]
    assert [rival.wait(TIMEOUT_SECONDS) for rival in rivals] == [0, 0, 0]
    assert len(toy.queue()) <= 6
    toy.finish_once(6)


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
    toy.finish_once(len(INSTANTS) + 2)
