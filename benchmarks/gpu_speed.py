"""The cases of `gpu.py` about speed and memory."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from unittest.mock import patch

import torch
from gpu_report import Result
from gpu_scale import Scale, guarded
from roofline import roofline
from torch import Tensor
from torch._C._autograd import DeviceType

from gpas_cli.data.loader import PrefetchedBatches
from gpas_cli.extensions.roofline.kernels import PROFILED, profiled, seconds_of
from gpas_cli.processor import peak_flops
from gpas_cli.spec.cost import predicted, whole_flops_per_token
from gpas_cli.spec.run import Resources
from gpas_cli.train import loss as head
from gpas_cli.train.bench import WARMUP_UPDATES, peak_memory
from gpas_cli.train.device import choose_device
from gpas_cli.train.loop import Loop
from gpas_cli.train.loss import DeviceRows, summed_loss

MFU_GOALS = {"71m": 0.38, "350m": 0.48, "1b": 0.52}
COMPARED = ("71m", "350m")  # with a network without gates, and with rivals
_KERNELS = 25


def speed(scale: Scale) -> Iterator[Result]:
    """Yield the speed and memory of each size on full rows, and where the time goes. A part that fails is reported."""
    for size in MFU_GOALS:
        made: list[tuple[Loop, float]] = []
        yield from guarded(size, "full rows", partial(_full, scale, size, made))
        for full, seconds in made:
            parts: dict[str, Iterator[Result]] = {
                "memory": _memory(scale, size, full),
                "kernels and roofline": _kernels(scale, size, full),
                "the head's share": _head(size, full, seconds),
            }
            if size == "71m":
                parts["the head in other chunks"] = _head_sweep(size, full)
            for part, results in parts.items():
                yield from guarded(size, part, partial(iter, results))


def _full(scale: Scale, size: str, made: list[tuple[Loop, float]]) -> Iterator[Result]:
    """Yield the speed on full rows, and add the training and the seconds of an update to `made`."""
    if choose_device().type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    loop = scale.loop(size, padded=False)
    seconds, results = _rate(scale, size, loop, "full rows", MFU_GOALS[size])
    made.append((loop, seconds))
    yield from results


def compare(scale: Scale) -> Iterator[Result]:
    """Yield padded rows' speed and the ratios of each size in COMPARED. A part that fails is reported."""
    for size in COMPARED:
        parts: dict[str, Callable[[], Iterable[Result]]] = {
            "padded rows": partial(_padded, scale, size),
            "GPAS over Pre-LN": partial(_gates, scale, size),
            "the stream in bfloat16": partial(_stream, scale, size),
        }
        if size == "71m" and not scale.shrink:
            parts["uncompiled"] = partial(_uncompiled, scale, size)
        for part, results in parts.items():
            yield from guarded(size, part, results)


def _padded(scale: Scale, size: str) -> Iterable[Result]:
    return _rate(scale, size, scale.loop(size, padded=True), "padded rows")[1]


def _kernels(scale: Scale, size: str, loop: Loop) -> Iterator[Result]:
    """Yield the kernels that take the most time of an update, and the time in which the device does nothing."""
    cuda = loop.precision.device.type == "cuda"
    seconds, seen = profiled(updates_of(loop))
    name = "self_device_time_total" if cuda else "self_cpu_time_total"
    kind = DeviceType.CUDA if cuda else DeviceType.CPU  # an operation is listed apart from its kernels
    rows = [row for row in seen.key_averages() if row.device_type == kind and row.key != "Command Buffer Full"]
    rows.sort(key=lambda row: getattr(row, name), reverse=True)
    busy = sum(getattr(row, name) for row in rows) / 1e6
    for row in rows[:_KERNELS]:
        spent = getattr(row, name)
        text = f"{spent / 1e3 / PROFILED:.3f} ms, {row.count / PROFILED:g} times, {spent / busy / 1e4:.1f} %"
        yield Result(size, f"kernel {row.key[:80]}", text)
    yield Result(size, "a profiled update", 1e3 * seconds, "ms")
    if cuda:
        yield Result(size, "launches of an update", sum(row.count for row in rows) / PROFILED)
        idle = 100 * max(0.0, 1 - busy / PROFILED / seconds)
        yield Result(size, "the device does nothing in a profiled update", idle, "%")
    yield from roofline(size, scale.cell(size), seconds, seen)


def _head_sweep(size: str, loop: Loop) -> Iterator[Result]:
    """Yield the head's time in an update with chunks of other sizes, in whole tiles and as even as possible."""
    for logits in (2**26, 2**27, 2**28):
        for tile in (1, 256):
            with patch.multiple(head, GPU_LOGITS=logits, _CHUNK_LOGITS=logits, _TILE=tile):
                yield Result(size, f"the head, {logits} logits, multiples of {tile}", 1e3 * _head_seconds(loop), "ms")


def _gates(scale: Scale, size: str) -> Iterator[Result]:
    gated, plain = (scale.loop(size, gate, padded=False) for gate in ("gpas", "none"))
    found = ratio(scale, {"gpas": updates_of(gated), "pre": updates_of(plain)}, "gpas", "pre")
    yield Result(size, "an update with GPAS over one without", found, goal="<= 1.01", met=found <= 1.01)


