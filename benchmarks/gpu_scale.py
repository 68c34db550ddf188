"""What the cases of `gpu.py` train, and what they share."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from gpu_report import Result

from gpas_cli.spec.cell import Cell
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.spec.run import Resources
from gpas_cli.train.bench import synthetic_loop
from gpas_cli.train.loop import Loop
from gpas_cli.train.precision import choose_device

ROWS = {"71m": 512, "350m": 512, "1b": 128}
TINY = {"hidden": 32, "ffn": 93, "heads": 2, "layers": 2, "vocab": 300}
TINY_TEXT = {"source": "files", "path": "*.txt", "tokenizer": "bpe", "layout": "pad", "length": 32}


@dataclass(frozen=True)
class Scale:
    """What the cases train: LLaMA of the named sizes, or if `shrink`, tiny networks that do not take a compiler."""

    shrink: bool

    def cell(self, size: str, gate: str = "gpas") -> Cell:
        optim = {"lr": 1e-3, "warmup": 1, "steps": 10_000, "batch": 8 if self.shrink else ROWS[size]}
        what = {"size": TINY, "data": TINY_TEXT} if self.shrink else {"size": size, "data": "c4"}
        return cell_from({**what, "gate": gate, "precision": "bf16", "optim": optim})

    def loop(self, size: str, gate: str = "gpas", *, padded: bool, compiled: bool = True) -> Loop:
        """Return a training at update 0, as the trainer makes it."""
        compile_ = "off" if self.shrink or not compiled else "auto"
        return synthetic_loop(self.cell(size, gate), Resources(compile=compile_), padded=padded)

    @property
    def block(self) -> int:
        """The number of updates that are timed together, as their time is that until the device has done the last."""
        return 2 if self.shrink else 5

    @property
    def rounds(self) -> int:
        """The number of blocks of each side of a comparison."""
        return 1 if self.shrink else 5


def guarded(case: str, part: str, results: Callable[[], Iterable[Result]]) -> Iterator[Result]:
    """Yield the results of a part of a case, or that it failed: the other parts are measured all the same."""
    try:
        yield from results()
    except Exception as error:
        traceback.print_exc()
        yield Result(case, f"failed: {part}", f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
    release()


def wait() -> None:
    """Wait until the device has done everything."""
    if choose_device().type == "cuda":
        torch.cuda.synchronize()


def release() -> None:
    """Return unused memory to the device."""
    gc.collect()
    if choose_device().type == "cuda":
        torch.cuda.empty_cache()
