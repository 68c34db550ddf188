"""The processes of one case of `gpus.py`."""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
import torch._dynamo  # as FSDP and optimizers do
from gpu_report import Result
from gpu_scale import TINY, TINY_TEXT, Scale, begin, guarded, release
from gpu_speed import updates_of
from torch import Tensor

from gpas_cli.checkpoints import newest_first, step_of
from gpas_cli.extensions.roofline.kernels import seconds_of
from gpas_cli.model.dtensors import local
from gpas_cli.model.llama import build
from gpas_cli.processor import peak_flops
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.cost import whole_flops_per_token
from gpas_cli.spec.parse_cell import cell_from
from gpas_cli.spec.run import Resources
from gpas_cli.train import checkpoint
from gpas_cli.train.assemble import assemble
from gpas_cli.train.bench import WARMUP_UPDATES, SyntheticBatches, peak_memory
from gpas_cli.train.device import choose_device, make_deterministic, use_expandable_segments
from gpas_cli.train.loop import Loop
from gpas_cli.train.parallel import ALONE, World, joined
from gpas_cli.train.precision import Precision

UPDATES = 6
HALF = 3
ROWS = 64
# The largest relative difference from one process: a few roundings of sums in another order.
TOLERANCES = {"fp32": 1e-5, "bf16": 2e-2}
# The layouts in which a size is measured: 350M and 1B with and without shards, 71M as the papers train it.
SPEEDS = {"71m": ("ddp", "fsdp", "hsdp"), "350m": ("ddp", "fsdp"), "1b": ("ddp", "fsdp", "hsdp")}


@dataclass(frozen=True)
class Case:
    """A layout with `size` processes; `folder` has what earlier cases left, `sizes` the numbers of processes of all."""

    title: str
    layout: str
    size: int
    folder: Path
    shrink: bool
    sizes: tuple[int, ...]

    @property
    def resources(self) -> Resources:
        strategy = self.layout if self.size > 1 else "auto"
        return Resources(
            gpus=self.size if choose_device().type == "cuda" else 0,
            ranks=self.size,
            strategy=strategy,
            nodes=2 if self.layout == "hsdp" else 1,
            compile="off" if self.shrink else "auto",
        )

    @property
    def name(self) -> str:
        """The name of its files."""
        return f"{self.layout}-{self.size}"


