"""Measure the time of submitting 1,000 SLURM jobs and of querying their state, on the cluster of SLURM_CONF.

    python tools/cluster.py up /tmp/c && . /tmp/c/env.sh && python benchmarks/scheduler.py --json

A round submits a grid of CELLS held cells as a user does (process start included), then a bare sbatch array of that
size, then queries the state of all, as a table and as JSON, each time with a new query to the controller. Ratios are
medians over rounds, relative to a limit: 1.5 bare arrays + 3 s for `submit`, 1 s for `status` and `status_json`.
`*_cpu` is CPU time instead, which other load affects less.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gpas_cli.schedule.slurm.queue import FRESH_SECONDS

CELLS = 1000
GRID = """\
version: 1
corpora: {{notes: {{source: files, path: "*.txt", tokenizer: bpe, layout: pack, length: 16, eval_tokens: 500}}}}
sizes: {{toy: {{hidden: 16, ffn: 24, heads: 2, layers: 4, vocab: 280}}}}
recipes: {{toy: {{lr: 0.01, warmup: 3, steps: 20, batch: 4}}}}
grids:
  many:
    base: {{size: toy, data: notes}}
    axes: {{norm: [pre, post, sandwich, lns], gate: [none, gpas], optim.lr: [{rates}], seed: [1, 2, 3, 4, 5]}}
    resources: {{mem: 100M, time: '0:10:00', sbatch: [--hold]}}
"""


def timed(name: str, *words: str, folder: Path) -> dict[str, float]:
    """Return the wall-clock and CPU seconds of a command. Raises CalledProcessError if it fails."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    began = time.perf_counter()
    used = _cpu_seconds()
    subprocess.run(words, cwd=folder, check=True, capture_output=True, env=environment)
    return {name: time.perf_counter() - began, f"{name}_cpu": _cpu_seconds() - used}


def _cpu_seconds() -> float:
    """Return the CPU seconds of all commands that have ended."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def a_round(folder: Path) -> dict[str, float]:
    """Return the seconds of each step, in a new project whose jobs are cancelled at the end."""
    folder.mkdir()
    rates = ", ".join(f"{(i + 1) / 1000:g}" for i in range(CELLS // 40))
    (folder / "experiments.yaml").write_text(GRID.format(rates=rates))
    gpas = (sys.executable, "-m", "gpas_cli")
    bare = f"bare-{folder.name}"
    array = ("sbatch", "--hold", f"--array=0-{CELLS - 1}", "--mem=100M", f"--job-name={bare}", "-o", "/dev/null")
    found = timed("submit", *gpas, "run", "grid", "--executor", "slurm", "--yes", folder=folder)
    found |= timed("bare", *array, "--wrap", "true", folder=folder)
    for name, words in (("status", ()), ("status_json", ("--json",))):
        time.sleep(FRESH_SECONDS + 0.5)
        found |= timed(name, *gpas, "status", *words, folder=folder)
    names = [path.name for path in (folder / "runs/.slurm").iterdir() if path.is_dir()]
    timed("cancel", "scancel", f"--name={','.join([bare, *names])}", folder=folder)
    return found


def run(rounds: int) -> dict[str, object]:
    # One folder for all rounds: creating files is slow right after thousands were deleted.
    with tempfile.TemporaryDirectory(prefix="gpas-scheduler-") as place:
        taken = [a_round(Path(place) / f"{os.getpid()}-{i}") for i in range(rounds)]
    median = {name: statistics.median(times[name] for times in taken) for name in taken[0]}
    allowed = {"submit": [1.5 * times["bare"] + 3 for times in taken]}
    ratios = {
        measured: statistics.median(times[measured] / limit for times, limit in zip(taken, limits, strict=True))
        for name in ("submit", "status", "status_json")
        for limits in [allowed.get(name, [1.0] * rounds)]
        for measured in (name, f"{name}_cpu")
    }
    return {"ratios": ratios, "seconds": median, "rounds": taken}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    result = run(asked.rounds)
    print(json.dumps({**result, "facts": {**vars(asked), "cells": CELLS}}) if asked.json else result["ratios"])


if __name__ == "__main__":
    main()
