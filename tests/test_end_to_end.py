"""End to end in real processes: from YAML to the table, with every process killed at some point."""

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
from disks import full
from end_to_end import Toy, alive, kill, wait
from marks import release_but
from safetensors.numpy import load_file

LONG = 500  # updates of about ten milliseconds: enough time to interrupt the run in the middle


def final_checkpoints(toy: Toy) -> dict[str, bytes]:
    """Return stage key -> bytes of all tensors in its newest checkpoint."""
    newest = {}
    for path in sorted(toy.runs.glob("??/*/*/checkpoints/step-*/*.safetensors"), key=lambda p: p.parts[-2]):
        newest[path.parents[3].name] = b"".join(t.tobytes() for _, t in sorted(load_file(path).items()))
    return newest


def outcomes(toy: Toy) -> list[str]:
    """Return the outcome of every attempt that recorded one in its journal."""
    found = []
    for path in toy.runs.glob("??/*/*/journal.jsonl"):
        events = [json.loads(line[9:]) for line in path.read_text().splitlines()]
        found += [event["outcome"] for event in events if event["kind"] == "outcome"]
    return found


def test_from_yaml_to_table_and_a_second_run_does_nothing(trained: Toy, tmp_path: Path) -> None:
    toy = trained.copied(tmp_path / "a project")
    toy.edit("seed: [1]", "seed: [1, 2]")
    planned = toy("plan", "--json").json
    assert [cell["action"] for cell in planned["cells"]] == ["done", "new"] * 2
    toy("run", "grid", "--where", "gate=gpas")
    assert toy.states() == {"pre-s1": "done", "pre-gpas-s1": "done", "pre-s2": "missing", "pre-gpas-s2": "done"}
    first = toy.attempts()
    assert len(first) == 3
    again = toy("run", "grid", "--where", "gate=gpas")
    assert toy.attempts() == first
    assert "no job to start" in again.out
    made = toy("table", "--format", "json").json
    assert made["schema"] == 1
    assert len(made["rows"]) == 2
    markdown = toy("table", "--format", "markdown").out
    assert "Pre-LN" in markdown
    assert "±" in markdown
    stage = toy("why", "pre-gpas-s1", "--json").json["stages"][0]
    assert stage["attempts"][0]["facts"]["code"]
    assert Path(stage["attempts"][0]["checkpoint"]).is_dir()
    cell = toy.status()["pre-gpas-s1"]
    assert stage["attempts"][0]["metrics"]["perplexity"] == pytest.approx(cell["metrics"]["perplexity"])
    pytest.importorskip("matplotlib", reason="the extra `figures` is not installed")
    toy("figure", "--what", "activation_variance", "--out", "variance.svg")
    assert "Pre-LN + GPAS" in (toy.folder / "variance.svg").read_text()
    check_database(toy)


def check_database(toy: Toy) -> None:
    """Check that a deleted database is recreated, and that a rebuilt one gives the same table."""
    before = toy("table", "--format", "json").out
    for path in toy.folder.glob("gpas.db*"):
        path.unlink()
    assert toy("table", "--format", "json").out == before
    toy("db", "rebuild", "--yes")
    assert toy("table", "--format", "json").out == before
    toy("db", "check")
    synced = toy("sync", "--json").json
    assert (synced["attempts"], synced["events"], synced["problems"]) == (0, 0, [])  # the rebuild read everything


def why_ended(toy: Toy) -> list[int | None]:
    """Return the signal that ended each attempt, as `gpas why` prints it in text and in JSON."""
    signals = []
    for name in toy.states():
        attempts = toy("why", name, "--json").json["stages"][0]["attempts"]
        killed = [9 if "signal 9" in attempt["evidence"] else None for attempt in attempts]
        signals += killed
        text = " ".join(toy("why", name).out.split())
        assert text.count("without an outcome (signal 9, exit.json)") == killed.count(9)
        assert [t["state"] for t in attempts] == ["interrupted" if signal else "done" for signal in killed]
    return signals


