"""The process of a job, and jobs of several processes: ranks, exit codes, signals, locks."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from attempts import make_attempt
from cases import cases
from forking import Forked

from gpas_cli.errors import GpasError
from gpas_cli.plan.machine import ThisMachine
from gpas_cli.spec.parse import plain
from gpas_cli.spec.run import Resources
from gpas_cli.state import locks
from gpas_cli.state.attempt import alive_path, conclude
from gpas_cli.store.journal import read
from gpas_cli.store.rundir import write_json
from gpas_cli.train.device import missing_gpus
from gpas_cli.worker.environment import _VARIABLES, environment
from gpas_cli.worker.ranks import RankEnv, _first_host, place

REPOSITORY = Path(__file__).parents[2]


def test_a_signal_during_the_imports_ends_a_job_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "socket.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}"}
    command = [sys.executable, "-P", "-m", "gpas_cli.worker.job", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_every_variable_of_the_list_is_recorded_and_no_other() -> None:
    others = {"AWS_SECRET_ACCESS_KEY": "s3cret", "HF_TOKEN": "s3cret", "SLURM_JWT": "s3cret", "HOME": "/s3cret"}
    facts = environment({**{name: f"value of {name}" for name in _VARIABLES}, **others})
    assert "s3cret" not in str(facts)
    recorded = {name: text for name, text in facts.items() if text.startswith("value of ")}
    assert recorded == {name.lower(): f"value of {name}" for name in _VARIABLES}
    assert not {name.lower() for name in others} & facts.keys()


def test_variables_that_are_not_set_are_left_out() -> None:
    facts = environment({"CUDA_VISIBLE_DEVICES": ""})
    assert not {name.lower() for name in _VARIABLES} & facts.keys()
    assert {"python", "platform", "hostname", "gpas", "cores"} <= facts.keys()


@cases("worker/cases.yaml")
def test_missing_gpus_are_said(monkeypatch: pytest.MonkeyPatch, asked: int, shown: str, seen: int, wanted: str) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: seen > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: seen)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert missing_gpus(asked) == wanted


def test_a_job_without_its_requested_gpus_is_interrupted(tmp_path: Path) -> None:
    resources = Resources(sbatch=("--mail-type=END", "--gres=gpu:a100:1"))
    assert resources.gpus_in_slurm == resources.recorded.gpus_in_slurm == 1
    facts = {"stage": "pretrain", "executor": "slurm", "resources": plain(resources)}
    made = make_attempt(tmp_path, "0123456789abcdef", facts)
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "SLURMD_NODENAME": "n7", "GPAS_GPUS": "1"}
    command = [sys.executable, "-m", "gpas_cli.worker.job", str(made.path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 76, done.stderr
    seen = conclude(made)
    assert seen.state == "interrupted"
    assert seen.cause.startswith("the job asked for 1 GPU, but none is visible on n7")
    assert '"kind":"start"' not in made.journal_path.read_text()


FAKE = Path(__file__).with_name("fake_rank.py")
PARENT = """
import os, signal, sys
from pathlib import Path
from gpas_cli.state import attempt, locks
from gpas_cli.store.rundir import AttemptDir
from gpas_cli.worker import ranks
fake, path, size, grace = sys.argv[1:]
ranks._GRACE_SECONDS, ranks._POLL_SECONDS = float(grace), 0.01
alive = locks.hold(attempt.alive_path(AttemptDir(Path(path))))
os.set_inheritable(alive, True)
command = [sys.executable, "-S", fake, path]
sys.exit(ranks.run(AttemptDir(Path(path)), int(size), 1, command, [signal.SIGTERM, signal.SIGINT]))
"""


class Job:
    """A parent process with fake ranks, holding a lock as jobs do."""

    def __init__(self, runs: Path, *acts: str):
        self.attempt = make_attempt(runs, "0123456789abcdef", {"created": time.time(), "submitter": {}})
        (self.attempt.path / "acts.json").write_text(json.dumps(acts))
        self.size = len(acts)
        root = str(Path(__file__).parents[2])
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, *filter(None, sys.path)])}
        grace = 0.05 if acts.count("hang") == self.size - 1 else 0.5  # several that end need time to do so
        words = (str(FAKE), str(self.attempt.path), str(self.size), str(grace))
        self.process = Forked(PARENT, *words, output=runs / "parent.txt", environment=environment)

    def pids(self) -> list[int]:
        wait(lambda: len(list(self.attempt.path.glob("seen-*.json"))) == self.size)
        return [int((self.attempt.path / f"pid-{rank}").read_text()) for rank in range(self.size)]

    def end(self) -> int:
        """Return the exit code, negative for a signal; check that no process is left; write exit.json."""
        try:
            code = self.process.wait(20)
        finally:
            self.process.end()
        wait(lambda: locks.probe(alive_path(self.attempt)) is locks.Lock.FREE)
        died = {"code": None, "signal": -code} if code < 0 else {"code": code, "signal": None}
        write_json(self.attempt.exit_path, {**died, "t": time.time()})
        return code

    def outcomes(self) -> list[dict[str, Any]]:
        return [dict(line.values) for line in read(self.attempt.journal_path)[0] if line.kind == "outcome"]


def wait(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.02)


@cases("worker/cases.yaml")
def test_ranks_end_with_one_exit_code(tmp_path: Path, acts: list[str], code: int, state: str, cause: str) -> None:
    job = Job(tmp_path, *acts)
    assert job.end() == code
    seen = conclude(job.attempt)
    assert (seen.state, seen.cause) == (state, cause)
    assert len(job.outcomes()) <= 1


def test_signals_reach_every_process(tmp_path: Path) -> None:
    job = Job(tmp_path, "wait", "wait")
    job.pids()
    job.process.send_signal(signal.SIGTERM)
    assert job.end() == 75
    assert [event["outcome"] for event in job.outcomes()] == ["interrupted"]


def test_processes_exit_when_their_parent_is_killed(tmp_path: Path) -> None:
    job = Job(tmp_path, "wait", "wait")
    job.pids()
    os.kill(job.process.pid, signal.SIGKILL)
    assert job.end() == -9
    assert [event["outcome"] for event in job.outcomes()] == ["interrupted"]


def test_the_lock_is_held_while_any_process_lives(tmp_path: Path) -> None:
    job = Job(tmp_path, "wait", "hang")
    pids = job.pids()
    os.kill(job.process.pid, signal.SIGKILL)
    os.kill(pids[0], signal.SIGKILL)
    job.process.wait()
    assert locks.probe(alive_path(job.attempt)) is locks.Lock.HELD
    os.kill(pids[1], signal.SIGKILL)
    job.end()


def test_each_process_gets_its_rank_and_the_meeting_point(tmp_path: Path) -> None:
    job = Job(tmp_path, "done", "done")
    job.end()
    environments = [json.loads((job.attempt.path / f"seen-{rank}.json").read_text()) for rank in range(2)]
    assert [place(environ).rank for environ in environments] == [0, 1]
    assert {place(environ).size for environ in environments} == {2}
    assert len({place(environ).meeting for environ in environments}) == 1
    assert all(
        environ.get("CUDA_VISIBLE_DEVICES") == os.environ.get("CUDA_VISIBLE_DEVICES") for environ in environments
    )
    assert not Path(place(environments[0]).meeting.removeprefix("file://")).parent.exists()


SLURM = {
    "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_PROCID": "5", "SLURM_NTASKS": "16",
    "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1", "SLURM_STEP_NODELIST": "gpu[07-08]", "SLURM_JOB_NODELIST": "x",
}  # fmt: skip


def test_a_slurm_step_defines_the_rank() -> None:
    found = place(SLURM)
    assert (found.rank, found.size, found.local_rank) == (5, 8, 1)
    assert found.meeting.startswith("tcp://gpu07:")
    assert 15000 <= int(found.meeting.rpartition(":")[2]) < 32768
    assert place({**SLURM, "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}).meeting == found.meeting
    assert place({**SLURM, "SLURM_JOB_ID": "4712"}).meeting != found.meeting
    assert place({**SLURM, "MASTER_ADDR": "h", "MASTER_PORT": "9"}).meeting == "tcp://h:9"
    alone = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_LOCALID": "0"}
    assert place(alone) == RankEnv()


def test_torchrun_takes_precedence_over_slurm() -> None:
    torchrun = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "MASTER_ADDR": "::1", "MASTER_PORT": "29500"}
    assert place({**SLURM, **torchrun}) == RankEnv(2, 4, 0, "tcp://[::1]:29500")


@cases("worker/cases.yaml")
def test_a_contradictory_rank_is_refused(environ: dict[str, str], words: str) -> None:
    with pytest.raises(GpasError, match=words):
        place(environ)


@cases("worker/cases.yaml")
def test_the_first_host_of_a_node_list(nodes: str, first: str) -> None:
    assert _first_host(nodes) == first


def test_slots_are_counted_per_process() -> None:
    cores, gpus = ThisMachine(gpus=(), cores=(0, 1, 2, 3)), ThisMachine(gpus=("0", "1"), cores=(0, 1))
    assert cores.needs(Resources(ranks=2)) == 2
    assert cores.threads(Resources(ranks=2, cpus=4)) == 4
    assert Resources(gpus=4).processes == 4
    assert gpus.needs(Resources(gpus=2)) == 2
    assert "2 ranks on 1 GPU:" in gpus.check(Resources(gpus=1, ranks=2), "a cell")


@pytest.mark.parametrize("joined", [False, True])
def test_a_process_waiting_for_peers_exits_with_its_parent(monkeypatch: pytest.MonkeyPatch, joined: bool) -> None:
    from gpas_cli.worker import job

    left: list[int] = []
    monkeypatch.setattr(job.os, "_exit", left.append)
    run = SimpleNamespace(joined=joined, flag=job.StopFlag(Path("no request")))
    job._AttemptProcess.parent_died(run)  # type: ignore[arg-type]
    assert left == ([] if joined else [75])
    assert run.flag.outcome() == "interrupted"
