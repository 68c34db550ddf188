"""Querying the queue, with its fallbacks, and findings about a cluster, with fake SLURM programs."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from attempts import make_attempt, submission_facts, write_events
from cases import cases, file_text
from fake_slurm import NAME, Programs, Site, row
from launching import entry
from slurm_steps import Steps

from gpas_cli.errors import GpasError
from gpas_cli.events import Checkpoint, Step
from gpas_cli.schedule.scheduler import Finding
from gpas_cli.schedule.slurm import client, queue
from gpas_cli.schedule.slurm import findings as findings_module
from gpas_cli.schedule.slurm.client import SlurmError
from gpas_cli.schedule.slurm.job import Job
from gpas_cli.state.claims import Submitter, write_claim
from gpas_cli.state.observe import cell_statuses, observe
from gpas_cli.store.rundir import write_json


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Return a runs folder with a submission of three elements."""
    (tmp_path / "runs/.slurm" / NAME).mkdir(parents=True)
    write_json(tmp_path / "runs/.slurm" / NAME / "submission.json", submission_facts(keys=[["a"], ["b"], ["c"]]))
    return tmp_path / "runs"


def test_a_hundred_jobs_take_one_query(programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [entry(seed=seed) for seed in range(100)]
    runs = tmp_path / "runs"
    submitter = Submitter(runs)
    for i, one in enumerate(entries):
        write_claim(runs, one.key, submitter, "slurm", submission=NAME, index=i)
    submitter.close()
    (runs / ".slurm" / NAME).mkdir(parents=True)
    keys = [[one.key] for one in entries]
    write_json(runs / ".slurm" / NAME / "submission.json", submission_facts(keys=keys))
    programs.put("squeue", "".join(row(ArrayTaskID=str(i)) for i in range(100)))
    for jobs in (False, True):
        states = cell_statuses(runs, entries, jobs=jobs)
        assert [state.state for state in states] == ["queued"] * 100
        assert states[-1].job.id == "7_99"
    assert states[-1].job.in_line == "100th of 100 in low"
    assert len(programs.calls("squeue")) == 2  # one query per scan; only the second needs places in line
    assert f"--name={NAME}" in programs.calls("squeue")[0]
    assert f"--name={NAME}" not in programs.calls("squeue")[1]
    assert not programs.calls("sacct")


@cases("schedule/slurm/cases.yaml")
def test_positions_count_the_jobs_of_all_users(
    programs: Programs, runs: Path, listed: list[dict[str, str]], places: list[list[int]]
) -> None:
    """Given `places` in line and how many wait for each."""
    programs.put("squeue", "".join(row(**one) for one in listed))
    found = queue.current(runs, line=True)
    assert [[job.place, job.waiting] for i in range(3) if (job := found.find(NAME, i))] == places
    assert str(found.find(NAME, 2)) == "SLURM 7_2 PENDING (held; `scontrol release 7_2` releases it)"
    assert list(found.jobs) == [NAME]
    assert queue.current(runs, 100).find(NAME, 0) == found.find(NAME, 0)  # the cached answer equals the reported one


@pytest.mark.parametrize("squeue", ["missing", "refused"])
def test_scontrol_replaces_an_unavailable_squeue(programs: Programs, runs: Path, squeue: str) -> None:
    if squeue == "refused":
        programs.put("squeue", "squeue: error: Access/permission denied", code=1)
    programs.put("scontrol", file_text("schedule/slurm/scontrol.txt"))
    found = queue.current(runs)
    assert not found.error
    assert found.jobs == {
        NAME: {
            0: Job("7_0", "RUNNING", "None", "n1", 1.7e9, end=1.7e9 + 300, restarts=2, partition="low"),
            1: Job("7_1", "PENDING", "Priority", partition="low"),
            2: Job("7_2", "PENDING", "Priority", partition="low"),
        }
    }


def test_an_unreachable_controller_is_queried_once(programs: Programs, runs: Path) -> None:
    programs.put("squeue", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)", code=1)
    programs.put("scontrol", "")
    assert "Unable to contact" in queue.current(runs).error
    assert not programs.calls("scontrol")


def test_pending_jobs_of_accounting_are_ignored(programs: Programs, runs: Path) -> None:
    programs.put("squeue", row(ArrayTaskID="0"))
    programs.put("sacct", f"7_1|{NAME}|COMPLETED|0:0|n1|100|200\n7_2|{NAME}|PENDING|0:0||Unknown|Unknown\n")
    found = queue.current(runs)
    assert {index: job.state for index, job in found.jobs[NAME].items()} == {0: "PENDING", 1: "COMPLETED"}
    assert len(programs.calls("sacct")) == 1


@cases("schedule/slurm/cases.yaml")
def test_a_held_job_names_the_command_that_releases_it(state: str, reason: str, wanted: str) -> None:
    assert Job("7_0", state, reason).held == wanted


def test_a_held_job_has_no_expected_start(programs: Programs, runs: Path) -> None:
    programs.put(
        "squeue", row(StartTime="1900000000") + row(StartTime="1900000000", ArrayTaskID="1", Reason="JobHeldUser")
    )
    found = queue.current(runs)
    assert [job.start for i in (0, 1) if (job := found.find(NAME, i))] == [1.9e9, 0.0]


@pytest.mark.parametrize("job", [{"id": "7_0"}, {"id": "7_0", "state": 1}, "RUNNING"], ids=str)
def test_a_cache_of_another_format_is_ignored(runs: Path, job: object) -> None:
    queue._path(runs).write_text(json.dumps({"time": 1.0, "jobs": {NAME: {"0": job}}}))
    assert queue._load(runs) == queue.Queue()


def test_a_cache_of_a_newer_version_is_read(runs: Path) -> None:
    job = {"id": "7_0", "state": "RUNNING", "odd": 1}
    queue._path(runs).write_text(json.dumps({"time": 1.0, "jobs": {NAME: {"0": job}}, "cluster": "a"}))
    found = queue._load(runs).find(NAME, 0)
    assert (found.id, found.state) == ("7_0", "RUNNING")


@pytest.mark.parametrize("ahead", [2.0, 3600.0])
def test_an_answer_from_the_future_is_not_reused(programs: Programs, runs: Path, ahead: float) -> None:
    """The cached answer predates the submission: another host wrote it, or this one before a clock correction."""
    key = "a" * 16
    submitter = Submitter(runs)
    write_claim(runs, key, submitter, "slurm", submission=NAME, index=0)
    submitter.close()
    write_json(runs / ".slurm" / NAME / "submission.json", submission_facts(keys=[[key]]))
    write_json(queue._path(runs), {"time": time.time() + ahead})
    programs.put("squeue", row(ArrayTaskID="0"))
    assert observe(runs, key).state == "queued"
    write_json(queue._path(runs), {"error": "down", "failures": 1, "tried": time.time() + ahead})
    assert queue.current(runs).error == ""


Found = Callable[..., list[Finding]]
PARTITIONS = file_text("schedule/slurm/partitions.txt")
QOS = "normal|00:01:30|\nlow|00:00:10|\nurgent|00:00:00|normal,low\n"


@pytest.fixture
def findings_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Found:
    """Return a function: settings of a site -> the findings about the time that its jobs have."""
    monkeypatch.setattr(client, "run", lambda *words, **_: QOS if words[0] == "sacctmgr" else PARTITIONS)
    usual = {"KillWait": "30 sec"}
    return lambda **config: list(findings_module._warning_findings({**usual, **config}, tmp_path, {120, 20}))


def saved(runs: Path, seconds: float) -> None:
    """Record an attempt that took `seconds` to write a checkpoint, with updates of half a second."""
    events = [Step(step=1, seconds_per_step=0.5), Checkpoint(step=1, seconds=seconds)]
    write_events(make_attempt(runs, "0123456789abcdef", {}), events)


def test_each_partition_has_its_grace_time(tmp_path: Path, findings_for: Found) -> None:
    saved(tmp_path, 3.0)
    saved(tmp_path, 40.0)
    preemption, limits = findings_for(PreemptType="preempt/partition_prio")
    assert "warned by TERM at once, jobs have 630 s in long, 30 s in scavenge; " in preemption.detail
    assert "up to 40.5 s" in preemption.detail
    assert preemption.status == "problem"
    assert "jobs in scavenge cannot save" in preemption.remedy
    assert "a GraceTime of 85 s" in preemption.remedy
    assert "20 to 120 s before their time limit" in limits.detail
    assert (limits.status, limits.remedy) == ("problem", "set resources.notice to at least 85")


def test_each_quality_of_service_has_its_grace_time(tmp_path: Path, findings_for: Found) -> None:
    saved(tmp_path, 3.0)
    config = {"PreemptType": "preempt/qos", "SlurmctldParameters": "preempt_send_user_signal,idle_on_node_suspend"}
    preemption, limits = findings_for(**config)
    assert "warned by USR2 at once, jobs have 120 s in normal, 40 s in low; " in preemption.detail
    assert {preemption.status, limits.status} == {"ok"}


def test_unknown_times_are_reported_as_unknown(findings_for: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    preemption, limits = findings_for(PreemptType="preempt/none")
    assert preemption.detail == "none"
    assert "no checkpoint measured yet" in limits.detail
    assert limits.status == "ok"

    monkeypatch.setattr(client, "run", Mock(side_effect=SlurmError("scontrol: no", answered=True)))
    assert findings_for(PreemptType="preempt/qos")[0].status == "note"


def test_every_slurm_time_format_is_parsed() -> None:
    words = ("15", "5 sec", "01:30", "00:01:30", "1-00:00:01")
    assert [client.seconds(word) for word in words] == [15, 5, 90, 90, 86401]
    with pytest.raises(GpasError, match="UNLIMITED"):
        client.seconds("UNLIMITED")


ANSWER = {"host": "n7", "time": 0.0, "shared": True, "lock": "held", "scontrol": True, "python": "3.12.1",
          "torch": "2.9", "gpus": 0}  # fmt: skip


def test_each_profile_is_probed_with_its_own_partition_python_and_setup(steps: Steps, site: Site) -> None:
    steps.two_profiles()
    steps.keep(f"echo 'Loading cuda'  > $log; echo '{json.dumps(ANSWER)}' >> $log")
    wanted = "problem: node n7 for small/pre-s1 and 11 more: the job asked for a GPU, but torch finds none"
    steps.nodes({"GPUs on nodes": wanted})
    first, second = ((site.programs.folder / f"sbatch.script.{n}").read_text() for n in (1, 2))
    for line in ("#SBATCH --partition=gpu\n", "#SBATCH --reservation=night\n", "#SBATCH --gpus-per-node=1\n",
                 "#SBATCH --nodes=1\n", "\nmodule load cuda\n", "export A='b c'\n", "exec /opt/python9 "):  # fmt: skip
        assert line in first
        assert line not in second or line == "#SBATCH --nodes=1\n"
    assert "mail-type" not in first
    assert "#SBATCH --array" not in first
    assert sorted(site.programs.calls("scancel")) == sorted(
        f"--name={call.split('--job-name=')[1].split()[0]}" for call in site.programs.calls("sbatch")
        if "--job-name" in call
    )  # fmt: skip
