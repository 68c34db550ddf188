"""Jobs of two processes, as `gpas run` starts them: ends, signals, and the same bits after one was killed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from end_to_end import Toy, alive, wait
from safetensors.numpy import load_file

LONG = 100


def toy_of_two(folder: Path, **values: Any) -> Toy:
    toy = Toy(folder, **values)
    path = folder / "experiments.yaml"
    one_cell = path.read_text().replace("gate: [none, gpas]", "gate: [gpas]").replace(", against: {gate: none}", "")
    path.write_text(one_cell.replace("    cadence:", "    resources: {ranks: 2, cpus: 2}\n    cadence:"))
    return toy


def events(toy: Toy, kind: str) -> list[dict[str, Any]]:
    paths = sorted(toy.runs.glob("??/*/*/journal.jsonl"))
    found = [json.loads(line[9:]) for path in paths for line in path.read_text().splitlines()]
    return [event for event in found if event["kind"] == kind]


def ranks_of(parent: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def final_bytes(toy: Toy) -> dict[str, bytes]:
    """The tensors of the newest checkpoint; which process writes which is not the same every time."""
    newest = max(toy.runs.glob("??/*/*/checkpoints/step-*"), key=lambda path: path.name)
    shards = sorted(newest.glob("*.safetensors"))
    assert len(shards) == 2
    return {name: tensor.tobytes() for shard in shards for name, tensor in load_file(shard).items()}


def test_two_processes_killed_in_three_ways_end_in_the_same_bits(tmp_path: Path) -> None:
    straight, broken = (toy_of_two(tmp_path / n, steps=LONG, checkpoint_every=10) for n in ("straight", "broken"))
    straight.gpas("run", "grid")
    (start,) = events(straight, "start")
    assert (start["processes"], start["threads"]) == (2, 1)
    assert [event["step"] for event in events(straight, "step")] == [1, *range(5, LONG + 1, 5)]
    for victim in ("second", "first", "parent"):
        running = broken.start("run", "grid")
        wait(lambda: bool(broken.stepping()))
        (parent,) = broken.stepping()
        first, second = sorted(ranks_of(parent))
        os.kill({"second": second, "first": first, "parent": parent}[victim], signal.SIGKILL)
        assert running.wait(120) == 3
        wait(lambda pids=(parent, first, second): not any(map(alive, pids)))
        assert set(broken.states().values()) == {"interrupted"}
    broken.gpas("run", "grid")
    assert set(broken.states().values()) == {"done"}
    assert len(broken.attempts()) == 4
    assert final_bytes(broken) == final_bytes(straight)
    assert [e["outcome"] for e in events(broken, "outcome")][-1] == "done"
    assert events(broken, "outcome")[-1]["metrics"]["loss"] == events(straight, "outcome")[-1]["metrics"]["loss"]


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
    toy.gpas("cancel", "pre-gpas-s1")
    assert running.wait(60) == 3
    assert set(toy.states().values()) == {"cancelled"}


@pytest.mark.parametrize("batch", [3])
def test_a_batch_that_cannot_be_shared_fails_with_the_nearest(tmp_path: Path, batch: int) -> None:
    toy = toy_of_two(tmp_path / "toy")
    path = tmp_path / "toy/experiments.yaml"
    path.write_text(path.read_text().replace("batch: 4", f"batch: {batch}"))
    said = toy.gpas("run", "grid", expect=4).stdout
    assert "3 rows cannot be shared evenly by 2 processes; nearest: 1" in said
    assert len(events(toy, "outcome")) == 1