def process(case: Case, rank: int, seconds: float) -> Iterator[Result]:
    """Do the work of process `rank`, and yield the results in the first one, which starts the others."""
    begin(seconds)
    meeting = case.folder / f"meeting-{case.name}"
    if rank == 0:
        for other in range(1, case.size):
            _start(other)
    make_deterministic(1 if choose_device().type == "cpu" else max(1, (os.cpu_count() or 1) // case.size))
    with joined(World(rank, case.size, rank), f"file://{meeting}") as world:
        use_expandable_segments()
        for result in _measured(case, world):
            if world.leads:
                yield result


def _start(rank: int) -> None:
    """Start another process like this one; if it fails, this one exits, as it would wait for the other forever."""
    command = [sys.executable, *sys.argv, "--rank", str(rank)]
    child = subprocess.Popen(command, stdout=sys.stderr)  # of this process's group: the parent kills all of it

    def watch() -> None:
        if child.wait():
            print(f"process {rank} exited with {child.returncode}", file=sys.stderr, flush=True)
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _measured(case: Case, world: World) -> Iterator[Result]:
    """Yield the results of a case. A part that fails in a case of one process is reported; with several, all end."""
    for precision in TOLERANCES:
        part = partial(_back if case.layout == "back" else _exact, case, world, precision)
        if world.alone:
            yield from guarded(case.title, precision, part)
        else:
            yield from part()
            release()
    if case.layout == "back":
        return
    for size, layouts in SPEEDS.items():
        if world.alone:
            yield from guarded(case.title, size, partial(_alone, case, size))
        elif case.layout in layouts:
            yield from _speed(case, world, size)
            release()
        if case.shrink:
            return


def exact_cell(precision: str, *, shrink: bool) -> Cell:
    """Return the cell that all layouts train, at a rate at which weights move."""
    optim = {"lr": 1e-3, "warmup": 1, "steps": UPDATES, "batch": 8 if shrink else ROWS, "clip": 1.0}
    what = {"size": TINY, "data": TINY_TEXT} if shrink else {"size": "71m", "data": "c4"}
    return cell_from({**what, "gate": "gpas", "precision": precision, "optim": optim})


def _exact(case: Case, world: World, precision: str) -> Iterator[Result]:
    """Yield how the layout's losses and weights compare with those of one process, again and after a resume."""
    cell = exact_cell(precision, shrink=case.shrink)
    own = _folder(case.folder, case.name, precision)
    losses, digest = _train(case, cell, world, own)
    (own / f"losses-{world.rank}.json").write_text(json.dumps(losses))
    _, again = _train(case, cell, world, None)
    same = world.min(int(digest == again)) == 1  # each compares its part
    yield Result(
        case.title, f"{precision}: the same run again has the same bits", "yes" if same else "no", goal="yes", met=same
    )
    if world.alone:
        return
    first = json.loads((_folder(case.folder, "one-1", precision) / "losses-0.json").read_text())
    far = max(abs(a - b) / abs(b) for a, b in zip(losses, first, strict=True))
    yield _compared(case, f"{precision}: losses", precision, far, bits=losses == first)
    straight = _weights(case, cell, "one-1", precision) if world.leads else {}
    if world.leads:
        yield _difference(
            case, f"{precision}: weights", precision, straight, _weights(case, cell, case.name, precision)
        )
    for earlier in _others(case, precision):
        yield from _resumed(case, cell, world, precision, earlier, straight)


def _resumed(
    case: Case, cell: Cell, world: World, precision: str, earlier: str, straight: dict[str, Tensor]
) -> Iterator[Result]:
    """Yield the weights of a training that continues what another layout began, compared with `straight`."""
    name = f"{case.name}-after-{earlier}"
    _train(case, cell, world, _folder(case.folder, name, precision), _half(case, earlier, precision))
    if world.leads:
        ours = _weights(case, cell, name, precision)
        yield _difference(case, f"{precision}: resumed, from {earlier}", precision, straight, ours)


def _back(case: Case, world: World, precision: str) -> Iterator[Result]:
    """Yield the weights of one process that resumes what each layout began."""
    cell = exact_cell(precision, shrink=case.shrink)
    straight = _weights(case, cell, "one-1", precision)
    for earlier in _others(case, precision):
        yield from _resumed(case, cell, world, precision, earlier, straight)


def _others(case: Case, precision: str) -> list[str]:
    """Return the names of earlier cases to resume: of other numbers of processes, or for hsdp all."""
    found = sorted(
        path.name
        for path in (case.folder / precision).iterdir()
        if "after" not in path.name and path.name != case.name and len(newest_first([path])) == 2
    )
    chosen = [name for name in found if not name.endswith(f"-{case.size}") or case.layout == "hsdp"]
    return chosen if case.layout != "back" else [name for name in found if name != "one-1"]


def _train(
    case: Case, cell: Cell, world: World, folder: Path | None, start: Path | None = None
) -> tuple[list[float], str]:
    """Train to the end, from `start`; return the losses, and a checksum of this process's weights.

    With a folder, leaves checkpoints in it after HALF of the updates and at the end.
    """
    loop = assemble(cell, SyntheticBatches(cell, padded=True), case.resources, world)
    key = cell.stages[0].key
    if start is not None:
        loop.position = checkpoint.load(start, key, loop.network, loop.optimizer, world)
        if world.size == loop.position.processes:
            loop.micro_batch = loop.position.micro_batch
        loop.compile_for_first_update()
    losses = []
    while loop.position.step < UPDATES:
        losses.append(float(loop.update().loss))
        if folder is not None and loop.position.step in (HALF, UPDATES):
            writing = checkpoint.begin(folder, key, loop.network, loop.optimizer, loop.position, world)
            writing.finish(keep=(HALF,))
    return losses, _digest(loop)


def _digest(loop: Loop) -> str:
    checksum = hashlib.sha256()
    for parameter in loop.network.parameters():
        checksum.update(local(parameter).detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return checksum.hexdigest()


def _folder(root: Path, name: str, precision: str) -> Path:
    folder = root / precision / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _half(case: Case, name: str, precision: str) -> Path:
    return next(path for path in newest_first([_folder(case.folder, name, precision)]) if step_of(path) == HALF)


def _weights(case: Case, cell: Cell, name: str, precision: str) -> dict[str, Tensor]:
    """Return the final weights of a case, whole and on the host."""
    network = build(cell.model, dtype=Precision(precision, torch.device("cpu")).weights)
    checkpoint.load(newest_first([_folder(case.folder, name, precision)])[0], cell.stages[0].key, network, None, ALONE)
    return network.state_dict()


def _difference(case: Case, measure: str, precision: str, theirs: dict[str, Tensor], ours: dict[str, Tensor]) -> Result:
    """Return how far two networks are apart, by the worst parameter. Gates are too small for a share of their norm."""
    bits = all(torch.equal(theirs[name], ours[name]) for name in theirs)
    far = max(float((ours[n] - one).norm() / one.norm()) for n, one in theirs.items() if one.numel() > 1)
    return _compared(case, measure, precision, far, bits=bits)


def _compared(case: Case, measure: str, precision: str, far: float, *, bits: bool) -> Result:
    most = TOLERANCES[precision]
    value = "the bits of one process" if bits else f"{far:.2g} from one process"
    return Result(case.title, measure, value, goal=f"<= {most:g}", met=bits or far <= most)


def _alone(case: Case, size: str) -> Iterator[Result]:
    """Yield the speed of one process, and keep it and the time with the share of each number of processes."""
    cell = Scale(case.shrink).cell(size)
    kept: dict[str, float] = {}
    for processes in (1, *(one for one in case.sizes if one > 1)):
        own = replace(cell, optim=replace(cell.optim, batch=cell.optim.share(processes), mean_rows=0))
        kept[str(processes)], loop = _seconds(case, own, ALONE)
        if processes == 1:
            yield from _rates(case, size, cell, kept["1"], loop)
        del loop
        release()
    (case.folder / f"{size}.json").write_text(json.dumps(kept))


def _speed(case: Case, world: World, size: str) -> Iterator[Result]:
    """Yield the speed of all processes together, beside one process's."""
    cell = Scale(case.shrink).cell(size)
    seconds, loop = _seconds(case, cell, world)
    yield from _rates(case, size, cell, seconds, loop)
    path = case.folder / f"{size}.json"
    kept = json.loads(path.read_text()) if path.exists() else {}  # one process may be too small for it
    if "1" in kept:
        share = kept["1"] / seconds / case.size
        yield Result(case.title, f"{size}: MFU over one process's", share)
    if str(case.size) in kept:
        measure = f"{size}: an update over one process's with its share alone"
        yield Result(case.title, measure, seconds / kept[str(case.size)])


def _seconds(case: Case, cell: Cell, world: World) -> tuple[float, Loop]:
    """Return the seconds of an update, and the training that was measured."""
    if choose_device().type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    loop = assemble(cell, SyntheticBatches(cell, padded=False), case.resources, world)
    do, scale = updates_of(loop), Scale(case.shrink)
    do(WARMUP_UPDATES)
    return statistics.median(seconds_of(do, scale.block) for _ in range(scale.rounds)) / scale.block, loop


def _rates(case: Case, size: str, cell: Cell, seconds: float, loop: Loop) -> Iterator[Result]:
    rate = cell.optim.batch * cell.data.length / seconds
    yield Result(case.title, f"{size}: an update", 1e3 * seconds, "ms")
    yield Result(case.title, f"{size}: real tokens per second", round(rate))
    yield Result(case.title, f"{size}: rows at once in a process", loop.micro_batch)
    yield Result(case.title, f"{size}: peak memory of a process", peak_memory(loop.precision.device) / 1e9, "GB")
    if loop.precision.device.type == "cuda":
        peak = peak_flops(torch.cuda.get_device_name(), cell.precision)
        if peak is not None:
            yield Result(case.title, f"{size}: MFU", 100 * whole_flops_per_token(cell) * rate / peak / case.size, "%")
