"""Measure several GPUs of one node, or several processes on a CPU: every layout beside one process.

    PYTHONPATH=. python benchmarks/gpus.py --output results

Trains with NCCL on GPUs, by default on two and on all, and without a GPU with gloo in two and in four processes: tiny
networks there, which show that every case runs and what is equal, and nothing about speed. It needs what `gpu.py`
needs. A case is a layout with a number of processes, started for it alone, with a deadline: one that fails, hangs or
runs out of memory is a line of the report, and the others are measured all the same. A result is printed, and written
to OUTPUT/gpus.json and OUTPUT/gpus.md, as soon as it is there. The layouts:

    one     one process, which the others are compared with
    ddp     each process has the network
    fsdp    the network is sharded over all processes (FSDP2)
    hsdp    it is sharded over half of them and replicated, as if they were on two nodes; with four or more
    back    one process again, which resumes what the others began

Rows of each, in float32 and in bfloat16 with padded rows (LLaMA 71M with GPAS, 64 rows, six updates):

    losses, weights         whether they are the bits of one process, else the largest relative difference of a loss,
                            and of a parameter's weights in norm. Sums in another order round differently
    the same run again      whether its weights are the same bits
    resumed, from LAYOUT    the weights of a training that continues after three updates of another layout, compared
                            with those of one process that was never interrupted

and of each size, with full rows and bf16, all processes sharing the rows of one update:

    real tokens per second  of all processes
    MFU                     of each GPU, and over that of one process. As a batch is split, GPUs get fewer rows each
    over its share alone    the time of an update over that of one process with its share of the rows, without
                            communication; more than 1 is what communication costs
    peak memory             of the first process
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from gpu import run_case
from gpu_report import Report, Result, say

SECONDS = 1800.0
LAYOUTS = ("one", "ddp", "fsdp", "hsdp", "back")
_FEWEST = {"ddp": 2, "fsdp": 2, "hsdp": 4}  # processes


def cases(sizes: Sequence[int], layouts: Sequence[str]) -> list[tuple[str, int]]:
    """Return the layouts and their numbers of processes, in order; hsdp needs an even number of four or more."""
    fits = [
        (layout, size)
        for size in sizes
        for layout, fewest in _FEWEST.items()
        if layout in layouts and size >= fewest and (layout != "hsdp" or size % 2 == 0)
    ]
    return [("one", 1), *fits, *([("back", 1)] if "back" in layouts else [])]


def run_all(
    wanted: Sequence[tuple[str, int]], sizes: Sequence[int], seconds: float, report: Report, shrink: bool
) -> bool:
    """Run the cases one after the other in `seconds`; return whether all ended in time and without an error."""
    end = time.monotonic() + seconds
    complete = True
    # Every case trains, so one process of a CPU computes in one thread.
    threads = {} if torch.cuda.is_available() else {"OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(prefix="gpas-gpus-") as folder:
        for number, (layout, size) in enumerate(wanted):
            # What a case has not used is left for the others; each may take twice its share.
            limit = min(1.0, 2 / (len(wanted) - number)) * max(0.0, end - time.monotonic())
            command = [
                *(sys.executable, __file__, "--case", layout, "--size", str(size), "--folder", folder),
                *("--limit", f"{limit:.1f}", *(["--shrink"] if shrink else [])),
                *(argument for one in sizes for argument in ("--processes", str(one))),
            ]
            complete &= run_case(_title(layout, size), command, limit, report, threads)
    return complete


def _title(layout: str, size: int) -> str:
    return layout if size == 1 else f"{layout}, {size} processes"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--processes", type=int, action="append", help="by default 2 and all GPUs, or 2 and 4; repeatable"
    )
    parser.add_argument("--only", action="append", choices=LAYOUTS, help="this layout, beside `one`; repeatable")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for all cases together")
    parser.add_argument("--output", type=Path, help="a folder for gpus.json and gpus.md")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each result, not a table")
    parser.add_argument("--shrink", action="store_true", help="tiny networks, also on GPUs")
    parser.add_argument("--case", choices=LAYOUTS, help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=float, default=math.inf, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    sizes = sorted(set(asked.processes or ({2, gpus} if gpus else {2, 4})))
    if asked.case:
        from gpus_cases import Case, process

        case = Case(_title(asked.case, asked.size), asked.case, asked.size, asked.folder, asked.shrink, tuple(sizes))
        for result in process(case, asked.rank, asked.limit):
            say(result)
        return
    report = Report(asked.output, asked.json, [], "gpus")
    report.begin()
    if gpus and max(sizes) > gpus:
        report.add(Result("gpus", "GPUs of this machine", gpus, goal=f">= {max(sizes)}", met=False))
        raise SystemExit(1)
    # A polite kill ends the case that is running, too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    wanted = cases(sizes, asked.only or LAYOUTS)
    what = f"{gpus} x {torch.cuda.get_device_name()}" if gpus else f"CPU, {os.cpu_count()} cores"
    report.add(Result("gpus", "device, torch", f"{what}, {torch.__version__}"))
    raise SystemExit(0 if run_all(wanted, sizes, asked.seconds, report, asked.shrink or not gpus) else 1)


if __name__ == "__main__":
    main()
