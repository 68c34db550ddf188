"""What the cases of `gpu.py` train, and what they share."""

from __future__ import annotations

import faulthandler
import gc
import math
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from gpu_report import Result, say

from gpas_cli.spec.cell import Cell
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.spec.run import Resources
from gpas_cli.train.bench import synthetic_loop
from gpas_cli.train.device import choose_device
from gpas_cli.train.loop import Loop

# So low that the weights stay as they are: products of numbers that are not finite take less power, and so less time.
_RATE = 1e-6
ROWS = {"71m": 512, "350m": 512, "1b": 128}
TINY = {"hidden": 32, "ffn": 93, "heads": 2, "layers": 2, "vocab": 300}
TINY_TEXT = {"source": "files", "path": "*.txt", "tokenizer": "bpe", "layout": "pad", "length": 32}


@dataclass(frozen=True)
class Scale:
    """What the cases train: LLaMA of the named sizes, or if `shrink`, tiny networks that do not take a compiler."""

    shrink: bool

    def cell(self, size: str, gate: str = "gpas", precision: str = "bf16") -> Cell:
        optim = {"lr": _RATE, "warmup": 1, "steps": 10_000, "batch": 8 if self.shrink else ROWS[size]}
        what = {"size": TINY, "data": TINY_TEXT} if self.shrink else {"size": size, "data": "c4"}
        return cell_from({**what, "gate": gate, "precision": precision, "optim": optim})

    def loop(
        self, size: str, gate: str = "gpas", *, padded: bool, compiled: bool = True, precision: str = "bf16"
    ) -> Loop:
        """Return a training at update 0, as the trainer makes it."""
        compile_ = "off" if self.shrink or not compiled else "auto"
        loop = synthetic_loop(self.cell(size, gate, precision), Resources(compile=compile_), padded=padded)
        loop.warn = lambda text: say(Result(size, "warning", text))
        return loop

    @property
    def block(self) -> int:
        """The number of updates that are timed together, as their time is that until the device has done the last."""
        return 2 if self.shrink else 5

    @property
    def rounds(self) -> int:
        """The number of blocks of each side of a comparison."""
        return 1 if self.shrink else 5


_KEPT = 20  # lines of a traceback
_PART = 1 / 2  # of the time that is left of a case, for one of its parts
_end = math.inf


def begin(seconds: float) -> None:
    """Set the deadline of this process's case. Just before it, all threads' stacks are written to standard error."""
    global _end
    _end = time.monotonic() + seconds
    if math.isfinite(seconds):
        faulthandler.dump_traceback_later(max(1.0, seconds - 5))


def guarded(case: str, part: str, results: Callable[[], Iterable[Result]]) -> Iterator[Result]:
    """Yield the results of a part of a case, or that it failed or took too long: the other parts are measured all the
    same."""

    def late(*_: object) -> None:
        raise TimeoutError(f"took more than {limit:.0f} s")

    limit = _PART * (_end - time.monotonic())
    signal.signal(signal.SIGALRM, late)
    try:
        yield from _each_before(iter(results()), time.monotonic() + limit)
    except Exception as error:
        lines = traceback.format_exc().splitlines()
        print("\n".join(lines), file=sys.stderr, flush=True)
        yield Result(case, f"failed: {part}", f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
        yield Result(case, f"traceback: {part}", "\n".join(lines[-_KEPT:]))
    release()


def _each_before(results: Iterator[Result], end: float) -> Iterator[Result]:
    """Yield the results; while each is measured, an alarm is set for the time `end`."""
    while True:
        if math.isfinite(end):
            signal.setitimer(signal.ITIMER_REAL, max(0.01, end - time.monotonic()))
        try:
            found = next(results, None)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if found is None:
            return
        yield found


def wait() -> None:
    """Wait until the device has done everything."""
    if choose_device().type == "cuda":
        torch.cuda.synchronize()


def release() -> None:
    """Return unused memory to the device."""
    gc.collect()
    if choose_device().type == "cuda":
        torch.cuda.empty_cache()
