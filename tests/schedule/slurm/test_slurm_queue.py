"""Querying the queue: one query for all jobs, fallback to the next source, and names of held jobs."""

import json
import time
from pathlib import Path

import pytest
from attempts import submission_facts
from fake_slurm import NAME, Programs, row

from gpas_cli.schedule.slurm import queue
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
    from gpas_cli.grid.expand import expand
    from gpas_cli.grid.load import load

    seeds = ", ".join(map(str, range(100)))
    (tmp_path / "experiments.yaml").write_text(
        "version: 1\ngrids: {many: {base: {size: quickstart, data: quickstart, "
        f"optim: {{lr: 1e-3, warmup: 1, steps: 3, batch: 8}}}}, axes: {{seed: [{seeds}]}}}}}}\n"
    )
    entries = expand(load(tmp_path / "experiments.yaml"))
    runs = tmp_path / "runs"
    submitter = Submitter(runs)
    for i, entry in enumerate(entries):
        write_claim(runs, entry.key, submitter, "slurm", submission=NAME, index=i)
    submitter.close()
    (runs / ".slurm" / NAME).mkdir(parents=True)
    keys = [[entry.key] for entry in entries]
    write_json(runs / ".slurm" / NAME / "submission.json", submission_facts(keys=keys))
    programs.put("squeue", "".join(row(ArrayTaskID=str(i)) for i in range(100)))
    for jobs in (False, True):
        states = cell_statuses(runs, entries, jobs=jobs)
        assert [state.state for state in states] == ["queued"] * 100
        assert states[-1].job is not None
        assert states[-1].job.id == "7_99"
    assert states[-1].job.in_line == "100th of 100 in low"
    assert len(programs.calls("squeue")) == 2  # one query per scan; only the second needs places in line
    assert f"--name={NAME}" in programs.calls("squeue")[0]
    assert f"--name={NAME}" not in programs.calls("squeue")[1]
    assert not programs.calls("sacct")


def test_positions_count_the_jobs_of_all_users(programs: Programs, runs: Path) -> None:
    programs.put(
        "squeue",
        row("theirs", PriorityLong="90", ArrayJobID="3", ArrayTaskID="N/A")
        + row("theirs", PriorityLong="10", ArrayJobID="9", ArrayTaskID="N/A")
        + row("theirs", PriorityLong="99", ArrayJobID="4", Partition="high")
        + row("theirs", PriorityLong="99", ArrayJobID="5", Reason="Dependency")
        + row("theirs", PriorityLong="0", ArrayJobID="6", Reason="JobHeldUser")
        + row("theirs", "RUNNING", PriorityLong="99", ArrayJobID="2")
        + row(ArrayTaskID="0")
        + row(ArrayTaskID="1", Partition="low,high")
        + row(ArrayTaskID="2", Reason="JobHeldUser", PriorityLong="0"),
    )
    found = queue.current(runs, line=True)
    places = [(job.place, job.waiting) for i in range(3) if (job := found.find(NAME, i))]
    assert places == [(2, 4), (3, 4), (0, 0)]
    assert str(found.find(NAME, 2)) == "SLURM 7_2 PENDING (held; `scontrol release 7_2` releases it)"
    assert list(found.jobs) == [NAME]
    assert queue.current(runs, 100).find(NAME, 0) == found.find(NAME, 0)  # the cached answer equals the reported one


@pytest.mark.parametrize("squeue", ["missing", "refused"])
def test_scontrol_replaces_an_unavailable_squeue(programs: Programs, runs: Path, squeue: str) -> None:
    if squeue == "refused":
        programs.put("squeue", "squeue: error: Access/permission denied", code=1)
    shown = (
        "JobId=7 ArrayJobId=7 ArrayTaskId=1-2%4 JobName={} UserId=me(1) Priority=10 JobState=PENDING Reason=Priority "
        "Restarts=0 ExitCode=0:0 StartTime=Unknown EndTime=Unknown Partition=low NodeList= TRES=cpu=1 \n"
        "JobId=8 ArrayJobId=7 ArrayTaskId=0 JobName={} UserId=me(1) Priority=10 JobState=RUNNING Reason=None "
        "Restarts=2 ExitCode=0:0 StartTime=1700000000 EndTime=1700000300 "
        "Partition=low NodeList=n1 TRES=cpu=1,gres/gpu=2 \n"
        "JobId=9 JobName=theirs JobState=RUNNING Partition=low NodeList=n2\n"
    ).replace("{}", NAME)
    programs.put("scontrol", shown)
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


@pytest.mark.parametrize(
    ("state", "reason", "wanted"),
    [
        ("PENDING", "JobHeldUser", "held; `scontrol release 7_0` releases it"),
        ("PENDING", "JobHeldAdmin", "held until an administrator releases it"),
        (
            "PENDING",
            "launch_failed_requeued_held",
            "held: launch_failed_requeued_held; `scontrol release 7_0` releases it",
        ),
        (
            "PENDING",
            "job requeued in held state",
            "held: job requeued in held state; `scontrol release 7_0` releases it",
        ),
        ("REQUEUE_HOLD", "None", "held; `scontrol release 7_0` releases it"),
        ("PENDING", "Priority", ""),
        ("CANCELLED", "JobHeldUser", ""),
    ],
)
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
    assert found is not None
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
