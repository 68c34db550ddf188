"""Trainings of one and of two processes: watched, interrupted, resumed to identical bits and refused."""

import json
import os
import shutil
import signal
import subprocess
import sys
from importlib import util
from pathlib import Path
from typing import Any

import pytest
from attempts import write_events
from end_to_end import Toy, alive
from launching import until
from safetensors.numpy import load_file

from gpas_cli.cli.commands import run as command
from gpas_cli.events import Outcome, Skipped, Spike
from gpas_cli.store.rundir import AttemptDir

LONG = 500


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return Toy(tmp_path / "a project", steps=12)


def test_a_cell_in_the_foreground_is_visible_to_other_commands(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_PROFILED_UPDATES", 1)  # each takes torch most of a second
    said = toy("train", "pre-gpas-s1", "--profile").out
    for word in ("training", "12/12", "update 12 saved", "perplexity", "done", "trace.json"):
        assert word in said, said
    (attempt,) = toy.attempts()
    assert (attempt / "profile/operators.txt").is_file()
    assert toy.states() == {"pre-s1": "missing", "pre-gpas-s1": "done"}
    assert "started" not in toy("run", "grid", "small", "--where", "gate=gpas").out
    assert toy.attempts() == [attempt]
    assert "0 missing" not in toy("table", "--format", "markdown").out
    assert "small/pre-gpas-s1 is done in attempt 1" in toy("train", "pre-gpas-s1", expect=2).err
    for what in ("weight_norm", "weight_norm_q", "weight_norm_head", "total_grad_norm", "memory"):
        (series,) = toy("figure", "--where", "gate=gpas", "--what", what, "--json").json["series"]
        assert series["points"], what


@pytest.mark.release
def test_a_cell_that_is_run_again_starts_at_the_first_update(trained: Toy, tmp_path: Path) -> None:
    toy = trained.copied(tmp_path / "toy")
    toy("retry", "--done", "pre-s1", "--yes")
    key = toy.entry("pre-s1").key
    first, second = (path for path in toy.attempts() if path.parent.name == key)
    journals = [(path / "journal.jsonl").read_text().splitlines() for path in (first, second)]
    events = [[json.loads(line[9:]) for line in journal] for journal in journals]
    assert [next(event["step"] for event in journal if event["kind"] == "step") for journal in events] == [1, 1]
    results = [journal[-1]["metrics"]["perplexity"] for journal in events]
    assert results[0] == results[1]  # bit for bit, even without the checkpoints of the first


@pytest.mark.long
def test_ctrl_c_saves_and_the_next_call_resumes(tmp_path: Path) -> None:
    toy = Toy(tmp_path / "toy", steps=LONG)
    running = toy.start("train", "pre-s1")
    until(toy.stepping)
    (job,) = toy.stepping()
    refused = toy("train", "pre-s1", expect=2).err
    assert "is already running" in refused
    assert "gpas logs small/pre-s1 -f" in refused
    os.kill(running.pid, signal.SIGINT)
    assert running.wait(60) == 3
    assert not alive(job)
    said = (toy.folder / "said.txt").read_text()
    assert "saved" in said
    assert "`gpas train pre-s1` resumes from the last checkpoint" in said
    assert "Traceback" not in said
    assert toy.states()["pre-s1"] == "interrupted"
    assert "training from update" in toy("train", "pre-s1").out
    assert toy.states()["pre-s1"] == "done"
    assert len(toy.attempts()) == 2


@pytest.mark.long
def test_settings_on_the_command_line_make_a_cell_of_their_own(toy: Toy) -> None:
    explained = toy("explain", "pre-s1", "optim.lr=3e-3", "--json").json["cells"][0]
    assert (explained["name"], explained["cell"]["optim"]["lr"]) == ("pre-s1+lr0.003", 0.003)
    assert "pre-s1+lr0.003" in toy("train", "pre-s1", "optim.lr=3e-3").out
    (attempt,) = toy.attempts()
    recorded = json.loads((attempt / "attempt.json").read_text())
    assert (recorded["key"], recorded["cell"]) == (explained["key"], explained["cell"])
    assert (recorded["grid"], recorded["name"], recorded["axes"]["optim.lr"]) == ("small", "pre-s1+lr0.003", 0.003)
    assert toy.states()["pre-s1"] == "missing"
    assert "is done in attempt 1" in toy("train", "pre-s1", "optim.lr=0.003", expect=2).err
    assert "pre-s1+lr0.003" in toy("why", "pre-s1", "optim.lr=3e-3").out
    for word in (explained["key"][:8], "pre-s1+lr0.003", "small/pre-s1+lr0.003"):
        assert "pre-s1+lr0.003" in toy("why", word).out
        assert "12/12" in toy("logs", word).out
    assert "did you mean 'pre-s1+lr0.003'?" in toy("why", "pre-s1+lr0.03", expect=2).err
    refused = toy("train", "pre-s1", "optim.lrr=3e-3", "optim.steps=many", expect=2).err
    assert "gpas: optim.lrr=3e-3: unknown key 'lrr'; did you mean 'lr'?" in refused
    assert "optim.steps=many: 'many' is not a whole number" in refused
    assert toy.attempts() == [attempt]


@pytest.mark.long
def test_a_failed_cell_is_tried_again(toy: Toy) -> None:
    texts = sorted((toy.folder / "text").iterdir())
    kept = {path: path.read_text() for path in texts}
    for path in texts:
        path.write_bytes(b"\xff is not UTF-8")
    assert "failed" in toy("train", "pre-s1", expect=4).out
    for path, text in kept.items():
        path.write_text(text)
    assert "attempt 2" in toy("train", "pre-s1").out


def test_a_missing_library_is_reported_before_training(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    find = util.find_spec
    missing = ("wandb", "tensorboard")
    monkeypatch.setattr(util, "find_spec", lambda name, *more: None if name in missing else find(name, *more))
    for words in (("train", "pre-s1"), ("run", "grid", "--where", "seed=1", "--yes")):
        said = toy(*words, "--wandb", "norms", "--tensorboard", "board", expect=2).err
        assert "pip install 'gpas-cli[wandb]'" in said
        assert "pip install 'gpas-cli[tensorboard]'" in said
    assert toy.attempts() == []


def test_the_log_lists_the_spikes_and_skipped_updates(trained: Toy, tmp_path: Path) -> None:
    toy = trained.copied(tmp_path / "toy")
    (attempt,) = (path for path in toy.attempts() if path.parent.name == toy.entry("pre-s1").key)
    write_events(
        AttemptDir(attempt), [Spike(17, "loss", 9.5, usual=5.0), Skipped(18, 65536.0), Outcome("done", step=20)]
    )
    said = toy("logs", "pre-s1").out
    assert "spike: loss 9.5 at update 17" in said
    assert "update 18 skipped: gradients not finite, loss scale 65536" in said


RANKS_LONG = 60
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
    toy = toy_of_two(tmp_path_factory.mktemp("straight") / "toy", steps=RANKS_LONG, checkpoint_every=10)
    toy("run", "grid")
    return toy


@pytest.mark.long
def test_one_journal_covers_both_processes(straight: Toy) -> None:
    (start,) = straight.events(kind="start")
    assert (start["processes"], start["threads"]) == (2, 1)
    assert [event["step"] for event in straight.events(kind="step")] == [1, *range(5, RANKS_LONG + 1, 5)]


@pytest.mark.long
def test_a_job_with_a_killed_process_resumes_to_the_same_bits(straight: Toy, tmp_path: Path) -> None:
    broken = toy_of_two(tmp_path / "broken", steps=RANKS_LONG, checkpoint_every=10)
    running = broken.start("run", "grid")
    for victim in (1, 0):
        until(broken.stepping)
        (parent,) = broken.stepping()
        children = sorted(ranks_of(parent))
        os.kill(children[victim], signal.SIGKILL)
        until(lambda pids=(parent, *children): not any(map(alive, pids)))
    assert running.wait(240) == 0
    assert set(broken.states().values()) == {"done"}
    assert len(broken.attempts()) == 3
    assert final_bytes(broken) == final_bytes(straight)
    assert (
        broken.events(kind="outcome")[-1]["metrics"]["loss"] == straight.events(kind="outcome")[-1]["metrics"]["loss"]
    )


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
    assert [event["processes"] for event in straight.events(kind="start")] == [2, 2]
    assert final_bytes(straight) == expected


@pytest.mark.long
def test_ctrl_c_saves_once_for_both_and_cancel_ends_both(tmp_path: Path) -> None:
    toy = toy_of_two(tmp_path / "toy", steps=2000, checkpoint_every=10**6)
    running = toy.start("run", "grid")
    until(toy.stepping)
    running.send_signal(signal.SIGINT)
    assert running.wait(60) == 3
    assert [event["outcome"] for event in toy.events(kind="outcome")] == ["interrupted"]
    (saved,) = toy.events(kind="checkpoint")
    assert saved["path"] == f"step-{saved['step']:08d}"
    running = toy.start("run", "grid")
    until(toy.stepping)
    toy("cancel", "pre-gpas-s1", "--yes")
    assert running.wait(60) == 3
    assert set(toy.states().values()) == {"cancelled"}


@pytest.mark.release
def test_a_sharded_job_out_of_memory_gets_fewer_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        losses.append([event["loss"] for event in toy.events(kind="step")])
        trained = [event for event in toy.events(kind="phase") if event["name"] == "training"]
        assert {event["strategy"] for event in trained} == {"fsdp"}
        assert [event["micro_batch"] for event in trained] == ([4, 2] if name == "small" else [4])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
