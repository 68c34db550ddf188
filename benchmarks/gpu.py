"""Measure one GPU in at most nine minutes: exactness, speed, memory, and a comparison with how others train it.

    PYTHONPATH=. python benchmarks/gpu.py --output results

Needs torch, numpy, psutil and safetensors; the package need not be installed. A rival that is not installed is a line
of the report. Without a GPU, `--shrink` measures tiny networks: it shows that every case runs, and nothing about speed.

Each case is a process of its own with a deadline, and each of its parts has at most half of the time that is left.
A result is printed, and written to OUTPUT/gpu.json and OUTPUT/gpu.md, as soon as it is there; a part that fails or
is late, and a case that is stopped, are reported. What a case prints beside its results goes to standard error. The
cases, in order:

    facts   the device, its clocks, versions, a compiler, and the peaks of a product of matrices and of a copy
    speed   LLaMA 71M, 350M and 1B with GPAS, full rows: the share of the peak FLOP/s (MFU), peak memory and the
            predicted one, the kernels that take the time of an update, a roofline of each kind of them (`roofline.py`
            explains its rows), the head's share, and at 71M the head in chunks of other sizes
    exact   LLaMA 71M with GPAS, padded rows: whether it runs under strict determinism, how many graphs each update
            compiles, how often an update waits for the device, whether compiled gradients are those of eager layers
    again   the same in another process, with an empty cache of compiled kernels, from a checkpoint and from the start:
            whether all weights are the same to the bit
    compare 71M and 350M: padded rows, an update with GPAS over one without, with the stream in bfloat16 over one
            without, and at 71M not compiled over compiled
    rivals  71M and 350M without GPAS, full and padded rows: the time of an update of `transformers`, compiled with and
            without Liger's kernels, and as it is, of litgpt and of torchtitan (`rivals.py` has their settings), and of
            ours without deterministic kernels, over that of ours with them, each beside ours in turns; of all, real
            tokens (without padding) per second, MFU and peak memory. It takes nine minutes by itself: --only rivals
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpu_report import Report, Result, say

SECONDS = 540.0
# Case -> its share of the time that is left when it starts, relative to those of the cases after it.
CASES = {"facts": 20, "speed": 180, "exact": 80, "again": 80, "compare": 60, "rivals": 120}


def run_all(cases: Sequence[str], seconds: float, report: Report, options: Sequence[str]) -> bool:
    """Run `cases` one after the other in `seconds`; return whether all of them ended in time and without an error."""
    end = time.monotonic() + seconds
    complete = True
    with tempfile.TemporaryDirectory(prefix="gpas-gpu-") as folder:
        for number, case in enumerate(cases):
            left = max(0.0, end - time.monotonic())
            limit = left * CASES[case] / sum(CASES[other] for other in cases[number:])
            command = [
                sys.executable,
                __file__,
                "--case",
                case,
                "--folder",
                folder,
                "--limit",
                f"{limit:.1f}",
                *options,
            ]
            # What `exact` has compiled must not help `again`: a training may be resumed on another machine.
            compiled = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/{case}"} if case in ("exact", "again") else {}
            complete &= run_case(case, command, limit, report, compiled)
    return complete


def run_case(
    case: str, command: Sequence[str], limit: float, report: Report, environment: Mapping[str, str] | None = None
) -> bool:
    """Run one case, at most `limit` seconds, and report its results; return whether it ended without an error."""
    began = time.monotonic()
    # A group of its own: compiling starts further processes.
    variables = {**os.environ, **(environment or {})}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True, env=variables) as child:
        late = threading.Event()
        timer = threading.Timer(limit, _kill, (child, late))
        timer.start()
        try:
            assert child.stdout is not None
            for line in child.stdout:
                report.add_line(line)
            code = child.wait()
        finally:
            timer.cancel()
            _kill(child, threading.Event())
    taken = time.monotonic() - began
    if late.is_set():
        report.add(Result(case, "stopped at its deadline; the rest is missing", round(taken, 1), "s"))
    elif code:
        report.add(Result(case, "failed; see standard error", code, "exit code"))
    else:
        report.add(Result(case, "time", round(taken, 1), "s"))
    return not late.is_set() and code == 0


def _kill(child: subprocess.Popen[str], late: threading.Event) -> None:
    if child.poll() is None:
        late.set()
        os.killpg(child.pid, signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for all cases together")
    parser.add_argument("--only", action="append", choices=tuple(CASES), help="measure this case alone; repeatable")
    parser.add_argument("--output", type=Path, help="a folder for gpu.json and gpu.md")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each result, not a table")
    parser.add_argument("--shrink", action="store_true", help="tiny networks, for a machine without a GPU")
    parser.add_argument("--case", choices=tuple(CASES), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=float, default=math.inf, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.case:
        from gpu_cases import measured

        for result in measured(asked.case, asked.folder, shrink=asked.shrink, seconds=asked.limit):
            say(result)
        return
    cases = asked.only or list(CASES)
    if "again" in cases and "exact" not in cases:
        cases = ["exact", *cases]  # it compares with what that has written
    # A polite kill ends the case that is running, too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    report = Report(asked.output, asked.json, [])
    report.begin()
    options = ["--shrink"] if asked.shrink else []
    raise SystemExit(0 if run_all(cases, asked.seconds, report, options) else 1)


if __name__ == "__main__":
    main()
