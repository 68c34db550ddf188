"""Measure the cost of observation at the default intervals: alternating updates with and without it, in one process.

    python benchmarks/observe.py --quick --json

`share` is (time with) / (time without) - 1, the median over pairs of blocks that alternate every ten updates: a block
is `stats_every` (100) updates with ten log lines, one record of layer statistics, spike detection and a real journal,
or the same updates without any. `computed` is the same ratio from its parts, each the median of many: (measured update
- bare update) per 100 updates plus one settling and log line per 10, over the bare update. `streams` is what the
statistics of the residual stream and of attention add: (measured update - one without them) per 100 updates, over the
bare update. On a CPU, time is the CPU time of the process, which other load affects least; on a GPU it is wall-clock
time.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from gpas_cli.model.llama import Llama
from gpas_cli.model.stream import stream_statistics
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.spec.run import Cadence, Monitoring
from gpas_cli.store.journal import Journal
from gpas_cli.train.bench import synthetic_loop
from gpas_cli.train.device import choose_device
from gpas_cli.train.loop import Loop
from gpas_cli.train.observe import Observer

CADENCE = Cadence()


def seconds(act: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of `act`, until the device has finished it."""
    if device.type != "cuda":
        began = time.process_time()
        act()
        return time.process_time() - began
    torch.cuda.synchronize(device)
    began = time.perf_counter()
    act()
    torch.cuda.synchronize(device)
    return time.perf_counter() - began


def stretch(loop: Loop, observer: Observer | None, last: bool) -> None:
    """Do `log_every` updates, observed as in a run or not at all; the `last` stretch of a block measures the layers."""
    for i in range(1, CADENCE.log_every + 1):
        update = loop.update(observe=observer is not None and last and i == CADENCE.log_every)
        if observer is not None:
            observer.add(update)
    if observer is not None:
        observer.settle()
        observer.log(loop.position)


def share(loop: Loop, observer: Observer) -> float:
    """Return the extra time of `stats_every` updates with observation over as many without, as a fraction.

    They alternate every `log_every` updates, and so does which of them is first.
    """
    device = loop.precision.device
    taken = {True: 0.0, False: 0.0}
    stretches = CADENCE.stats_every // CADENCE.log_every
    for i in range(1, stretches + 1):
        for observed in (True, False) if i % 2 else (False, True):
            act = partial(stretch, loop, observer if observed else None, i == stretches)
            taken[observed] += seconds(act, device)
    return taken[True] / taken[False] - 1


def parts(loop: Loop, observer: Observer, repeats: int) -> dict[str, float]:
    """Return the median seconds of a bare update, of a measured one with its settling, of one that measures nothing of
    the stream, and of a settling with its log line."""
    device = loop.precision.device
    found: dict[str, list[float]] = {"bare": [], "measured": [], "norms": [], "line": []}

    def measured() -> None:
        observer.add(loop.update(observe=True))
        observer.settle()

    def line() -> None:
        observer.settle()
        observer.log(loop.position)

    def nothing(network: Llama, wanted: bool) -> AbstractContextManager[list[dict[str, Tensor]]]:
        return stream_statistics(network, wanted=False)

    for _ in range(repeats):
        found["bare"].append(seconds(loop.update, device))
        found["measured"].append(seconds(measured, device))
        with patch("gpas_cli.train.loop.stream_statistics", nothing):
            found["norms"].append(seconds(measured, device))
        for _ in range(CADENCE.log_every):
            observer.add(loop.update())
        found["line"].append(seconds(line, device))
    return {name: statistics.median(values) for name, values in found.items()}


def run(cell: Cell, pairs: int, repeats: int) -> dict[str, Any]:
    loop = synthetic_loop(cell, padded=False)
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder) / "journal.jsonl")
        observer = Observer(cell, Monitoring(), loop.precision.device, journal.append)
        for _ in range(5):
            observer.add(loop.update(observe=True))
        observer.settle()
        part = parts(loop, observer, repeats)
        found = [share(loop, observer) for _ in range(pairs)]
        journal.close()
    cost = (part["measured"] - part["bare"]) / CADENCE.stats_every + part["line"] / CADENCE.log_every
    streams = (part["measured"] - part["norms"]) / CADENCE.stats_every
    return {
        "ratios": {
            "share": statistics.median(found),
            "computed": cost / part["bare"],
            "streams": streams / part["bare"],
        },
        "shares": found,
        "seconds": part,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="quickstart")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="fewer blocks: about a minute for the smallest size")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    optim = {"lr": 1e-3, "warmup": 60, "steps": 100_000, "batch": asked.batch}
    data = {"like": "quickstart", "length": asked.length}
    cell = cell_from({"size": asked.size, "gate": "gpas", "data": data, "optim": optim, "precision": asked.precision})
    result = run(cell, pairs=4 if asked.quick else 30, repeats=10 if asked.quick else 50)
    device = choose_device()
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu"
    facts = {**vars(asked), "hardware": hardware, "torch": torch.__version__}
    if asked.json:
        print(json.dumps({**result, "facts": facts}))
        return
    for name, share in result["ratios"].items():
        print(f"{name:<9} {share:+.2%}")
    print(", ".join(f"{name} {1e3 * value:.2f} ms" for name, value in result["seconds"].items()))


if __name__ == "__main__":
    main()
