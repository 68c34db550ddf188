"""Submission at sites with wrappers, filters and user defaults of their own, with a fake sbatch."""

from importlib.util import find_spec

import pytest
from fake_slurm import Site


@pytest.mark.parametrize(
    "says",
    [
        "echo 'Your quota: 12 % of 100'; echo $id; echo 'Have a nice day'",
        "echo \"$id;cluster2\"",
        "echo; echo $id; echo",
    ],
)  # fmt: skip
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
    site.programs.put("squeue", "31\n")
    said = site.submit().out
    assert "as SLURM job 31:" in said
    assert all(f"--name={name}" in " ".join(site.programs.calls("squeue")) for name in site.names())


def test_a_refusal_shows_the_whole_message_and_the_arrays_submitted_before(site: Site) -> None:
    site.gpas.edit(
        "    title: Small\n", "    title: Small\n    resources: {partition: gpu, gpus: 2, time: '1:00:00'}\n"
    )
    reasons = "echo 'sbatch: error: lua: project X is over budget' >&2; echo 'sbatch: error: lua: ask hpc@uni' >&2"
    site.sbatch(f"[ $n = 1 ] && echo 7 && exit 0; {reasons}; echo 'sbatch: error: Batch job failed' >&2; exit 1")
    said = site.submit(expect=2).err
    assert "lua: project X is over budget; lua: ask hpc@uni; Batch job failed" in said
    assert "refused: small/pre-s1 and 7 more, which asks for {gpus: 2, time: 1:00:00, partition: gpu}" in said
    (name,) = site.names()
    assert f"submitted before it, and still queued: {name}, SLURM job 7, 1 elements" in said


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


def test_options_of_a_profile_override_user_defaults(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.gpas.edit("    title: Small\n", "    title: Small\n    resources: {time: '1:00:00', mem: 1G}\n")
    for name in ("SBATCH_TIMELIMIT", "SBATCH_MEM_PER_CPU", "SBATCH_PARTITION"):
        monkeypatch.setenv(name, "1")
    site.submit()
    assert {name for name in site.environment(2) if name.startswith("SBATCH_")} == {"SBATCH_PARTITION"}


def test_expected_starts_are_readable_times(site: Site) -> None:
    site.sbatch('echo "sbatch: Job 9 to start at $SLURM_TIME_FORMAT" >&2')
    assert "to start at standard" in site.submit("--test-only").out
