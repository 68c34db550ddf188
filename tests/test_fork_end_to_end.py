"""Cells that `gpas run` forks from one process: their results are those of cells that are started one by one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psutil
from end_to_end import Toy, wait

MEASURED = ("t", "pid", "tokens_per_second", "seconds_per_step", "flops_per_second", "memory", "seconds")


def results(attempt: Path) -> list[dict[str, Any]]:
    """Return the numbers that an attempt has journalled, without those that depend on the machine's load."""
    events = [json.loads(line[9:]) for line in (attempt / "journal.jsonl").read_text().splitlines()]
    kept = [event for event in events if event["kind"] in ("step", "layers", "evaluation")]
    return [{name: value for name, value in event.items() if name not in (*MEASURED, "n")} for event in kept]


def weights(attempt: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(attempt.rglob("*.safetensors"))]


def test_forked_cells_have_the_results_of_single_ones_bit_for_bit(tmp_path: Path) -> None:
    single, forked = Toy(tmp_path / "single"), Toy(tmp_path / "forked")
    running = forked.start("run", "small")
    wait(lambda: len(list(forked.runs.glob("??/*/*/process.json"))) == 2)
    (server,) = (p for p in psutil.Process(running.pid).children() if "gpas_cli.worker.fork_server" in p.cmdline())
    assert running.wait(120) == 0, (forked.folder / "said.txt").read_text()
    assert not server.is_running()
    for gate in ("none", "gpas"):
        single.gpas("run", "small", "--where", f"gate={gate}")
    pairs = list(zip(single.attempts(), forked.attempts(), strict=True))
    assert len(pairs) == 2
    for one, other in pairs:
        assert one.parent.name == other.parent.name
        assert results(one) == results(other)
        assert weights(one) == weights(other)
        assert weights(one)