def _stream(scale: Scale, size: str) -> Iterator[Result]:
    sides = {name: updates_of(scale.loop(size, padded=False, precision=name)) for name in ("bf16_stream", "bf16")}
    yield Result(size, "an update in bf16_stream over one in bf16", ratio(scale, sides, *sides))


def _uncompiled(scale: Scale, size: str) -> Iterator[Result]:
    off, on = (updates_of(scale.loop(size, padded=False, compiled=compiled)) for compiled in (False, True))
    sides = {"off": off, "on": on}
    yield Result(size, "an uncompiled update over a compiled one", ratio(scale, sides, "off", "on"))


def _head(size: str, loop: Loop, seconds: float) -> Iterator[Result]:
    yield Result(size, "the head's share of an update, full rows", 100 * _head_seconds(loop) / seconds, "%")


def _rate(scale: Scale, size: str, loop: Loop, rows: str, goal: float = 0.0) -> tuple[float, list[Result]]:
    """Return the seconds of an update, and the results: tokens per second, MFU if the device's peak is known, and the
    loss: products of numbers that are not finite take less power, and so less time."""
    do = updates_of(loop)
    do(WARMUP_UPDATES)
    before = loop.position.tokens
    times = [seconds_of(do, scale.block) for _ in range(scale.rounds)]
    tokens = (loop.position.tokens - before) / len(times) / scale.block
    seconds = statistics.median(times) / scale.block
    results = [
        Result(size, f"an update, {rows}", 1e3 * seconds, "ms"),
        Result(size, f"speed, {rows}, without padding", round(tokens / seconds), "tokens/s"),
    ]
    loss = float(loop.update().loss)
    results.append(Result(size, f"the loss at the end, {rows}", loss, goal="finite", met=math.isfinite(loss)))
    cell = scale.cell(size)
    peak = peak_flops(torch.cuda.get_device_name(), cell.precision) if loop.precision.device.type == "cuda" else None
    if peak is not None:
        mfu = whole_flops_per_token(cell) * tokens / seconds / peak
        words = f">= {100 * goal:g} %" if goal else ""
        results.append(Result(size, f"MFU, {rows}", 100 * mfu, "%", words, mfu >= goal if goal else None))
    return seconds, results


def _memory(scale: Scale, size: str, loop: Loop) -> Iterator[Result]:
    cell = scale.cell(size)
    device = loop.precision.device
    yield Result(size, "rows at once", loop.micro_batch)
    yield Result(size, "peak memory, full rows", round(peak_memory(device) / 1e9, 2), "GB")
    if device.type == "cuda":
        has = torch.cuda.get_device_properties(device).total_memory
        asked = Resources(gpus=1, micro_batch=loop.micro_batch)
        found = peak_memory(device) / predicted(cell, asked, has).total
        yield Result(size, "peak memory over the predicted one", found)
        yield Result(size, "retries of the allocator", torch.cuda.memory_stats()["num_alloc_retries"])


def _head_seconds(loop: Loop) -> float:
    """Return the seconds that the head takes in an update: its logits, the loss and the gradients of both."""
    batch = loop.batches.at(0)
    rows = loop.micro_batch
    part = DeviceRows.of(batch.inputs[:rows], batch.targets[:rows], loop.precision.device)
    seen: list[tuple[Tensor, Tensor]] = []

    def keep(hidden: Tensor, head: Tensor) -> Tensor:
        seen.append((hidden, head))
        return hidden.sum()

    with torch.no_grad(), loop.precision.compute():
        loop.network(part.inputs, part.packing, keep, part.visible, None)
    ((hidden, head),) = seen
    states = hidden.detach().requires_grad_()

    def read_alone(tokens: Tensor, packing: object, read: Callable[[Tensor, Tensor], Tensor], *rest: object) -> Tensor:
        return read(states, head)

    def do(number: int) -> None:
        for _ in range(number):
            summed_loss(read_alone, part, loop.precision, 1.0).backward()  # type: ignore[arg-type, no-untyped-call]

    do(1)
    times = len(batch.inputs) / rows
    loop.network.zero_grad(set_to_none=True)
    return times * seconds_of(do, 3) / 3


def updates_of(loop: Loop) -> Callable[[int], None]:
    """Return a function that does so many updates, with batches made in advance as in a training."""
    source = loop.batches

    def do(number: int) -> None:
        first = loop.position.step
        with PrefetchedBatches(source.at, first, first + number) as loop.batches:
            for _ in range(number):
                loop.update()
        loop.batches = source

    return do


def ratio(scale: Scale, sides: Mapping[str, Callable[[int], None]], over: str, under: str) -> float:
    """Return the median over rounds of the ratio of seconds of two sides that take turns, after a warm-up of both."""
    return statistics.median(seconds[over] / seconds[under] for seconds in turns(scale, sides))


def turns(scale: Scale, sides: Mapping[str, Callable[[int], None]]) -> list[dict[str, float]]:
    """Return the seconds of a block of updates of each side in each round, after a warm-up of all."""
    for do in sides.values():
        do(WARMUP_UPDATES)
    return [{name: seconds_of(do, scale.block) for name, do in sides.items()} for _ in range(scale.rounds)]
