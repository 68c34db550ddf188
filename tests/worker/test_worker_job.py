"""The process of a job: its imports, the facts about its machine that it records, and the GPUs that it asked for."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from attempts import make_attempt

from gpas_cli.spec.parse import plain
from gpas_cli.spec.run import Resources
from gpas_cli.state.attempt import conclude
from gpas_cli.train.device import missing_gpus
from gpas_cli.worker.environment import _VARIABLES, environment

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


@pytest.mark.parametrize(
    ("asked", "shown", "seen", "wanted"),
    [
        (0, "", 0, ""),
        (1, "0", 1, ""),
        (1, "", 1, ""),
        (8, "3", 1, ""),  # each process sees only its own
        (2, "MIG-a,MIG-b", 1, ""),
        (1, "", 0, "the job asked for 1 GPU, but none is visible on n1"),
        (2, "0,1", 0, "the job asked for 2 GPUs, but none is visible on n1 (CUDA_VISIBLE_DEVICES=0,1)"),
        (8, "0,1,2", 2, "the job asked for 8 GPUs, but 2 of 3 are visible on n1 (CUDA_VISIBLE_DEVICES=0,1,2)"),
        (2, "0,1", 1, "the job asked for 2 GPUs, but 1 of 2 is visible on n1 (CUDA_VISIBLE_DEVICES=0,1)"),
    ],
)
def test_missing_gpus_are_described(
    monkeypatch: pytest.MonkeyPatch, asked: int, shown: str, seen: int, wanted: str
) -> None:
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
