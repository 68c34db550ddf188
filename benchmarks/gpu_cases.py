"""The cases of `gpu.py`: each yields its results in the order of their importance."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch._dynamo
from gpu_report import Result
from torch import Tensor

from gpas_cli.data.loader import PrefetchedBatches
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.flops import peak_flops, whole_flops_per_token
from gpas_cli.spec.memory import activation_bytes, state_bytes
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.spec.run import Resources
from gpas_cli.train import checkpoint
from gpas_cli.train.bench import WARMUP_UPDATES, SyntheticBatches, peak_memory, synthetic_loop
from gpas_cli.train.compiling import compile_layers
from gpas_cli.train.loop import Loop
from gpas_cli.train.loss import DeviceRows, summed_loss
from gpas_cli.train.precision import choose_device, make_deterministic
from gpas_cli.train.resume import resume

if TYPE_CHECKING:
    from transformers_llama import TransformersTraining

ROWS = {"71m": 512, "350m": 512, "1b": 128}
TINY = {"hidden": 32, "ffn": 93, "heads": 2, "layers": 2, "vocab": 300}
TINY_TEXT = {"source": "files", "path": "*.txt", "tokenizer": "bpe", "layout": "pad", "length": 32}
MFU_GOALS = {"71m": 0.38, "350m": 0.48, "1b": 0.52}
UPDATES = 8  # of the exactness cases; a checkpoint is written after half of them
COMPARED = ("71m", "350m")  # with a network without gates, and with transformers


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


def measured(case: str, folder: Path, *, shrink: bool) -> Iterator[Result]:
    """Yield the results of a case. `folder`: where the exactness cases leave what they compare."""
    scale = Scale(shrink)
    make_deterministic(1 if shrink else os.cpu_count() or 1)
    if case == "exact":
        yield from _machine()
        yield from exact(scale, folder)
    elif case == "again":
        yield from again(scale, folder)
    else:
        # Speeds of tiny networks say nothing about the goals.
        yield from (replace(one, goal="", met=None) if shrink else one for one in speed(scale, case))


def _machine() -> Iterator[Result]:
    name = torch.cuda.get_device_name() if choose_device().type == "cuda" else f"CPU, {platform.machine()}"
    versions = f"torch {torch.__version__}, CUDA {torch.version.cuda}, Python {platform.python_version()}"
    yield Result("exact", "device", name)
    yield Result("exact", "versions", versions)


def exact(scale: Scale, folder: Path) -> Iterator[Result]:
    """Yield whether an update is strictly deterministic, the graphs that each compiles, and how often one waits."""
    torch.use_deterministic_algorithms(True)  # an operation without a deterministic form is an error
    loop = exact_loop(scale)
    try:
        loop.update()
        strict = "yes"
    except RuntimeError as error:
        strict = f"no: {str(error).splitlines()[0]}"
        torch.use_deterministic_algorithms(True, warn_only=True)
        loop = exact_loop(scale)
    yield Result("exact", "an update runs under strict determinism", strict, goal="yes", met=strict == "yes")
    del loop
    torch._dynamo.reset()
    loop = exact_loop(scale)
    graphs = []
    waits: list[str] = []
    for number in range(1, UPDATES + 1):
        before = graphs_so_far()
        with device_waits(wanted=number == UPDATES) as found:
            loop.update()
        waits.extend(found)
        graphs.append(graphs_so_far() - before)
        if number == UPDATES // 2:
            save(loop, scale, folder)
    yield graphs_result("exact", "graphs compiled in each update", graphs)
    if choose_device().type == "cuda":
        text = f"{len(waits)}: {'; '.join(sorted(set(waits)))}" if waits else "0"
        yield Result("exact", "waits for the device in an update", text, goal="0", met=not waits)
    (folder / "exact.json").write_text(json.dumps({"digest": digest(loop)}))
    yield Result("exact", "weights after 8 updates", digest(loop))


def again(scale: Scale, folder: Path) -> Iterator[Result]:
    """Yield whether a resumed training and one from the start end with the weights of `exact`."""
    expected = json.loads((folder / "exact.json").read_text())["digest"]
    for measure, resumed in (("a resumed training has the same bits", True), ("so has one from the start", False)):
        torch._dynamo.reset()
        loop = exact_loop(scale)
        if resumed:
            loop.position = resume([folder], _key(scale), loop, "", lambda event: None)
            loop.micro_batch = loop.position.micro_batch
        graphs = []
        while loop.position.step < UPDATES:
            before = graphs_so_far()
            loop.update()
            graphs.append(graphs_so_far() - before)
        same = digest(loop) == expected
        yield Result("again", measure, "yes" if same else "no", goal="yes", met=same)
        if resumed:
            yield graphs_result("again", "graphs compiled in each update after it", graphs)
        del loop


def exact_loop(scale: Scale) -> Loop:
    """Return the training of the exactness cases; tiny networks are compiled by a back end that takes no compiler."""
    loop = scale.loop("71m", padded=True)
    if scale.shrink:
        compile_layers(loop.network, "eager")
    return loop


def save(loop: Loop, scale: Scale, folder: Path) -> None:
    """Write a checkpoint."""
    checkpoint.save(folder, _key(scale), loop.network, loop.optimizer, loop.position)


def _key(scale: Scale) -> str:
    return scale.cell("71m").stages[0].key


def graphs_so_far() -> int:
    """Return the number of graphs that this process has compiled."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def graphs_result(case: str, measure: str, graphs: list[int]) -> Result:
    """Return the graphs of each update as a result: all of them in the first."""
    return Result(case, measure, str(graphs), goal="none after the first", met=not any(graphs[1:]))


