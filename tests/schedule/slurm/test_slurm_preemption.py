"""Preempted jobs, warned or merely terminated, save and resume; and the time they have to do so."""

import sys
import time
from pathlib import Path

import pytest
from cluster import Cluster
from slurm_toy import SlurmToy, started, wait

pytestmark = pytest.mark.long

URGENT = ("-p", "high", "-N", "4", "--exclusive", "-t", "1", "-o", "/dev/null", "--wrap", "sleep 1")
# A job that records every signal with its time and runs until it is killed.
STUBBORN = """\
import signal, sys, time
said = open(sys.argv[1], "a", buffering=1)
for number in (signal.SIGUSR2, signal.SIGTERM):
    signal.signal(number, lambda number, _: said.write(f"{time.time()} {signal.Signals(number).name}\\n"))
while True:
    said.write(f"{time.time()} alive\\n")
    time.sleep(0.1)
"""


@pytest.mark.parametrize("signalled", ["warned", "ended"])
def test_preempted_jobs_resume_from_their_checkpoint(cluster: Cluster, tmp_path: Path, signalled: str) -> None:
    """F2: USR2 arrives at once because of preempt_send_user_signal, or only TERM does, which is SLURM's default."""
    if signalled == "ended":
        cluster.configure("SlurmctldParameters=", "#SlurmctldParameters=")
    toy = started(cluster, tmp_path / "toy", checkpoint_every=10**6)
    cluster.run("sbatch", *URGENT)
    toy.finish()
    cluster.configure("#SlurmctldParameters=", "SlurmctldParameters=")
    resumed = [event["resumed_from"] for event in toy.events() if "resumed_from" in event]
    assert len(resumed) == 2
    assert resumed[1] > 0
    toy.trained_once()


def test_a_preempted_job_has_the_time_that_doctor_reports(cluster: Cluster, tmp_path: Path) -> None:
    """The time from the warning to the kill is GraceTime plus KillWait, never less."""
    toy = SlurmToy(tmp_path / "toy", cluster, steps=20)
    toy("run", "grid", "--executor", "local", "--yes")
    answer = toy("doctor", "--json", expect=None).json["findings"]
    findings = {finding["what"]: finding for finding in answer}
    assert findings["SLURM preemption"]["status"] == "ok"
    assert "warned by USR2 at once, jobs have 20 s in low; an update and" in findings["SLURM preemption"]["detail"]
    assert "jobs are warned 20 s before their time limit" in findings["SLURM time limits"]["detail"]

    said = tmp_path / "said.txt"
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    inner = f'trap "" USR2 TERM; exec {sys.executable} {tmp_path}/stubborn.py {said}'
    cluster.run(
        "sbatch", "--no-requeue", "--signal=USR2@20", "-t", "10", "-o", "/dev/null", "--wrap", f"srun sh -c '{inner}'"
    )
    wait(said.exists)
    cluster.run("sbatch", *URGENT)
    wait(lambda: said.stat().st_mtime < time.time() - 10)
    lines = [line.split() for line in said.read_text().splitlines()]
    signals = [(word, float(t)) for t, word in lines if word != "alive"]
    assert [word for word, _ in signals][:2] == ["SIGUSR2", "SIGTERM"]
    grace, left = signals[1][1] - signals[0][1], float(lines[-1][0]) - signals[1][1]
    assert grace > 14
    assert left > 3
