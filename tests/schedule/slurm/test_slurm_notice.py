"""The time that jobs have to save, from the configuration of a site; needs no cluster."""

from pathlib import Path

import pytest
from attempts import make_attempt, write_events

from gpas_cli.errors import GpasError
from gpas_cli.events import Checkpoint, Step
from gpas_cli.schedule.scheduler import Finding
from gpas_cli.schedule.slurm import client, findings
from gpas_cli.schedule.slurm.client import SlurmError

PARTITIONS = """\
PartitionName=long GraceTime=600 PreemptMode=REQUEUE PriorityTier=5
PartitionName=scavenge GraceTime=0 PreemptMode=REQUEUE PriorityTier=1
PartitionName=fixed GraceTime=0 PreemptMode=OFF PriorityTier=1
PartitionName=high GraceTime=0 PreemptMode=REQUEUE PriorityTier=10
"""
QOS = "normal|00:01:30|\nlow|00:00:10|\nurgent|00:00:00|normal,low\n"


@pytest.fixture(autouse=True)
def site(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "run", lambda *words, **_: QOS if words[0] == "sacctmgr" else PARTITIONS)


def saved(runs: Path, seconds: float) -> None:
    """Record an attempt that took `seconds` to write a checkpoint, with updates of half a second."""
    events = [Step(step=1, seconds_per_step=0.5), Checkpoint(step=1, seconds=seconds)]
    write_events(make_attempt(runs, "0123456789abcdef", {}), events)


def findings_for(runs: Path, **config: str) -> list[Finding]:
    return list(findings._warning_findings({"KillWait": "30 sec", **config}, runs, {120, 20}))


def test_each_partition_has_its_grace_time(tmp_path: Path) -> None:
    saved(tmp_path, 3.0)
    saved(tmp_path, 40.0)
    preemption, limits = findings_for(tmp_path, PreemptType="preempt/partition_prio")
    assert "warned by TERM at once, jobs have 630 s in long, 30 s in scavenge; " in preemption.detail
    assert "up to 40.5 s" in preemption.detail
    assert preemption.status == "problem"
    assert "jobs in scavenge cannot save" in preemption.remedy
    assert "a GraceTime of 85 s" in preemption.remedy
    assert "20 to 120 s before their time limit" in limits.detail
    assert (limits.status, limits.remedy) == ("problem", "set resources.notice to at least 85")


def test_each_quality_of_service_has_its_grace_time(tmp_path: Path) -> None:
    saved(tmp_path, 3.0)
    config = {"PreemptType": "preempt/qos", "SlurmctldParameters": "preempt_send_user_signal,idle_on_node_suspend"}
    preemption, limits = findings_for(tmp_path, **config)
    assert "warned by USR2 at once, jobs have 120 s in normal, 40 s in low; " in preemption.detail
    assert {preemption.status, limits.status} == {"ok"}


def test_unknown_times_are_reported_as_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preemption, limits = findings_for(tmp_path, PreemptType="preempt/none")
    assert preemption.detail == "none"
    assert "no checkpoint measured yet" in limits.detail
    assert limits.status == "ok"

    def refuse(*_: str) -> str:
        raise SlurmError("scontrol: no", answered=True)

    monkeypatch.setattr(client, "run", refuse)
    assert findings_for(tmp_path, PreemptType="preempt/qos")[0].status == "note"


def test_every_slurm_time_format_is_parsed() -> None:
    words = ("15", "5 sec", "01:30", "00:01:30", "1-00:00:01")
    assert [client.seconds(word) for word in words] == [15, 5, 90, 90, 86401]
    with pytest.raises(GpasError, match="UNLIMITED"):
        client.seconds("UNLIMITED")
