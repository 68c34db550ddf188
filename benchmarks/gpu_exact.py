"""The cases of `gpu.py` about exactness: determinism, graphs, waits, and the bits of two runs."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from gpu_report import Result
from gpu_scale import Scale, guarded

from gpas_cli.train import checkpoint
from gpas_cli.train.compiling import compile_layers
from gpas_cli.train.device import choose_device
from gpas_cli.train.loop import Loop
from gpas_cli.train.training import resume

UPDATES = 8  # a checkpoint is written after half of them
ROUNDINGS = 0.1  # to bfloat16, in another order: the share of a gradient that they may change
LENIENT = "lenient"  # the file that says that the trainer's strict determinism refuses an update


def exact(scale: Scale, folder: Path) -> Iterator[Result]:
    """Yield whether an update is strictly deterministic, the graphs that each compiles, and how often one waits.

    Where strict determinism refuses an update, operations without a deterministic kernel are allowed from then on.
    """
    torch.use_deterministic_algorithms(True)  # on a CPU too
    loop = exact_loop(scale)
    strict = _refusal(loop) or "yes"
    yield Result("exact", "an update runs under strict determinism", strict, goal="yes", met=strict == "yes")
    if strict != "yes":
        (folder / LENIENT).touch()
        torch.use_deterministic_algorithms(True, warn_only=True)
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
    del loop
    for size, padded in (("71m", True), ("350m", False)):
        part = f"compiled gradients of {size}"
        yield from guarded("exact", part, partial(_gradients, scale, size, padded=padded))


def _gradients(scale: Scale, size: str, *, padded: bool) -> Iterator[Result]:
    """Yield how far the gradients of a compiled update are from those of one that is not compiled.

    Without the gates', which are differences of large sums before the first update.
    """
    found = []
    for make in (partial(scale.loop, compiled=False), partial(exact_loop, scale)):
        loop = make(size, padded=padded)
        loop.update()
        found.append([p.grad for p in loop.network.parameters() if p.grad is not None and len(p) > 1])
        del loop
    plain, compiled = found
    shares = [float((a - b).norm() / a.norm()) for a, b in zip(plain, compiled, strict=True)]
    measure = f"compiled gradients of {size}, difference from uncompiled ones, of the worst parameter"
    yield Result("exact", measure, max(shares), goal=f"<= {ROUNDINGS:g}", met=all(one <= ROUNDINGS for one in shares))


def _refusal(loop: Loop) -> str:
    try:
        loop.update()
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    return ""


def again(scale: Scale, folder: Path) -> Iterator[Result]:
    """Yield whether a resumed training and one from the start end with the weights of `exact`."""
    expected = json.loads((folder / "exact.json").read_text())["digest"]
    for measure, resumed in (("a resumed training has the same bits", True), ("so has one from the start", False)):
        torch._dynamo.reset()
        loop = exact_loop(scale)
        if resumed:
            loop.position = resume([folder], _key(scale), loop, "", lambda event: None)
            loop.micro_batch = loop.position.micro_batch
            loop.compile_for_first_update()
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


def exact_loop(scale: Scale, size: str = "71m", *, padded: bool = True) -> Loop:
    """Return the training of the exactness cases; tiny networks are compiled by a back end that takes no compiler."""
    loop = scale.loop(size, padded=padded)
    if scale.shrink:
        compile_layers(loop.network, "eager")
    return loop


def save(loop: Loop, scale: Scale, folder: Path) -> None:
    """Write a checkpoint."""
    checkpoint.begin(folder, _key(scale), loop.network, loop.optimizer, loop.position).finish()


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
