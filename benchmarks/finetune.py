"""Compare an update of finetuning with LISA with one of full finetuning: peak memory and time.

    python benchmarks/finetune.py --quick --json

The two sides of the time take turns: a round does one update of each, and the ratio is the median over rounds. The peak
memory is that of a process of its own after enough updates that every layer has been drawn. The network is LLaMA 71M
(12 layers) with GPAS, with 4 layers drawn every 3 updates, on rows of 512 tokens.

    time            our update with LISA / full finetuning
    memory          peak memory with `lisa_state: keep` / full finetuning
    memory_reset    the same with `lisa_state: reset`
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import torch

from gpas_cli.spec.finetune import Finetune
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.train.assemble import assemble
from gpas_cli.train.bench import WARMUP_UPDATES, SyntheticBatches, peak_memory, timed_update
from gpas_cli.train.depth import LayerSelection, freeze_gates
from gpas_cli.train.device import choose_device, make_deterministic
from gpas_cli.train.finetune import recipe_of
from gpas_cli.train.loop import Loop

DEVICE = choose_device()
UPDATES = 30  # ten draws of 4 of 12 layers: a layer is in none of them with probability 2 %
PRETRAINING = {"lr": 1e-3, "warmup": 1, "steps": 10}  # not done, but a cell has one
METHODS = {"full": {"method": "full"}, "lisa": {}, "reset": {"lisa_state": "reset"}}


def loop(method: str, size: str, rows: int, precision: str) -> Loop:
    """Return a finetuning of the initialised network on synthetic rows, at update 0."""
    make_deterministic(torch.get_num_threads())
    section = {**METHODS[method], "batch": rows, "epochs": 1, "precision": precision}
    declared = cell_from({"size": size, "gate": "gpas", "data": "c4", "optim": PRETRAINING, "finetune": section})
    recipe = recipe_of(declared, 10_000 * rows)
    spec: Finetune = declared.parameters("finetune")
    selection = LayerSelection.of(spec, declared.model.size.layers)
    batches = SyntheticBatches(recipe, padded=False)
    return assemble(recipe, batches, start=freeze_gates, selection=selection)


def time_ratio(size: str, rows: int, precision: str, rounds: int) -> tuple[float, dict[str, float]]:
    """Return the median over rounds of the time with LISA over that of full finetuning, and the medians in seconds."""
    loops = {method: loop(method, size, rows, precision) for method in ("lisa", "full")}
    seconds: dict[str, list[float]] = {method: [] for method in loops}
    for number in range(-WARMUP_UPDATES, rounds):
        for method, training in loops.items():
            taken = timed_update(training)
            if number >= 0:
                seconds[method].append(taken)
    ratio = statistics.median(a / b for a, b in zip(seconds["lisa"], seconds["full"], strict=True))
    return ratio, {method: statistics.median(taken) for method, taken in seconds.items()}


def memory_of(method: str, asked: argparse.Namespace) -> int:
    """Return the peak bytes of UPDATES updates in a process of their own."""
    command = [sys.executable, str(Path(__file__)), "--only", method, "--size", asked.size]
    command += ["--rows", str(asked.rows), "--precision", asked.precision, "--updates", str(asked.updates)]
    return int(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--size", default="71m")
    parser.add_argument("--rows", type=int, default=2, help="rows of 512 tokens in an update")
    parser.add_argument("--precision", default="fp32", choices=("fp32", "bf16", "pure_bf16"))
    parser.add_argument("--rounds", type=int, default=0, help="default 24, or 6 with --quick")
    parser.add_argument("--updates", type=int, default=0, help=f"for the peak of memory; default {UPDATES}, or 6")
    parser.add_argument("--only", choices=METHODS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    asked.updates = asked.updates or (6 if asked.quick else UPDATES)
    if asked.only:
        training = loop(asked.only, asked.size, asked.rows, asked.precision)
        for _ in range(asked.updates):
            timed_update(training)
        print(peak_memory(DEVICE))
        return
    peaks = {method: memory_of(method, asked) for method in METHODS}
    time, seconds = time_ratio(asked.size, asked.rows, asked.precision, asked.rounds or (6 if asked.quick else 24))
    ratios = {"time": time, "memory": peaks["lisa"] / peaks["full"], "memory_reset": peaks["reset"] / peaks["full"]}
    found = {
        "ratios": ratios, "peak_bytes": peaks, "seconds": seconds, "size": asked.size, "rows": asked.rows,
        "precision": asked.precision, "updates": asked.updates, "device": str(DEVICE),
        "processor": torch.cuda.get_device_name() if DEVICE.type == "cuda" else platform.processor(),
        "threads": torch.get_num_threads(), "torch": version("torch"),
    }  # fmt: skip
    print(json.dumps(found, indent=2) if asked.json else "\n".join(f"{n:16}{r:8.3f}" for n, r in ratios.items()))


if __name__ == "__main__":
    main()
