"""Measure the commands on a project of many cells, in this checkout and in others: seconds, CPU seconds, peak memory.

    python benchmarks/scale.py --cells 10000 --code before=/tmp/before --json

A project of `scale_project.py` is made and synchronised once for each checkout; then the commands run alternately in
all of them, `--rounds` times, with the page cache warm. `--code NAME=FOLDER` adds a checkout (`git worktree add
/tmp/before COMMIT`). The rows:

    status, table, claims, why, top   the commands, with nothing new to read
    first sync                        of all attempts into a new database
    sync                              with nothing new
    sync of new                       of new attempts, `--new` of them
    sync of a long journal            of one attempt with `--events` events
    plan                              of a grid of `--plan` cells without run directories
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

COMMANDS = {
    "sync": ("db", "sync"),
    "status": ("status",),
    "table": ("table",),
    "claims": ("claims",),
    "why": ("why", "pre-lr0.0001-s1"),
    "watch": ("status", "--watch"),
}
HERE = Path(__file__).parents[1]


@dataclass(frozen=True)
class Spent:
    """The time of a command, and the most memory that it had."""

    seconds: float
    cpu_seconds: float
    mebibytes: float


def spent(code: Path, folder: Path, words: Sequence[str]) -> Spent | None:
    """Run `gpas` with the code of a checkout in a project; None if it has no such command."""
    environment = {**os.environ, "PYTHONPATH": str(code), "PYTHONDONTWRITEBYTECODE": ""}
    command = ["/usr/bin/env", "time", "-f", "%e %U %S %M", sys.executable, "-m", "gpas_cli", *words]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, check=False)
    if ended.returncode and "No such command" in ended.stderr:
        return None
    if ended.returncode not in (0, 3, 4):
        raise SystemExit(f"gpas {' '.join(words)}: {ended.stderr}")
    wall, user, system, kilobytes = map(float, ended.stderr.splitlines()[-1].split())
    return Spent(wall, user + system, kilobytes / 1024)


def prepare(code: Path, folder: Path, *options: str) -> None:
    """Run scale_project.py with the code of a checkout, whose keys and records its projects have."""
    environment = {**os.environ, "PYTHONPATH": str(code)}
    subprocess.run(
        [sys.executable, HERE / "benchmarks/scale_project.py", folder, *options], env=environment, check=True
    )


def measure(codes: dict[str, Path], place: Path, options: argparse.Namespace) -> dict[str, dict[str, Spent]]:
    """Return what each command takes in each checkout: the median of all rounds by CPU time."""
    found: dict[str, dict[str, list[Spent]]] = {}

    def take(row: str, name: str, folder: Path, words: Sequence[str]) -> None:
        taken = spent(codes[name], folder, words)
        if taken is not None:
            found.setdefault(row, {}).setdefault(name, []).append(taken)

    grid = place / "grid"
    for name in codes:
        prepare(codes[name], place / name, f"--cells={options.cells}")
        take("first sync", name, place / name, ("db", "sync"))
        for words in COMMANDS.values():
            spent(codes[name], place / name, words)
    for _ in range(options.rounds):
        for row, words in COMMANDS.items():
            for name in codes:
                take(row, name, place / name, words)
    for name in codes:
        prepare(codes[name], place / name, f"--new={options.new}")
        take("sync of new", name, place / name, ("db", "sync"))
        prepare(codes[name], place / name, f"--events={options.events}")
        take("sync of a long journal", name, place / name, ("db", "sync"))
        shutil.rmtree(place / name)
    prepare(HERE, grid, f"--grid={options.plan}")
    for name in codes:
        take("plan", name, grid, ("plan",))
    return {row: {name: _median(all_) for name, all_ in by.items()} for row, by in found.items()}


def _median(taken: Sequence[Spent]) -> Spent:
    return sorted(taken, key=lambda one: one.cpu_seconds)[len(taken) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=500)
    parser.add_argument("--new", type=int, default=100, help="new attempts")
    parser.add_argument("--events", type=int, default=50_000, help="of the long journal")
    parser.add_argument("--plan", type=int, default=5000, help="cells of the grid that is planned")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--code", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    codes = {name: Path(folder) for name, _, folder in (text.partition("=") for text in options.code)} | {"now": HERE}
    began = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="gpas-scale-") as place:
        found = measure(codes, Path(place), options)
    load = [began, os.getloadavg()[0]]
    if options.json:
        rows = {row: {name: asdict(one) for name, one in by.items()} for row, by in found.items()}
        print(json.dumps({"load": load, "cells": options.cells, "rows": rows}, indent=1))
        return
    print(f"{options.cells:,} cells, load {load[0]:.1f} to {load[1]:.1f}, mean {statistics.mean(load):.1f}")
    for row, by in found.items():
        for name, one in by.items():
            print(f"{row:24}{name:10}{one.seconds:9.2f} s{one.cpu_seconds:9.2f} s CPU{one.mebibytes:8.0f} MiB")


if __name__ == "__main__":
    main()
