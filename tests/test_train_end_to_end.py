"""`gpas train` in real processes: an ordinary attempt that is watched, interrupted, resumed and refused."""

import json
import os
import signal
from importlib import util
from pathlib import Path

import pytest
from attempts import write_events
from end_to_end import Toy, alive, wait

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
    again = toy("train", "pre-gpas-s1", expect=2)
    assert "small/pre-gpas-s1 is done in attempt 1" in again.err
    for what in ("weight_norm", "weight_norm_q", "weight_norm_head", "total_grad_norm", "memory"):
        (series,) = toy("figure", "--where", "gate=gpas", "--what", what, "--json").json["series"]
        assert series["points"], what


@pytest.mark.release
def test_a_cell_that_is_run_again_starts_at_the_first_update(trained: Toy, tmp_path: Path) -> None:
    toy = trained.copied(tmp_path / "toy")
    toy("rerun", "pre-s1", "--yes")
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
    wait(lambda: bool(toy.stepping()))
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
    said = toy("train", "pre-s1", "optim.lr=3e-3").out
    assert "pre-s1+lr0.003" in said
    (attempt,) = toy.attempts()
    recorded = json.loads((attempt / "attempt.json").read_text())
    assert recorded["key"] == explained["key"]
    assert recorded["cell"] == explained["cell"]
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
    failed = toy("train", "pre-s1", expect=4).out
    assert "failed" in failed
    for path, text in kept.items():
        path.write_text(text)
    assert "attempt 2" in toy("train", "pre-s1").out


def test_a_missing_library_is_reported_before_training(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    find = util.find_spec
    missing = ("wandb", "tensorboard")
    monkeypatch.setattr(util, "find_spec", lambda name, *more: None if name in missing else find(name, *more))
    said = toy("train", "pre-s1", "--wandb", "norms", "--tensorboard", "board", expect=2).err
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
