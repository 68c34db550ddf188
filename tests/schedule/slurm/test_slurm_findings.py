"""Findings about a cluster with fake SLURM programs: the time that jobs have to save, and `gpas doctor --nodes`."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from attempts import make_attempt, write_events
from fake_slurm import Site

from gpas_cli.errors import GpasError
from gpas_cli.events import Checkpoint, Step
from gpas_cli.schedule.scheduler import Finding
from gpas_cli.schedule.slurm import client
from gpas_cli.schedule.slurm import findings as findings_module
from gpas_cli.schedule.slurm.client import SlurmError

Found = Callable[..., list[Finding]]
PARTITIONS = """\
PartitionName=long GraceTime=600 PreemptMode=REQUEUE PriorityTier=5
PartitionName=scavenge GraceTime=0 PreemptMode=REQUEUE PriorityTier=1
PartitionName=fixed GraceTime=0 PreemptMode=OFF PriorityTier=1
PartitionName=high GraceTime=0 PreemptMode=REQUEUE PriorityTier=10
"""
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

    def refuse(*_: str) -> str:
        raise SlurmError("scontrol: no", answered=True)

    monkeypatch.setattr(client, "run", refuse)
    assert findings_for(PreemptType="preempt/qos")[0].status == "note"


def test_every_slurm_time_format_is_parsed() -> None:
    words = ("15", "5 sec", "01:30", "00:01:30", "1-00:00:01")
    assert [client.seconds(word) for word in words] == [15, 5, 90, 90, 86401]
    with pytest.raises(GpasError, match="UNLIMITED"):
        client.seconds("UNLIMITED")


ANSWER = {"host": "n7", "time": 0.0, "shared": True, "lock": "held", "scontrol": True, "python": "3.12.1",
          "torch": "2.9", "gpus": 0}  # fmt: skip
PROFILES = """\
    resources: {partition: gpu, gpus: 2, python: /opt/python9, setup: [module load cuda], environment: [A=b c],
                sbatch: [--mail-type=END, --reservation=night]}
"""


@pytest.fixture
def asked(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Return a project with two profiles; the first job that sbatch sees is that of the first profile, of small."""
    site.gpas.edit("    title: Small\n", f"    title: Small\n{PROFILES}")
    monkeypatch.setattr(findings_module, "_POLL_SECONDS", 0.05)
    monkeypatch.setattr(findings_module, "_LATE_SECONDS", 0.0)
    site.programs.put("scancel", "")
    return site


def of_nodes(site: Site) -> dict[str, str]:
    """Return the findings about nodes by name; problems and notes are marked."""
    found = site.gpas("doctor", "--nodes", "--json", expect=None).json["findings"]
    return {
        f"{each['what']}": f"{each['status']}: {each['detail']}"
        for each in found
        if "node" in each["detail"] + each["what"]
    }


def keep(site: Site, then: str) -> None:
    """Let sbatch save a copy of the script as script.N and then run `then`, with the log's path in $log."""
    site.sbatch(
        'for path in "$@"; do :; done; cat "$path" > $0.script.$n; log="${path%.sh}.out"\n' + then + "\necho $id"
    )


def test_each_profile_is_probed_with_its_own_partition_python_and_setup(asked: Site) -> None:
    keep(asked, f"echo 'Loading cuda'  > $log; echo '{json.dumps(ANSWER)}' >> $log")
    found = of_nodes(asked)
    first, second = ((asked.programs.folder / f"sbatch.script.{n}").read_text() for n in (1, 2))
    for line in ("#SBATCH --partition=gpu\n", "#SBATCH --reservation=night\n", "#SBATCH --gpus-per-node=1\n",
                 "#SBATCH --nodes=1\n", "\nmodule load cuda\n", "export A='b c'\n", "exec /opt/python9 "):  # fmt: skip
        assert line in first
        assert line not in second or line == "#SBATCH --nodes=1\n"
    assert "mail-type" not in first
    assert "#SBATCH --array" not in first
    assert found["GPUs on nodes"] == (
        "problem: node n7 for small/pre-s1 and 11 more: the job asked for a GPU, but torch finds none"
    )
    assert sorted(asked.programs.calls("scancel")) == sorted(
        f"--name={call.split('--job-name=')[1].split()[0]}" for call in asked.programs.calls("sbatch")
        if "--job-name" in call
    )  # fmt: skip


def test_a_missing_python_is_a_problem_with_its_message(asked: Site) -> None:
    keep(
        asked,
        "echo 'sh: 1: exec: /opt/python9: not found' > $log\n"
        "echo 'srun: error: n1: task 0: Exited with exit code 127' >> $log",
    )
    found = of_nodes(asked)
    assert found["SLURM node for small/pre-s1 and 11 more"] == (
        "problem: its job ended without an answer: sh: 1: exec: /opt/python9: not found"
    )


def test_a_probe_that_cannot_start_is_cancelled_at_once(asked: Site) -> None:
    keep(
        asked,
        'echo "$name|PENDING|PartitionDown" >> ${0%sbatch}squeue.says',
    )
    found = of_nodes(asked)
    assert found["SLURM node for small/pre-s1 and 11 more"] == "problem: its job cannot start: PartitionDown"
    assert len(asked.programs.calls("scancel")) == 2


def test_the_wait_for_a_node_is_bounded(asked: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings_module._ask, "__defaults__", (0.2,))
    keep(
        asked,
        'echo "$name|PENDING|Priority" >> ${0%sbatch}squeue.says',
    )
    assert of_nodes(asked)["SLURM node for small/pre-s1 and 11 more"] == "problem: no node within 0 s (Priority)"
    assert len(asked.programs.calls("scancel")) == 2


def test_a_refused_profile_is_reported_with_the_reason(asked: Site) -> None:
    asked.sbatch("[ $n = 1 ] && echo 'sbatch: error: invalid partition specified: gpu' >&2 && exit 1\necho $id")
    assert "invalid partition specified: gpu" in of_nodes(asked)["SLURM node for small/pre-s1 and 11 more"]
