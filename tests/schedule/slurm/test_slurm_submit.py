"""Submission with a fake sbatch, and a grid on a real controller: submitted once, whichever submitter dies."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
from cases import cases
from cluster import Cluster
from face import end
from fake_slurm import Site, row
from marks import release_but
from slurm_toy import INSTANTS, TIMEOUT_SECONDS, SlurmToy, die_at, gated, wait

from gpas_cli.schedule.retry import reached_limit
from gpas_cli.schedule.slurm import squeue
from gpas_cli.spec.run import Resources
from gpas_cli.store.records import ExitRecord
from gpas_cli.store.rundir import AttemptDir, read_json, write_json, write_record


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


def test_a_refusal_shows_the_whole_message_and_the_arrays_submitted_before(site: Site) -> None:
    declare(site, "partition: gpu, gpus: 2, time: '1:00:00'")
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
    declare(site, "time: '1:00:00', mem: 1G")
    for name in ("SBATCH_TIMELIMIT", "SBATCH_MEM_PER_CPU", "SBATCH_PARTITION"):
        monkeypatch.setenv(name, "1")
    site.submit()
    assert {name for name in site.environment(2) if name.startswith("SBATCH_")} == {"SBATCH_PARTITION"}


CELL = ("--where", "norm=pre", "--where", "gate=none", "--where", "seed=1")


def declare(site: Site, resources: str) -> None:
    site.gpas.edit("    title: Small\n", f"    title: Small\n    resources: {{{resources}}}\n")


def submitted(site: Site, *words: str) -> str:
    """Submit the cell and return the options of its array."""
    before = set(site.names())
    site.submit("small", *CELL, *words)
    (name,) = (name for name in site.names()[-1:] if name not in before)
    text = (site.gpas.runs / ".slurm" / name / "submission.sh").read_text()
    return "\n".join(line for line in text.splitlines() if line.startswith(("#SBATCH --mem", "#SBATCH --time")))


def element(site: Site) -> dict[str, object]:
    """Return the last recorded job."""
    found: dict[str, object] = json.loads(
        (site.gpas.runs / ".slurm" / site.names()[-1] / "elements.jsonl").read_text().splitlines()[0]
    )[0]
    return found


def attempt(site: Site, *events: tuple[str, dict[str, object]], seconds: float = 1.0) -> AttemptDir:
    """Make an attempt by the last submission, with the resources that it recorded."""
    made = site.gpas.attempt("pre-s1", *events)
    place = {"submission": site.names()[-1], "index": 0, "job": "8_0", "restart": 0, "nodes": "n1"}
    facts = {**read_json(made.attempt_path), "slurm": place, "resources": element(site)["resources"]}
    write_json(made.attempt_path, {**facts, "created": time.time() - seconds})
    return made


def killed(site: Site, rows: int = 8) -> None:
    made = attempt(site, ("phase", {"name": "training", "micro_batch": rows}))
    write_record(made.exit_path, ExitRecord(code=None, signal=9, t=time.time(), error="out of memory: it used 190 MiB"))


def test_each_attempt_that_runs_out_of_memory_is_followed_by_one_with_more(site: Site) -> None:
    declare(site, "mem: [200M, 1G, 2G], time: '1:00:00'")
    assert submitted(site) == "#SBATCH --mem=200M\n#SBATCH --time=1:00:00"
    assert element(site)["larger"] == ["mem"]
    for memory, larger in (("1G", ["mem"]), ("2G", None)):
        killed(site)
        assert f"--mem={memory}" in submitted(site)
        assert element(site)["resources"]["mem"] == memory  # type: ignore[index]
        assert element(site).get("larger") == larger
        assert "reduce" not in element(site)
        assert str(element(site)["again"]).endswith(f"M, now {memory}" if memory == "1G" else "at 1G, now 2G")
    killed(site)
    said = " ".join(site.gpas("status", "small", *CELL).out.split())
    assert "failed" in said
    assert "3 attempts in a row made no progress; out of memory: it used 190 MiB" in said
    assert "`gpas retry CELL --set resources.mem=...` gives it more" in said
    site.gpas("retry", "pre-s1", "--executor", "slurm", "--yes")
    assert element(site)["resources"]["mem"] == "2G"  # type: ignore[index]
    assert element(site)["reduce"] is True  # there is no more memory: fewer rows at a time


def test_a_cell_whose_packed_job_ran_out_of_memory_is_alone_in_its_next_jobs(site: Site) -> None:
    declare(site, "mem: 1G, pack: 4, retries: 9")
    submitted(site)
    killed(site)
    submitted(site)
    assert element(site)["resources"]["pack"] == 1  # type: ignore[index]
    assert element(site)["again"] == "out of memory; now alone in its job"
    assert "reduce" not in element(site)
    killed(site)
    submitted(site)
    assert (element(site)["reduce"], element(site)["resources"]["pack"]) == (True, 1)  # type: ignore[index]
    attempt(site, ("outcome", end("interrupted")))
    submitted(site)
    assert element(site)["resources"]["pack"] == 1  # type: ignore[index]


def test_a_job_without_an_attempt_has_more_memory_too(site: Site) -> None:
    declare(site, "mem: [200M, 1G]")
    submitted(site)
    site.programs.put("squeue", row(site.names()[-1], "OUT_OF_MEMORY", ArrayJobID="8", NodeList="n1"))
    assert "--mem=1G" in submitted(site)


def test_an_attempt_that_reaches_its_time_limit_is_followed_by_a_longer_one(site: Site) -> None:
    declare(site, "time: ['1:00:00', '4:00:00'], retries: 9")
    assert submitted(site) == "#SBATCH --time=1:00:00"
    attempt(site, ("outcome", end("interrupted")), seconds=120)  # preempted
    assert submitted(site) == "#SBATCH --time=1:00:00"
    attempt(site, ("outcome", end("interrupted")), seconds=3550)
    assert submitted(site) == "#SBATCH --time=4:00:00"
    assert element(site)["again"] == "it reached the time limit of 1:00:00, now 4:00:00"
    attempt(site, ("outcome", end("interrupted")), seconds=120)
    assert submitted(site) == "#SBATCH --time=4:00:00"


@cases("schedule/slurm/cases.yaml")
def test_when_a_time_limit_counts_as_reached(limit: str, seconds: float, wanted: bool) -> None:
    assert reached_limit(Resources(time=limit, notice=20), seconds) is wanted


def test_retry_sets_resources_of_the_next_jobs_alone(site: Site) -> None:
    declare(site, "mem: [200M, 1G], time: ['1:00:00', '2:00:00']")
    site.gpas.ended("pre-s1", "failed", cause="out of memory")
    said = site.gpas("retry", "pre-s1", "--set", "resources.mem=64X", expect=2).err
    assert "resources.mem=64X" in said
    assert "'64X' is not an amount of memory; write 64G" in said
    assert "did you mean 'mem'" in site.gpas("retry", "pre-s1", "--set", "resources.men=64G", expect=2).err
    assert "--set takes resources.NAME" in site.gpas("retry", "pre-s1", "--set", "optim.lr=1", expect=2).err
    assert not site.names()
    words = ("--set", "resources.mem=64G", "--set", "resources.time=1:30:00", "--set", "resources.cpus=2")
    site.gpas("retry", "pre-s1", *words, "--executor", "slurm", "--yes")
    asked = element(site)["resources"]
    assert (asked["mem"], asked["time"], asked["cpus"]) == ("64G", "1:30:00", 2)


def test_a_cell_that_no_grid_declares_any_more_runs_with_the_setup_that_its_grid_declares_now(site: Site) -> None:
    declare(site, "setup: [export A=old], mem: 2G")
    site.gpas.ended("post-s1", "failed")
    key = site.gpas.entry("post-s1").key
    site.gpas.edit("norm: [pre, post]", "norm: [pre]")
    site.gpas.edit("export A=old", "export A=new")
    site.gpas("retry", key, "--executor", "slurm", "--yes")
    text = (site.gpas.runs / ".slurm" / site.names()[-1] / "submission.sh").read_text()
    assert "export A=new" in text
    assert "export A=old" not in text
    assert "--mem=2G" in text


def test_a_recorded_setup_is_not_run_without_its_lines(site: Site) -> None:
    declare(site, "setup: [export A=old]")
    site.gpas.ended("post-s1", "failed")
    key = site.gpas.entry("post-s1").key
    site.gpas.edit("  small:", "  other:")
    site.gpas.edit("grid: small", "grid: other")
    site.gpas.edit("grids: [small]", "grids: [other]")
    site.gpas.edit("default: small", "default: other")
    site.gpas.edit("norm: [pre, post]", "norm: [pre]")
    words = ("retry", key, "--executor", "slurm", "--yes")
    said = site.gpas(*words, expect=2).err
    assert "resources.setup: records do not have its values; write them in experiments.yaml" in said
    assert not site.names()
    site.gpas(*words, "--set", "resources.setup=[export A=new]")
    assert "export A=new" in (site.gpas.runs / ".slurm" / site.names()[-1] / "submission.sh").read_text()


def test_usage_compares_what_jobs_asked_for_with_what_they_used(site: Site) -> None:
    assert "no SLURM job of these cells has ended" in site.gpas("status", "small", "--usage").out
    declare(site, "mem: 1G")
    submitted(site)
    name = site.names()[-1]
    site.programs.put(
        "sacct",
        f"8_0|{name}|COMPLETED|1G|2|60|100|01:00.500|\n8_0.batch|batch|COMPLETED||2||100|00:00.015|12M\n"
        "8_0.0|sh|COMPLETED||2||100|01:00.485|512M\n",
    )
    (used,) = site.gpas("status", "small", "--usage", "--json").json["profiles"]
    assert used == {"memory": 2**30, "cpus": 2, "limit": 3600, "jobs": 1, "used_memory": 2**29, "used_cores": 0.6,
                    "longest": 100.0}  # fmt: skip
    said = site.gpas("status", "small", "--usage").out.split()
    assert {"1G", "512M"} <= set(said)  # in the units of `mem: 1G`
    assert not any("--jobs" in call for call in site.programs.calls("sacct"))


def test_usage_has_the_jobs_of_an_array_that_was_renamed(site: Site) -> None:
    declare(site, "mem: 300M")
    submitted(site)
    used = "8_0|other|COMPLETED|300M|2|60|100|01:00|\\n8_0.0|sh|COMPLETED||2||100|01:00|100M\\n"
    site.programs.put("sacct", "")
    site.programs.script("sacct", f'cat $0.says; case "$*" in *--jobs=8*) printf "{used}";; esac')
    assert "300M" in site.gpas("status", "small", "--usage").out


def test_plans_show_the_resources_of_all_attempts(site: Site) -> None:
    declare(site, "mem: [32G, 64G], time: ['1:00:00', '4:00:00']")
    assert "1 core, mem 32G then 64G, time 1:00:00 then 4:00:00" in site.gpas("explain", "pre-s1").out
    assert "--mem=32G" in site.submit("small", "--dry-run").out


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
    toy("cancel", "pre-s1", "--yes")
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
