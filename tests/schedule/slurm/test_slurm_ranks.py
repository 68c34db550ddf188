"""A cell trained by several tasks of one job: what the others do when one dies or runs out of memory."""

import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from cluster import Cluster
from slurm_toy import LONG, SlurmToy, kill, one_cell, wait

pytestmark = pytest.mark.long

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
    [
        (JOB, 0, 1),
        (JOB, 1, 2),
        (SUPERVISOR, 0, 2),
        (SUPERVISOR, 1, 1),
    ],
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
    toy.finish()
    assert len(toy.attempts()) == 2
    toy.trained_once()


@pytest.mark.parametrize("rank", [0, 1])
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