@contextmanager
def device_waits(*, wanted: bool) -> Iterator[list[str]]:
    """Yield a list that has, after the block, CUDA's warnings about operations that wait for the device."""
    found: list[str] = []
    if not wanted or choose_device().type != "cuda":
        yield found
        return
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield found
    torch.cuda.set_sync_debug_mode("default")
    places = [f"{Path(one.filename).name}:{one.lineno}" for one in caught if "synchroniz" in str(one.message)]
    found.extend(places)


def digest(loop: Loop) -> str:
    """Return a checksum of all weights."""
    parts = (p.detach().cpu().contiguous().view(torch.uint8).numpy() for p in loop.network.parameters())
    checksum = hashlib.sha256()
    for part in parts:
        checksum.update(part.tobytes())
    return checksum.hexdigest()[:16]


def speed(scale: Scale, size: str) -> Iterator[Result]:
    """Yield the speed and memory of a size, and if it is in COMPARED, the ratios."""
    if choose_device().type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    full = scale.loop(size, padded=False)
    seconds, results = _rate(scale, size, full, "full rows", MFU_GOALS[size])
    yield from results
    yield from _memory(scale, size, full)
    yield from _rate(scale, size, scale.loop(size, padded=True), "padded rows")[1]
    yield Result(size, "the head's share of an update, full rows", 100 * _head_seconds(full) / seconds, "%")
    if size in COMPARED:
        plain = scale.loop(size, "none", padded=False)
        sides = {"gpas": updates_of(full), "pre": updates_of(plain)}
        gates = ratio(scale, sides, "gpas", "pre")
        yield Result(size, "an update with GPAS over one without", gates, goal="<= 1.01", met=gates <= 1.01)
        yield from _against_transformers(scale, size, plain)
    if size == "71m" and not scale.shrink:
        sides = {"off": updates_of(scale.loop(size, padded=False, compiled=False)), "on": updates_of(full)}
        yield Result(size, "an uncompiled update over a compiled one", ratio(scale, sides, "off", "on"))


def _rate(scale: Scale, size: str, loop: Loop, rows: str, goal: float = 0.0) -> tuple[float, list[Result]]:
    """Return the seconds of an update, and the results: tokens per second, and MFU if the device's peak is known."""
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
        per_token = activation_bytes(cell.model.size, cell.precision)
        predicted = state_bytes(cell) + loop.micro_batch * cell.data.length * per_token
        yield Result(size, "peak memory over the predicted one", peak_memory(device) / predicted)
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
            summed_loss(read_alone, part, loop.precision, 1.0).backward()

    do(1)
    times = len(batch.inputs) / rows
    loop.network.zero_grad(set_to_none=True)
    return times * seconds_of(do, 3) / 3


def _against_transformers(scale: Scale, size: str, plain: Loop) -> Iterator[Result]:
    """Yield the ratios of tokens per second, full rows and padded ones, if `transformers` is installed.

    `plain`: our training of the same network, Pre-LN without gates, on full rows.
    """
    if find_spec("transformers") is None:
        yield Result(size, "compared with transformers", "not installed")
        return
    for rows, padded in (("full", False), ("padded", True)):
        ours = scale.loop(size, "none", padded=True) if padded else plain
        yield _one_against_transformers(scale, size, ours, rows)
        release()


def _one_against_transformers(scale: Scale, size: str, ours: Loop, rows: str) -> Result:
    from transformers_llama import TransformersTraining

    cell = scale.cell(size, "none")
    padded = rows == "padded"
    theirs = TransformersTraining(cell, SyntheticBatches(cell, padded=padded), masked=padded)
    at_once = _fitting_rows(theirs, cell.optim.batch)
    sides = {"ours": updates_of(ours), "theirs": lambda number: theirs.updates(number, at_once)}
    found = ratio(scale, sides, "theirs", "ours")
    measure = f"tokens/s over eager transformers', {rows} rows (theirs: {at_once} rows at once)"
    return Result(size, measure, found, goal=">= 2", met=found >= 2)


def _fitting_rows(theirs: TransformersTraining, rows: int) -> int:
    """Return the largest of `rows`, half of them, a quarter, ... that fit the device at once."""
    while True:
        try:
            theirs.update(rows)
            return rows
        except torch.OutOfMemoryError:
            theirs.adam.zero_grad(set_to_none=True)
            release()
            rows //= 2


def updates_of(loop: Loop) -> Callable[[int], None]:
    """Return a function that does so many updates, with batches made in advance as in a training."""
    source = loop.batches

    def do(number: int) -> None:
        make_deterministic(torch.get_num_threads())  # the other side of a comparison has changed it
        first = loop.position.step
        with PrefetchedBatches(source.at, first, first + number) as loop.batches:
            for _ in range(number):
                loop.update()
        loop.batches = source

    return do


def ratio(scale: Scale, sides: Mapping[str, Callable[[int], None]], over: str, under: str) -> float:
    """Return the median over rounds of the ratio of seconds of two sides that take turns, after a warm-up of both."""
    for do in sides.values():
        do(WARMUP_UPDATES)
    rounds = [{name: seconds_of(do, scale.block) for name, do in sides.items()} for _ in range(scale.rounds)]
    return statistics.median(seconds[over] / seconds[under] for seconds in rounds)


def seconds_of(do: Callable[[int], None], number: int) -> float:
    """Return the seconds until the device has done `number` updates."""
    wait()
    began = time.perf_counter()
    do(number)
    wait()
    return time.perf_counter() - began


def wait() -> None:
    """Wait until the device has done everything."""
    if choose_device().type == "cuda":
        torch.cuda.synchronize()


def release() -> None:
    """Return unused memory to the device."""
    gc.collect()
    if choose_device().type == "cuda":
        torch.cuda.empty_cache()
