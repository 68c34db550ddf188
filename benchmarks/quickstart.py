"""Compare a cell of the quickstart with the same cell of an earlier revision of this repository, in turns.

    python benchmarks/quickstart.py --against HEAD~10 --json

Each side runs in processes of its own, on one thread, with its own package. All times are CPU seconds, which other load
affects least. The two sides alternate; a ratio is new / old, the median over rounds.

    update      one update: 16 rows of 64, Pre-LN with GPAS, all inside `Loop.update`, with the float32 product that
                a job of that side chooses
    rest        everything else in a cell: `gpas run` of CELLS cells of two updates each, that command and all of its
                processes, divided by the cells (imports, start, checkpoint, evaluation of 82,000 tokens, ingest)
    cell        600 updates and the rest
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
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpas_cli.processor import cpu_model

ROOT = Path(__file__).resolve().parents[1]
UPDATES = 600  # of a cell
BLOCK = 20  # updates in one round
CELLS = 6
GRID = """\
version: 1
recipes: {{quickstart: {{lr: 1.5e-3, warmup: 1, steps: 2, batch: 16}}}}
grids:
  rest{number}:
    base: {{size: quickstart, data: quickstart, precision: fp32, init: {{std: 0.08}}, gate: gpas, norm: pre}}
    axes: {{seed: [{seeds}]}}
"""


@dataclass(frozen=True)
class Side:
    """One revision: the folder that holds its package, a project for its cells, and a process that does updates."""

    package: Path
    project: Path
    updates: subprocess.Popen[str]

    def update(self) -> float:
        """Return the CPU seconds of an update, the mean over BLOCK of them."""
        assert self.updates.stdin is not None
        assert self.updates.stdout is not None
        print(BLOCK, file=self.updates.stdin, flush=True)
        return float(self.updates.stdout.readline())

    def rest(self, number: int) -> float:
        """Return the CPU seconds that a cell of two updates takes in `gpas run`."""
        seeds = ", ".join(str(CELLS * number + seed) for seed in range(CELLS))
        (self.project / "experiments.yaml").write_text(GRID.format(number=number, seeds=seeds))
        before = _children_seconds()
        command = [
            sys.executable,
            "-P",
            "-m",
            "gpas_cli",
            "run",
            "grid",
            f"rest{number}",
            "--executor",
            "local",
            "--yes",
        ]
        done = subprocess.run(
            command, cwd=self.project, env=_environment(self.package), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        return (_children_seconds() - before) / CELLS


def _children_seconds() -> float:
    """Return the CPU seconds of all processes that have ended and been waited for, by this process or a child of it."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _environment(package: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(package), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@contextmanager
def side(package: Path, folder: Path) -> Iterator[Side]:
    """Yield a side whose process has done its first updates, which are not measured."""
    folder.mkdir()
    command = [sys.executable, "-P", __file__, "--updates"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=_environment(package), stdin=pipe, stdout=pipe, text=True) as process:
        made = Side(package, folder, process)
        made.update()
        yield made
        assert process.stdin is not None
        process.stdin.close()


def do_updates() -> None:
    """Do as many updates as each line of standard input says, and print the CPU seconds of one."""
    from gpas_cli.spec.parse_cell import cell_from
    from gpas_cli.train.assemble import settle_matmul
    from gpas_cli.train.bench import synthetic_loop
    from gpas_cli.train.device import make_deterministic

    make_deterministic(1)
    optim = {"lr": 1.5e-3, "warmup": 60, "steps": 100_000, "batch": 16}
    cell = cell_from({"size": "quickstart", "gate": "gpas", "data": "quickstart", "optim": optim})
    loop = synthetic_loop(cell, padded=False)
    settle_matmul(cell, loop)
    for line in sys.stdin:
        began = time.process_time()
        for _ in range(int(line)):
            loop.update()
        print((time.process_time() - began) / int(line), flush=True)


def compare(against: str, rounds: int, rest_rounds: int) -> dict[str, Any]:
    """Return the seconds and the ratios of the working tree to the revision `against`."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        archive = subprocess.run(["git", "archive", against], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
        (folder / "code").mkdir()
        subprocess.run(["tar", "-x", "-C", str(folder / "code")], input=archive, check=True)
        packages = {"old": folder / "code", "new": ROOT}
        sides = {name: stack.enter_context(side(package, folder / name)) for name, package in packages.items()}
        updates: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(rounds):
            for name, one in sides.items():
                updates[name].append(one.update())
        for one in sides.values():
            one.rest(0)  # tokenises the text, which is not measured
        rests: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(1, rest_rounds + 1):
            for name, one in sides.items():
                rests[name].append(one.rest(number))
    seconds = {
        name: {"update": statistics.median(updates[name]), "rest": statistics.median(rests[name])} for name in sides
    }
    for found in seconds.values():
        found["cell"] = UPDATES * found["update"] + found["rest"]
    ratios = {"update": _ratio(updates), "rest": _ratio(rests), "cell": seconds["new"]["cell"] / seconds["old"]["cell"]}
    return {"ratios": ratios, "seconds": seconds}


def _ratio(taken: dict[str, list[float]]) -> float:
    """Return the median over rounds of new / old."""
    return statistics.median(new / old for new, old in zip(taken["new"], taken["old"], strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", default="HEAD", help="the earlier revision; the new side is the working tree")
    parser.add_argument("--rounds", type=int, default=15, help=f"rounds of {BLOCK} updates")
    parser.add_argument("--rest-rounds", type=int, default=3, help=f"rounds of {CELLS} cells")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--updates", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.updates:
        do_updates()
        return
    found = compare(asked.against, asked.rounds, asked.rest_rounds)
    found |= {"against": asked.against, "processor": cpu_model()}
    if asked.json:
        print(json.dumps(found, indent=2))
        return
    print(f"{'':8}{'old':>10}{'new':>10}{'ratio':>8}")
    for name, ratio in found["ratios"].items():
        old, new = (found["seconds"][which][name] for which in ("old", "new"))
        print(f"{name:8}{old:8.3f} s{new:8.3f} s{ratio:8.3f}")


if __name__ == "__main__":
    main()
