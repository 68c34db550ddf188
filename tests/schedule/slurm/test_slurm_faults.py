"""Cluster faults injected into a real cluster: each time the grid completes, and status stays true.

F1   a time limit                  test_a_time_limit_shorter_than_the_run_takes_several_requeues
F2   preemption                    test_slurm_nodes.py
F3   requeue from outside          test_warned_jobs_save_requeue_and_...; cluster.yaml: jobs requeued or held by others
F4   split brain                   cluster.yaml: an orphan on a node presumed dead is fenced
F5   node failure                  cluster.yaml: a result from a node presumed dead counts
F6   power loss                    cluster.yaml: a node that loses power costs only an attempt
F7   a node that hangs             test_slurm_nodes.py: a_hanging_node_may_finish_a_job_that_slurm_gave_up
F8   sbatch's reply is lost        test_slurm_controller.py: an_array_is_found_by_name_when_the_answer_...
F9   ids are handed out again      test_slurm_controller.py: forgotten_pending_jobs_..., a_forgotten_running_job_...
F10  no controller                 test_slurm_controller.py: states_stay_correct_and_age_while_...
F11  a submitter dies              test_slurm_submit.py: submitters_killed_..., two_submitters_at_once_...
F12  no accounting                 accounted.yaml
F13  a signal at start-up          test_a_signal_during_start_up_kills_no_job
F14  stale temporary files         test_slurm_nodes.py: half_written_files_of_killed_processes_are_ignored
F15  out of memory                 test_slurm_controller.py: memory_grows_by_attempt_...
     a killed process              test_slurm_nodes.py: a_job_with_a_killed_task_..., and all
     crash, cancel                 cluster.yaml: a job that crashes ..., scancel is a cancellation ...
F16  suspended; a dead rank        cluster.yaml: a suspended job ...; test_slurm_nodes.py: a_failed_task_ends_the_others
F17  drained nodes                 cluster.yaml: a suspended job is alive and drained nodes only delay jobs
F18  limits, no log, dead parents  cluster.yaml: cells beyond ...; test_slurm_nodes.py; test_slurm_chain.py
     read-only, full disks         test_slurm_nodes.py
"""

import itertools
import shutil
import time
from pathlib import Path
from signal import SIGTERM

import pytest
from cluster import Cluster, until
from end_to_end import Toy
from slurm_toy import TIMEOUT_SECONDS, job_of, one_cell, paused, pending, started, wait

pytestmark = pytest.mark.long


def test_warned_jobs_save_requeue_and_repeat_no_update(cluster: Cluster, tmp_path: Path) -> None:
    """F1, F2, F3: a warning signal as before a time limit, then a requeue without warning; the curve is unbroken."""
    straight = one_cell(cluster, tmp_path / "straight")
    straight_run = Toy.start(straight, "run", "grid", "--executor", "local", "--yes")
    toy = started(cluster, tmp_path / "toy")
    cluster.run("scancel", "--signal=USR2", job_of(toy))
    wait(lambda: len(toy.attempts()) == 2 and toy.training())
    cluster.run("scontrol", "requeue", job_of(toy))
    toy.finish()
    assert straight_run.wait(TIMEOUT_SECONDS) == 0
    assert len(toy.attempts()) == 3
    assert [event["outcome"] for event in toy.events() if event["kind"] == "outcome"][-1] == "done"
    assert toy.losses() == straight.losses()
    toy.trained_once()


@pytest.mark.release
def test_a_log_is_followed_across_requeues_to_the_end_of_the_cell(cluster: Cluster, tmp_path: Path) -> None:
    toy = one_cell(cluster, tmp_path / "toy")
    toy.submit()
    follower = toy.start("logs", "pre-gpas-s1", "-f")
    said = toy.folder / "said.txt"
    wait(toy.training)
    for attempts in (2, 3):
        cluster.run("scontrol", "requeue", job_of(toy))
        wait(lambda attempts=attempts: len(toy.attempts()) == attempts and toy.training())
        assert follower.poll() is None, said.read_text()
    toy.finish()
    assert follower.wait(30) == 0
    lines = said.read_text().splitlines()
    headings = [i for i, line in enumerate(lines) if line.startswith("==>")]
    assert [lines[i].split(", ")[1].split(":")[0] for i in headings] == ["attempt 1", "attempt 2", "attempt 3"]
    logs = [path / "log.txt" for path in toy.attempts()]
    sections = [lines[a + 1 : b] for a, b in itertools.pairwise([*headings, len(lines)])]
    printed = [[line.removeprefix("| ") for line in attempt if line.startswith("| ")] for attempt in sections]
    assert printed == [path.read_text().splitlines() for path in logs]
    assert all("started on" in attempt[0] for attempt in sections)
    assert logs[-1].read_text()


def test_a_signal_during_start_up_kills_no_job(cluster: Cluster, tmp_path: Path) -> None:
    """F13: the warning arrives while Python is still starting."""
    toy = one_cell(cluster, tmp_path / "toy", steps=20)
    toy.submit()
    until(lambda: "RUNNING" in toy.queue().values(), 60, "the job")
    job = job_of(toy)
    # For a while, not a number of times: where scancel is slow, later signals would hit the next attempts as well.
    deadline = time.monotonic() + 1.5
    while time.monotonic() < deadline:
        cluster.run("scancel", "--signal=USR2", job, check=False)
        time.sleep(0.05)
    toy.finish()


@pytest.mark.release
def test_a_time_limit_shorter_than_the_run_takes_several_requeues(cluster: Cluster, tmp_path: Path) -> None:
    """F1, with SLURM's own clock: SLURM warns a minute before the limit, or earlier if it checks the limit earlier."""
    toy = one_cell(cluster, tmp_path / "toy", checkpoint_every=10**6)
    toy.edit("'0:10:00', notice: 20", "'0:02:00', notice: 60")
    straight = one_cell(cluster, tmp_path / "straight")
    straight("run", "grid", "--executor", "local", "--yes")
    toy.submit()
    wait(toy.training)
    with paused(toy) as pid:
        wait(lambda: pending(pid) & 1 << SIGTERM - 1)
    toy.finish()
    assert len(toy.attempts()) >= 2
    assert toy.losses() == straight.losses()


@pytest.mark.release
def test_without_scontrol_on_the_node_the_next_command_submits_again(cluster: Cluster, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("srun", "sh"):
        (tools / name).symlink_to(shutil.which(name) or name)
    toy = started(cluster, tmp_path / "toy", resources=f"environment: ['PATH={tools}']")
    cluster.run("scancel", "--signal=USR2", job_of(toy))
    toy.until(lambda states: states["pre-gpas-s1"] == "interrupted", allowed=("running", "interrupted"))
    assert "scontrol is not on the PATH; the next `gpas run` submits the remaining cells" in toy.said()
    assert "1 job submitted" in toy.submit()
    toy.finish_once(2)
