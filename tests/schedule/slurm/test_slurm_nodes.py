"""Failures of nodes, tasks and disks under real jobs, and preemption: each time one more command completes the grid."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from cluster import Cluster
from disks import full
from marks import release_but
from slurm_toy import LONG, SlurmToy, job_of, kill, node_of, one_cell, started, wait

pytestmark = pytest.mark.long


def test_a_hanging_node_may_finish_a_job_that_slurm_gave_up(cluster: Cluster, tmp_path: Path) -> None:
    """F7: the node is silent for longer than SlurmdTimeout; its job and the replacement agree."""
    toy = started(cluster, tmp_path / "toy")
    node = node_of(cluster)
    cluster.kill(f"slurmd.{node}", signal.SIGSTOP)
    wait(lambda: len(toy.attempts()) == 2 or toy.states()["pre-gpas-s1"] == "done")
    cluster.kill(f"slurmd.{node}", signal.SIGCONT)
    toy.finish()
    assert "0 jobs submitted" in toy.submit()
    toy.trained_once()


# The names of this cluster's nodes do not resolve.
JOB, SUPERVISOR = "worker.job", "schedule.slurm.supervisor"
TOGETHER = "ranks: 2, cpus: 2, environment: [MASTER_ADDR=127.0.0.1]"


def processes(toy: SlurmToy, module: str, rank: int) -> list[psutil.Process]:
    """Return the live processes of that rank that run `module` for the toy."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = process.cmdline()
            ours = f"gpas_cli.{module}" in words and str(toy.runs) in words[-1] + words[-2]
            if ours and words[0] != "sh" and process.environ().get("SLURM_PROCID") == str(rank) and lives(process):
                found.append(process)
    return found


def lives(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def together(cluster: Cluster, folder: Path, more: str, nodes: int = 1) -> SlurmToy:
    """Return a project with a cell that two tasks are training."""
    toy = one_cell(cluster, folder, resources=f"{TOGETHER}, nodes: {nodes}, {more}", steps=LONG // 2)
    toy.submit()
    wait(toy.training)
    return toy


@pytest.mark.parametrize(
    ("victim", "rank", "nodes"),
    release_but([(JOB, 0, 1), (JOB, 1, 2), (SUPERVISOR, 0, 2), (SUPERVISOR, 1, 1)], (JOB, 0, 1), (SUPERVISOR, 1, 1)),
)
def test_a_failed_task_ends_the_others(cluster: Cluster, tmp_path: Path, victim: str, rank: int, nodes: int) -> None:
    """F16: no task waits for a dead process until the time limit; the cell resumes, perhaps after another command."""
    toy = together(cluster, tmp_path / "toy", "micro_batch: 1", nodes)
    everybody = [process for module in (JOB, SUPERVISOR) for r in (0, 1) for process in processes(toy, module, r)]
    kill(processes(toy, victim, rank)[0].pid)
    wait(lambda: not any(lives(process) for process in everybody))
    under_way = ("running", "interrupted", "queued")
    toy.until(lambda states: states["pre-gpas-s1"] == "interrupted" or len(toy.attempts()) == 2, allowed=under_way)
    toy.submit()
    toy.finish_once(2)


@pytest.mark.parametrize("rank", release_but([0, 1], 1))
def test_a_job_with_a_killed_task_is_restarted_at_once(cluster: Cluster, tmp_path: Path, rank: int) -> None:
    """F15: all tasks restart in the same job; without evidence of exhausted memory, the micro-batch stays."""
    toy = together(cluster, tmp_path / "toy", "micro_batch: 2")
    (job,) = toy.queue()
    processes(toy, JOB, rank)[0].send_signal(signal.SIGKILL)
    wait(lambda: len(toy.attempts()) == 2)
    assert list(toy.queue()) == [job]
    toy.finish()
    first, second = toy.facts()
    assert (first["resources"]["micro_batch"], second["resources"]["micro_batch"]) == (2, 2)
    assert "killed by SIGKILL" in second["retry"]["why"]
    assert len(toy.attempts()) == 2
    toy.trained_once()


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


@pytest.mark.parametrize("signalled", release_but(["warned", "ended"], "warned"))
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


@pytest.mark.release
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


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Make everything in `folder` immutable, even for root and for processes with open files."""
    if os.geteuid() != 0 or subprocess.run(["chattr", "-R", "+i", str(folder)], capture_output=True).returncode:
        pytest.skip("making a folder immutable needs root and a file system with chattr")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-R", "-i", str(folder)], check=True)


def complete(toy: SlurmToy, attempts: int = 0) -> None:
    """Check that one more `gpas run grid` completes the table, with nothing done twice, in so many attempts."""
    toy.submit()
    toy.finish_once(attempts)
    assert "GPAS" in toy("table", "--format", "markdown").out


@pytest.mark.release
def test_a_folder_made_read_only_under_a_running_job_costs_only_an_attempt(cluster: Cluster, tmp_path: Path) -> None:
    toy = started(cluster, tmp_path / "toy")
    with read_only(toy.runs):
        assert "Traceback" not in toy("run", "grid", "--executor", "slurm", "--yes", expect=2).err
        toy.until(lambda states: states["pre-gpas-s1"] == "interrupted", allowed=("running", "interrupted"))
        wait(lambda: toy.queue() == {})
    complete(toy, 2)


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
    complete(toy, 1)


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


def test_a_disk_that_fills_up_costs_only_an_attempt(cluster: Cluster, tmp_path: Path, small_disk: Path) -> None:
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
    complete(toy, 2)
    assert [event["resumed_from"] for event in toy.events() if "resumed_from" in event][1] > 0


def test_a_disk_full_when_jobs_start_only_delays_them(cluster: Cluster, tmp_path: Path, small_disk: Path) -> None:
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
    complete(toy, 2)
    assert next(e["resumed_from"] for e in reversed(toy.events()) if "resumed_from" in e) in range(100, 998)
