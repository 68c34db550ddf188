"""Measure what an update costs that trains six of twelve layers, as a share of one that trains all, head apart.

    python benchmarks/depth.py --rounds 15 --json

A network with 12 layers of width 256 (vocabulary 8,000) trains on 8 full rows of 128. A round does one update of each
kind, in turns, on one thread, and takes its CPU time, which other programs disturb less than the clock. Embedding, head
and their optimizer's share, an update without any layer, are subtracted from both sides; a ratio is the median over
rounds.

    six           six layers with the factor 1, as in stacking
    path          random paths of six layers with their square-root factors (RaPTr)
    path_gpas     the same with GPAS, whose gates are then in the graph, over twelve layers with GPAS
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpas_cli.spec.depth import ActiveLayers, factors_of
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.train.bench import WARMUP_UPDATES, synthetic_loop
from gpas_cli.train.depth import DepthTraining
from gpas_cli.train.device import make_deterministic
from gpas_cli.train.loop import Loop

LAYERS = 12
SIZE = {"hidden": 256, "ffn": 688, "heads": 4, "layers": LAYERS, "vocab": 8000}
GOAL = 0.6

Path = Callable[[int], ActiveLayers]


@dataclass(frozen=True)
class FixedLength(DepthTraining):
    """Paths that `path` returns, in place of those of a schedule."""

    path: Path | None = None

    def active(self, update: int) -> ActiveLayers | None:
        """Return the layers of an update."""
        return self.path(update) if self.path else None


def training(gate: str, path: Path | None) -> Loop:
    """Return a training on synthetic rows whose updates have the layers of `path`, None for all."""
    optim = {"lr": 1e-4, "warmup": 1, "steps": 10_000, "batch": 8}
    data = {"like": "c4", "length": 128, "tokenizer": "bpe"}
    cell = cell_from({"size": SIZE, "gate": gate, "data": data, "optim": optim})
    loop = synthetic_loop(cell, padded=False)
    loop.depth = FixedLength(cell.layer_schedule, 1, path)
    return loop


def first(count: int) -> Path:
    """Return the path of the first `count` layers with the factor 1."""
    return lambda update: ActiveLayers(tuple(range(1, count + 1)), (1.0,) * count)


def spread(update: int) -> ActiveLayers:
    """Return a path of six layers, the first and the last among them, that differs from update to update."""
    inner = [2 + (update + place) % (LAYERS - 2) for place in (0, 3, 5, 8)]
    layers = (1, *sorted(inner), LAYERS)
    return ActiveLayers(layers, factors_of("sqrt", layers, LAYERS, ()))


def seconds(loop: Loop) -> float:
    """Do the next update and return its CPU time."""
    began = time.process_time()
    loop.update().loss.item()
    return time.process_time() - began


def shares(rounds: int) -> dict[str, float]:
    """Return the ratios of the module's docstring."""
    sides = {
        "none": training("none", first(0)),
        "all": training("none", None),
        "six": training("none", first(6)),
        "path": training("none", spread),
        "all_gpas": training("gpas", None),
        "path_gpas": training("gpas", spread),
    }
    found: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(WARMUP_UPDATES + rounds):
        for name, loop in sides.items():
            spent = seconds(loop)
            if number >= WARMUP_UPDATES:
                found[name].append(spent)
    whole = {"six": "all", "path": "all", "path_gpas": "all_gpas"}
    return {name: statistics.median(_ratios(found[name], found[of], found["none"])) for name, of in whole.items()}


def _ratios(part: list[float], whole: list[float], apart: list[float]) -> list[float]:
    return [(a - c) / (b - c) for a, b, c in zip(part, whole, apart, strict=True)]


def main() -> None:
    """Print the ratios and whether they are within the goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    make_deterministic(1)
    found: dict[str, Any] = shares(asked.rounds)
    if asked.json:
        print(json.dumps(found))
        return
    for name, share in found.items():
        print(f"{name:<10} {share:.3f} of twelve layers (goal: at most {GOAL})")


if __name__ == "__main__":
    main()
