"""Jobs of two processes, started as by `gpas run` and srun: exits, signals, and identical bits after a kill."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from end_to_end import Toy, alive, wait
from safetensors.numpy import load_file

LONG = 60


# Imported by every process that finds it: the second of a job has memory for two rows at once.
SMALL_DEVICE = """
import os
if os.environ.get("RANK") == "1":
    import torch
    from gpas_cli.train import loop
    healthy = loop.summed_loss
    def limited(network, rows, *more):
        if len(rows.inputs) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return healthy(network, rows, *more)
    loop.summed_loss = limited
"""


def toy_of_two(folder: Path, more: str = "", **values: Any) -> Toy:
    toy = Toy(folder, gates="gpas", **values)
    toy.edit("    cadence:", f"    resources: {{ranks: 2, cpus: 2{more}}}\n    cadence:")
    return toy


def events(toy: Toy, kind: str) -> list[dict[str, Any]]:
    paths = sorted(toy.runs.glob("??/*/*/journal.jsonl"))
    found = [json.loads(line[9:]) for path in paths for line in path.read_text().splitlines()]
    return [event for event in found if event["kind"] == kind]


def ranks_of(parent: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def final_bytes(toy: Toy) -> dict[str, bytes]:
    """Return the tensors of the newest checkpoint; the process that writes each of them varies."""
    newest = max(toy.runs.glob("??/*/*/checkpoints/step-*"), key=lambda path: path.name)
    shards = sorted(newest.glob("*.safetensors"))
    assert len(shards) == 2
    return {name: tensor.tobytes() for shard in shards for name, tensor in load_file(shard).items()}


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """Return an uninterrupted run of two processes."""
    toy = toy_of_two(tmp_path_factory.mktemp("straight") / "toy", steps=LONG, checkpoint_every=10)
    toy("run", "grid")
    return toy


@pytest.mark.long
def test_one_journal_covers_both_processes(straight: Toy) -> None:
    (start,) = events(straight, "start")
    assert (start["processes"], start["threads"]) == (2, 1)
    assert [event["step"] for event in events(straight, "step")] == [1, *range(5, LONG + 1, 5)]


@pytest.mark.long
def test_a_job_with_a_killed_process_resumes_to_the_same_bits(straight: Toy, tmp_path: Path) -> None:
    broken = toy_of_two(tmp_path / "broken", steps=LONG, checkpoint_every=10)
    running = broken.start("run", "grid")
    for victim in (1, 0):
        wait(lambda: bool(broken.stepping()))
        (parent,) = broken.stepping()
        children = sorted(ranks_of(parent))
        os.kill(children[victim], signal.SIGKILL)
        wait(lambda pids=(parent, *children): not any(map(alive, pids)))
    assert running.wait(240) == 0
    assert set(broken.states().values()) == {"done"}
    assert len(broken.attempts()) == 3
    assert final_bytes(broken) == final_bytes(straight)
    assert events(broken, "outcome")[-1]["metrics"]["loss"] == events(straight, "outcome")[-1]["metrics"]["loss"]


@pytest.mark.long
def test_processes_that_slurm_starts_find_each_other(straight: Toy) -> None:
    expected = final_bytes(straight)
    (first,) = straight.attempts()
    shutil.rmtree(first / "checkpoints")
    second = first.with_name("002")
    second.mkdir()
    record = json.loads((first / "attempt.json").read_text())
    (second / "attempt.json").write_text(json.dumps({**record, "number": 2, "executor": "slurm"}))
    step = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "localhost"}
    sizes = {"SLURM_NTASKS": "9", "SLURM_STEP_NUM_TASKS": "2"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-P", "-m", "gpas_cli.worker.job", str(second), "--rank"], cwd=straight.folder,
            env={**straight.environment(), **step, **sizes, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
        )
        for rank in range(2)
    ]  # fmt: skip
    assert [process.wait(120) for process in processes] == [0, 0]
    assert [event["processes"] for event in events(straight, "start")] == [2, 2]
    assert final_bytes(straight) == expected


@pytest.mark.long
def test_ctrl_c_saves_once_for_both_and_cancel_ends_both(tmp_path: Path) -> None:
    toy = toy_of_two(tmp_path / "toy", steps=2000, checkpoint_every=10**6)
    running = toy.start("run", "grid")
    wait(lambda: bool(toy.stepping()))
    running.send_signal(signal.SIGINT)
    assert running.wait(60) == 3
    assert [event["outcome"] for event in events(toy, "outcome")] == ["interrupted"]
    (saved,) = events(toy, "checkpoint")
    assert saved["path"] == f"step-{saved['step']:08d}"
    running = toy.start("run", "grid")
    wait(lambda: bool(toy.stepping()))
    toy("cancel", "pre-gpas-s1")
    assert running.wait(60) == 3
    assert set(toy.states().values()) == {"cancelled"}


@pytest.mark.release
def test_a_sharded_job_out_of_memory_is_started_again_with_fewer_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process waits for a layer meanwhile, so that the job cannot go on with fewer rows by itself."""
    losses = []
    for name, code in (("small", SMALL_DEVICE), ("large", "")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "sitecustomize.py").write_text(code)
        toy = toy_of_two(tmp_path / name / "toy", ", strategy: fsdp", steps=6)
        toy.edit("batch: 4", "batch: 8")
        environment = toy.environment()
        path = os.pathsep.join((str(tmp_path / name), environment["PYTHONPATH"]))
        monkeypatch.setattr(toy, "environment", lambda now={**environment, "PYTHONPATH": path}: now)
        said = toy("run", "grid").out
        assert ("ran out of memory; it starts again with 2 rows at a time" in said) is (name == "small")
        losses.append([event["loss"] for event in events(toy, "step")])
        trained = [event for event in events(toy, "phase") if event["name"] == "training"]
        assert {event["strategy"] for event in trained} == {"fsdp"}
        assert [event["micro_batch"] for event in trained] == ([4, 2] if name == "small" else [4])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
