"""The case `rivals` of `gpu.py`: how others train the same network on the same rows, each beside ours in turns."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial

import torch
from gpu_report import Result
from gpu_scale import Scale, guarded, release
from gpu_speed import COMPARED, turns, updates_of
from rivals import RIVALS, Rival

from gpas_cli.processor import peak_flops
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.cost import whole_flops_per_token
from gpas_cli.train.bench import SyntheticBatches
from gpas_cli.train.device import choose_device
from gpas_cli.train.loop import Loop

_PADDED = {"full": False, "padded": True}
_OURS = "ours, deterministic"
_ANY_ORDER = "ours, not deterministic"
# Over the eager network, which most users train; there is no goal yet beside the others.
_GOALS = {"transformers": 2.0}
# The most telling first: the time may end before the last.
_ORDER = [*(name for name in reversed(RIVALS)), _ANY_ORDER]


@dataclass(frozen=True)
class _Side:
    """What trains: `do` does so many updates on "full" or "padded" rows; `at_once`: rows of a micro-batch; `peak`: GB
    of the GPU that it adds to what was taken before, None on a CPU."""

    do: Callable[[str, int], None]
    at_once: int
    peak: float | None


def rivals(scale: Scale) -> Iterator[Result]:
    """Yield the ratios with each rival, and the speed and memory of all. A rival that fails is reported."""
    for size in COMPARED:
        made: list[_Side] = []
        yield from guarded(size, _OURS, partial(_prepare, scale, size, _OURS, made))
        for ours in made:
            for name in _ORDER:
                yield from guarded(size, name, partial(_against, scale, size, name, ours))
        del made[:]
        torch._dynamo.reset()


def _prepare(scale: Scale, size: str, name: str, made: list[_Side]) -> Iterator[Result]:
    """Yield the memory of a side, and add it to `made` when it has compiled. One that is not installed is reported."""
    cuda = choose_device().type == "cuda"
    before = torch.cuda.memory_allocated() if cuda else 0
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    try:
        do, at_once = _ours(scale, size, name) if name in (_OURS, _ANY_ORDER) else _theirs(scale, size, name)
    except ImportError as error:
        yield Result(size, name, f"not installed: {error}")
        return
    do("full", 1)
    peak = (torch.cuda.max_memory_allocated() - before) / 1e9 if cuda else None
    made.append(_Side(do, at_once, peak))
    yield Result(size, f"{name}: rows at once", at_once)
    if peak is not None:
        yield Result(size, f"{name}: peak memory, full rows", peak, "GB")


def _ours(scale: Scale, size: str, name: str) -> tuple[Callable[[str, int], None], int]:
    """Return the bundled trainer's updates, with or without deterministic kernels, and its rows at once."""

    @cache  # not made before its first use: the peak of memory is that of full rows
    def loop(rows: str) -> Loop:
        return scale.loop(size, "none", padded=_PADDED[rows])

    def do(rows: str, number: int) -> None:
        with _determinism(wanted=name == _OURS):
            updates_of(loop(rows))(number)

    return do, loop("full").micro_batch


@contextmanager
def _determinism(*, wanted: bool) -> Iterator[None]:
    """Use deterministic kernels as a training does, or not at all, as with `resources.deterministic: false`."""
    if wanted:
        yield
        return
    mode, lenient = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(mode, warn_only=lenient)


def _theirs(scale: Scale, size: str, name: str) -> tuple[Callable[[str, int], None], int]:
    """Return a rival's updates and the most rows at once that fit. Raises ImportError where it is not installed.

    Eager transformers gets a mask on padded rows, as its users pass one; the others get none, which is faster.
    """
    cell = scale.cell(size, "none")
    batches = {rows: SyntheticBatches(cell, padded=padded) for rows, padded in _PADDED.items()}
    theirs = Rival(name, cell, batches["full"], backend="aot_eager" if scale.shrink else "inductor")
    at_once = _fitting_rows(theirs, cell.optim.batch)

    def do(rows: str, number: int) -> None:
        theirs.batches, theirs.masked = batches[rows], _PADDED[rows] and name == "transformers"
        theirs.updates(number, at_once)

    return do, at_once


def _fitting_rows(theirs: Rival, rows: int) -> int:
    """Return the largest of `rows`, half of them, a quarter, ... that fit the device at once."""
    while True:
        try:
            theirs.update(rows)
            return rows
        except torch.OutOfMemoryError:
            if rows == 1:
                raise
            theirs.clear()
            release()
            rows //= 2


def _against(scale: Scale, size: str, name: str, ours: _Side) -> Iterator[Result]:
    """Yield what a rival's updates take beside ours, in turns, and the speed of both."""
    made: list[_Side] = []
    yield from _prepare(scale, size, name, made)
    cell = scale.cell(size, "none")
    for theirs in made:
        for rows, padded in _PADDED.items():
            sides = {who: partial(side.do, rows) for who, side in ((_OURS, ours), (name, theirs))}
            seconds = turns(scale, sides)
            found = statistics.median(one[name] / one[_OURS] for one in seconds)
            goal = _GOALS.get(name)
            words, met = (f">= {goal:g}", found >= goal) if goal else ("", None)
            yield Result(size, f"{name}: its time over ours in turns, {rows} rows", found, goal=words, met=met)
            tokens = _real_tokens(cell, padded=padded) * scale.block
            for who in sides:
                rate = tokens / statistics.median(one[who] for one in seconds)
                beside = "" if who == name else f", beside {name}"
                yield from _rates(cell, size, f"{who}: {{}}, {rows} rows{beside}", rate)


def _real_tokens(cell: Cell, *, padded: bool) -> float:
    """Return the tokens of an update without padding, the mean of a few."""
    batches = SyntheticBatches(cell, padded=padded)
    return statistics.mean(batches.at(step).predicted for step in range(4))


def _rates(cell: Cell, size: str, measure: str, rate: float) -> Iterator[Result]:
    yield Result(size, measure.format("real tokens/s"), round(rate))
    if choose_device().type != "cuda":
        return
    peak = peak_flops(torch.cuda.get_device_name(), cell.precision)
    if peak is not None:
        yield Result(size, measure.format("MFU"), 100 * whole_flops_per_token(cell) * rate / peak, "%")
