"""`gpas train` in real processes: an ordinary attempt that is watched, interrupted, resumed and refused."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from attempts import write_events
from end_to_end import Toy, alive, wait

from gpas_cli.events import Outcome, Spike
from gpas_cli.store.rundir import AttemptDir

LONG = 500


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return Toy(tmp_path / "a project", steps=30)


def test_a_cell_in_the_foreground_is_visible_to_other_commands(toy: Toy) -> None:
    said = toy.gpas("train", "pre-gpas-s1", "--profile").stdout
    for word in ("training", "30/30", "update 30 saved", "perplexity", "done", "trace.json"):
        assert word in said, said
    (attempt,) = toy.attempts()
    assert (attempt / "profile/operators.txt").is_file()
    assert toy.states() == {"pre-s1": "missing", "pre-gpas-s1": "done"}
    assert "started" not in toy.gpas("run", "grid", "small", "--where", "gate=gpas").stdout
    assert toy.attempts() == [attempt]
    assert "0 missing" not in toy.gpas("table", "--format", "markdown").stdout
    again = toy.gpas("train", "pre-gpas-s1", expect=2)
    assert "small/pre-gpas-s1 is done in attempt 1" in again.stderr
    pytest.importorskip("matplotlib", reason="the extra `figures` is not installed")
    for what in ("weight_norm", "weight_norm_q", "weight_norm_head", "total_grad_norm", "memory"):
        toy.gpas("figure", "--where", "gate=gpas", "--what", what, "--out", what)
        assert "Pre-LN + GPAS" in (toy.folder / f"{what}.svg").read_text()


def test_a_cell_that_is_run_again_starts_at_the_first_update(toy: Toy) -> None:
    toy.gpas("run", "small", "--where", "gate=none")
    toy.gpas("rerun", "pre-s1", "--yes")
    first, second = toy.attempts()
    journals = [(path / "journal.jsonl").read_text().splitlines() for path in (first, second)]
    events = [[json.loads(line[9:]) for line in journal] for journal in journals]
    assert [next(event["step"] for event in journal if event["kind"] == "step") for journal in events] == [1, 1]
    results = [journal[-1]["metrics"]["perplexity"] for journal in events]
    assert results[0] == results[1]  # bit for bit, even without the checkpoints of the first


def test_ctrl_c_saves_and_the_next_call_resumes(tmp_path: Path) -> None:
    toy = Toy(tmp_path / "toy", steps=LONG)
    running = toy.start("train", "pre-s1")
    wait(lambda: bool(toy.stepping()))
    (job,) = toy.stepping()
    refused = toy.gpas("train", "pre-s1", expect=2).stderr
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
    assert "training from update" in toy.gpas("train", "pre-s1").stdout
    assert toy.states()["pre-s1"] == "done"
    assert len(toy.attempts()) == 2


def test_settings_on_the_command_line_make_a_cell_of_their_own(toy: Toy) -> None:
    explained = json.loads(toy.gpas("explain", "pre-s1", "optim.lr=3e-3", "--json").stdout)["cells"][0]
    assert (explained["name"], explained["cell"]["optim"]["lr"]) == ("pre-s1+lr0.003", 0.003)
    said = toy.gpas("train", "pre-s1", "optim.lr=3e-3").stdout
    assert "pre-s1+lr0.003" in said
    (attempt,) = toy.attempts()
    recorded = json.loads((attempt / "attempt.json").read_text())
    assert recorded["key"] == explained["key"]
    assert recorded["cell"] == explained["cell"]
    assert (recorded["grid"], recorded["name"], recorded["axes"]["optim.lr"]) == ("small", "pre-s1+lr0.003", 0.003)
    assert toy.states()["pre-s1"] == "missing"
    assert "is done in attempt 1" in toy.gpas("train", "pre-s1", "optim.lr=0.003", expect=2).stderr
    assert "pre-s1+lr0.003" in toy.gpas("why", "pre-s1", "optim.lr=3e-3").stdout
    for word in (explained["key"][:8], "pre-s1+lr0.003", "small/pre-s1+lr0.003"):
        assert "pre-s1+lr0.003" in toy.gpas("why", word).stdout
        assert "30/30" in toy.gpas("logs", word).stdout
    assert "did you mean 'pre-s1+lr0.003'?" in toy.gpas("why", "pre-s1+lr0.03", expect=2).stderr
    refused = toy.gpas("train", "pre-s1", "optim.lrr=3e-3", "optim.steps=many", expect=2).stderr
    assert "gpas: optim.lrr=3e-3: unknown key 'lrr'; did you mean 'lr'?" in refused
    assert "optim.steps=many: 'many' is not a whole number" in refused
    assert toy.attempts() == [attempt]


def test_a_failed_cell_is_tried_again(toy: Toy) -> None:
    texts = sorted((toy.folder / "text").iterdir())
    kept = {path: path.read_text() for path in texts}
    for path in texts:
        path.write_bytes(b"\xff is not UTF-8")
    failed = toy.gpas("train", "pre-s1", expect=4).stdout
    assert "failed" in failed
    for path, text in kept.items():
        path.write_text(text)
    assert "attempt 2" in toy.gpas("train", "pre-s1").stdout


def test_a_missing_library_is_reported_before_training(toy: Toy) -> None:
    (toy.folder / "block").mkdir()
    hide = "import sys\nfrom importlib import util\nfind = util.find_spec\n"
    hide += "util.find_spec = lambda name, *rest: None if name in ('wandb', 'tensorboard') else find(name, *rest)\n"
    (toy.folder / "block/sitecustomize.py").write_text(hide)
    environment = toy.environment()
    environment["PYTHONPATH"] = os.pathsep.join([str(toy.folder / "block"), environment["PYTHONPATH"]])
    command = toy.command("train", "pre-s1", "--wandb", "norms", "--tensorboard", "board")
    done = subprocess.run(command, cwd=toy.folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert "pip install 'gpas-cli[wandb]'" in done.stderr
    assert "pip install 'gpas-cli[tensorboard]'" in done.stderr
    assert toy.attempts() == []


def test_why_lists_the_spikes_of_all_attempts(toy: Toy) -> None:
    toy.gpas("train", "pre-s1")
    (attempt,) = toy.attempts()
    write_events(AttemptDir(attempt), [Spike(17, "loss", 9.5, usual=5.0), Outcome("done", step=30)])
    assert "spikes: loss 9.5 at update 17" in toy.gpas("why", "pre-s1").stdout
    assert "computed     micro-batches of " in toy.gpas("why", "pre-s1").stdout
    stage = json.loads(toy.gpas("why", "pre-s1", "--json").stdout)["stages"][0]
    assert stage["attempts"][-1]["computed"]["gemm_origin"] == "processor"
    assert stage["spikes"] == [{"step": 17, "of": "loss", "value": 9.5}]