@pytest.mark.long
def test_a_killed_job_resumes_to_the_same_bits(tmp_path: Path) -> None:
    straight, broken = (Toy(tmp_path / name, gates="gpas", steps=LONG // 2) for name in ("straight", "broken"))
    straight("run", "grid")
    chooser = random.Random(3)
    running = broken.start("run", "grid")
    for _ in range(2):
        wait(lambda: bool(broken.stepping()))
        time.sleep(chooser.random())
        victim = broken.stepping()[0]
        os.kill(victim, signal.SIGKILL)
        wait(lambda victim=victim: not alive(victim))
    assert running.wait(240) == 0
    assert (broken.folder / "said.txt").read_text().count("was killed (signal 9); it starts again") == 2
    assert set(broken.states().values()) == {"done"}
    assert len(broken.attempts()) == 1 + 2
    assert why_ended(broken).count(9) == 2
    assert final_checkpoints(broken) == final_checkpoints(straight)


@pytest.mark.release
def test_a_killed_command_line_is_resumed_with_and_without_its_jobs(tmp_path: Path) -> None:
    toy = Toy(tmp_path / "toy", gates="gpas", steps=LONG)
    first = toy.start("run", "grid")
    wait(lambda: bool(toy.stepping()))
    kill(first)
    (job,) = toy.stepping()
    assert set(toy.states().values()) == {"running"}
    second = toy.start("run", "grid")
    wait(lambda: len(list(toy.runs.glob(".submitters/*.json"))) >= 1)
    assert len(toy.attempts()) == 1
    kill(second)
    os.kill(job, signal.SIGKILL)
    # The lock is held until the last thread has ended, which may be after the process counts as dead.
    wait(lambda: set(toy.states().values()) == {"interrupted"})
    toy("run", "grid")
    assert set(toy.states().values()) == {"done"}
    assert len(toy.attempts()) == 2
    assert outcomes(toy) == ["done"]


@pytest.mark.release
def test_cancel_stops_one_cell_and_retry_resumes_it(tmp_path: Path) -> None:
    toy = Toy(tmp_path / "toy", steps=LONG)
    running = toy.start("run", "grid")
    wait(lambda: len(toy.stepping()) == 2)
    toy("cancel", "pre-gpas-s1")
    assert running.wait(120) == 3
    assert toy.states() == {"pre-s1": "done", "pre-gpas-s1": "cancelled"}
    toy("run", "grid", expect=3)
    assert toy.states()["pre-gpas-s1"] == "cancelled"
    toy("retry", "pre-gpas-s1")
    assert set(toy.states().values()) == {"done"}


@pytest.mark.long
def test_a_failing_job_fails_alone(tmp_path: Path) -> None:
    toy = Toy(tmp_path / "toy", gates="gpas")
    (tmp_path / "toy/bad.jsonl").write_text('{"txt": "a field of another name"}\n')
    bad = "{name: bad, source: files, path: bad.jsonl, tokenizer: bpe}"
    toy.edit("seed: [1]", f"seed: [1]\n      data: [notes, {bad}]")
    ran = toy("run", "grid", expect=4)
    assert sorted(toy.states().values()) == ["done", "failed"]
    assert "bad.jsonl" in ran.out
    assert "Traceback" not in ran.out


@pytest.mark.long
@pytest.mark.parametrize("leaving", release_but([0, 12_000], 0))
def test_a_disk_that_fills_up_costs_no_cell(
    tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch, leaving: int
) -> None:
    toy = Toy(tmp_path / "toy", gates="gpas", steps=LONG // 2, checkpoint_every=20)
    environment = {**toy.environment(), "GPAS_RUNS_DIR": str(small_disk / "runs")}
    monkeypatch.setattr(toy, "environment", lambda: environment)
    running = toy.start("run", "grid")
    wait(lambda: bool(list(small_disk.glob("runs/??/*/*/checkpoints/step-*"))))
    with full(small_disk, leaving):
        assert running.wait(120) in (0, 3, 4)
        output = "".join(path.read_text(errors="replace") for path in small_disk.glob("runs/??/*/*/*l*"))
        torn = [path for path in small_disk.glob("runs/??/*/*/journal.jsonl") if path.read_bytes()[-1:] != b"\n"]
        assert "No space" in output or torn  # the full disk may cut the line that says so
    toy("retry", expect=None)
    toy("run", "grid")
    assert set(toy.states().values()) == {"done"}


def test_an_unwritable_folder_is_one_message(tmp_path: Path) -> None:
    toy = Toy(tmp_path / "toy")
    (tmp_path / "toy/runs").write_text("a file where a folder should be")
    done = toy("run", "grid", expect=2)
    assert "runs" in done.err


def test_outside_a_project_the_remedy_is_named(tmp_path: Path) -> None:
    toy = Toy(tmp_path / "toy")
    (tmp_path / "toy/experiments.yaml").unlink()
    done = toy("status", expect=2)
    assert done.err.strip().endswith("`gpas init` writes one")
