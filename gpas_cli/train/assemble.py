"""Build everything that a training needs from its cell: device, network, optimizer, micro-batch, matrix product.

The batch of an update, and so the result, does not depend on the rows of a micro-batch.
`Rounding` is what decides its bits, beside its micro-batch, its processes and its float32 product.

`load_trained` opens the trained network of a cell, whichever stage trained it last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, field, fields, replace
from pathlib import Path
from typing import Any

import psutil
import torch

from gpas_cli.errors import GpasError
from gpas_cli.model.llama import Llama, build
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.cost import USABLE_FRACTION, fitting_rows, flops_per_token, most_rows
from gpas_cli.spec.run import Resources
from gpas_cli.structure import Frozen
from gpas_cli.train import checkpoint
from gpas_cli.train.checkpoint import Position
from gpas_cli.train.compiling import worth_compiling
from gpas_cli.train.depth import DepthTraining, LayerSelection
from gpas_cli.train.device import choose_device
from gpas_cli.train.loop import BatchSource, Loop
from gpas_cli.train.loss import KERNELS, logits_at_once, use_kernels
from gpas_cli.train.optim import make_optimizer
from gpas_cli.train.parallel import ALONE, World, choose_layout
from gpas_cli.train.precision import MatmulChoice, Precision, choose_matmul

# Logits of one micro-batch on the CPU: 256 MB of float32. More rows at once are no faster there.
_CPU_LOGITS = 2**26
_CGROUP = Path("/sys/fs/cgroup")
DEFAULT_RESOURCES = Resources()


def _called(words: str) -> Any:
    """Declare a field with what messages call it."""
    return field(metadata={"words": words})


class Rounding(Frozen):
    """What decides how a training rounds; all its processes have the same.

    `triton`, `ragged` and `wider` say which of `train.loss.KERNELS` are used: `triton` for the loss, `ragged` for
    attention to packed rows, `wider` to add up the gradient of the head.
    """

    device: str = _called("the device")  # the GPU's model, or the instructions of the processor that torch uses
    threads: int = _called("threads")  # how many a CPU uses, 0 on a GPU, where they change nothing
    torch: str = _called("torch")  # its version
    compiled: bool = _called("compiled layers")  # whether layers are compiled
    triton: bool = _called("Triton's kernel of the loss")
    ragged: bool = _called("attention to rows of different lengths in one stream")
    wider: bool = _called("float32 sums of the head's gradient")
    deterministic: bool = _called("deterministic kernels (resources.deterministic)")
    """Whether all kernels are deterministic."""


def changes(before: Mapping[str, Any], now: Mapping[str, Any], step: int) -> dict[str, str]:
    """Return, by field of `Rounding`, what differs between the updates up to `step` and those after it, in words.

    A field that one of them lacks, as in a checkpoint of an earlier version, counts as equal; all of these had
    deterministic kernels. Other kernels differ from an uninterrupted run's, whichever were used before.
    """
    before = {"deterministic": True, **before} if step else before
    return {
        name: f"{words}: {_shown(before[name])} up to update {step}, {_shown(now[name])} after it"
        for name, words in ((own.name, own.metadata["words"]) for own in fields(Rounding))
        if name in before and name in now and (before[name] != now[name] or (name == "deterministic" and not now[name]))
    }


def _shown(value: Any) -> str:
    return str(value) if not isinstance(value, bool) else "yes" if value else "no"


def micro_batch_rows(
    cell: Cell,
    precision: Precision,
    asked: int = 0,
    *,
    processes: int = 1,
    strategy: str = "none",
    recompute: bool = False,
    reserved: int = 0,
) -> int:
    """Return the rows per micro-batch in each of `processes`: `asked` if set, else as many as are expected to fit.

    `reserved`: bytes that gradients and optimizer state will take on the device. `strategy`, `recompute`: those of the
    layout.
    """
    most = most_rows(cell, processes, asked)
    if asked:
        return most
    usable = int(USABLE_FRACTION * _free_bytes(precision.device)) - reserved
    if precision.device.type == "cpu":
        usable //= processes
        most = min(most, max(1, _CPU_LOGITS // (cell.data.length * cell.model.size.vocab)))
    logits = logits_at_once(precision.device)
    return fitting_rows(cell, most, usable, strategy=strategy, recompute=recompute, logits=logits)


def _free_bytes(device: torch.device) -> int:
    """Return the bytes of memory that this process can still allocate."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return min(int(psutil.virtual_memory().available), _left_in_container(_CGROUP))


def _left_in_container(folder: Path) -> int:
    """Return the bytes left under a container's limit, or a very large number without one."""
    try:
        return int((folder / "memory.max").read_text()) - int((folder / "memory.current").read_text())
    except (OSError, ValueError):
        return 2**62


Start = Callable[[Llama], None]


def leave(network: Llama) -> None:
    """Leave the initialised network unchanged: the default of `start`."""


def assemble(
    cell: Cell,
    batches: BatchSource,
    resources: Resources = DEFAULT_RESOURCES,
    world: World = ALONE,
    start: Start = leave,
    selection: LayerSelection | None = None,
) -> Loop:
    """Return the cell's network, distributed over `world`, with its optimizer, at update 0. Collective.

    `start` changes the initialised network before the optimizer is built for the parameters that then require
    gradients; its exceptions propagate. `selection`: the layers that train in each update.
    """
    precision = Precision(cell.precision, choose_device())
    rounding = _settle_rounding(cell, resources, precision, world)
    layout = choose_layout(cell, resources, precision, world, compiled=rounding.compiled)
    network = layout.build(cell.model, cell.seed, precision)
    start(network)
    rows = micro_batch_rows(
        cell, precision, resources.micro_batch, processes=world.size, strategy=layout.strategy,
        recompute=layout.recompute, reserved=layout.unallocated_bytes(network),
    )  # fmt: skip
    rows = world.min(rows)  # sharded networks need as many micro-batches in all processes
    return Loop(
        network, make_optimizer(network, cell.optim), cell.optim, batches, precision, rows,
        position=Position(rounding=asdict(rounding)), layout=layout, selection=selection, depth=DepthTraining.of(cell),
        dropout=cell.dropout, word_dropout=cell.objective.word_dropout, seed=cell.seed,
        row_length=cell.data.length if cell.data.batches == "tokens" else 0,
    )  # fmt: skip


def _settle_rounding(cell: Cell, resources: Resources, precision: Precision, world: World) -> Rounding:
    """Choose whether layers are compiled and which kernels are used, as the first process does, and return what decides
    how the training rounds. Collective.
    """
    if not resources.deterministic:
        torch.set_deterministic_debug_mode("default")  # in place of what `make_deterministic` sets
    device = precision.device
    compiled = resources.compile == "on"
    if compiled and cell.model.family.encoder:
        raise GpasError("resources.compile: on is not for encoder-decoder, whose batches have many widths; write auto")
    if resources.compile == "auto" and not cell.model.family.encoder:  # whose batches have many widths
        flops = cell.optim.trained_rows * cell.data.length * flops_per_token(cell)
        compiled = worth_compiling(device, flops)
    name, threads = f"CPU with {torch.backends.cpu.get_cpu_capability()}", torch.get_num_threads()
    if device.type == "cuda":
        name, threads = torch.cuda.get_device_name(device), 0
    kernels = {kernel: works(device) for kernel, works in KERNELS.items()}
    rounding = world.broadcast(
        Rounding(name, threads, str(torch.__version__), compiled, deterministic=resources.deterministic, **kernels)
    )
    use_kernels(device, {kernel: getattr(rounding, kernel) for kernel in KERNELS})
    return rounding


def settle_matmul(cell: Cell, loop: Loop) -> MatmulChoice | None:
    """Choose the float32 matrix product, if the cell uses one, and return the choice. Collective.

    All processes use the same product.
    """
    if cell.precision != "fp32":
        return None
    choice = choose_matmul(cell.model.size, loop.precision.device, loop.position.gemm)
    choice = loop.layout.world.broadcast(choice)
    torch.set_float32_matmul_precision(choice.path)
    loop.position = replace(loop.position, gemm=choice.path)
    return choice


class TrainedNetwork(Frozen):
    """A trained network on its device, the precision of its training, and the progress of that training."""

    network: Llama
    precision: Precision
    position: Position


@torch.no_grad()
def load_trained(cell: Cell, trained: Path | Sequence[Path], world: World = ALONE) -> TrainedNetwork:
    """Return the network of `trained`, a checkpoint of the cell's last training stage, whole in every process.

    Of several checkpoints the network has the mean of their weights, summed in float64 and rounded once, and the
    position is the last one's. Collective. Raises DamagedCheckpoint if it is damaged or belongs to another stage.
    """
    precision = Precision(cell.trained_precision, choose_device())
    network = build(cell.model, seed=cell.seed, dtype=precision.weights, device=precision.device)
    precision.apply(network)
    paths = [trained] if isinstance(trained, Path) else trained
    weights = network.state_dict()
    sums = {name: torch.zeros_like(weight, dtype=torch.float64) for name, weight in weights.items() if len(paths) > 1}
    for path in paths:
        position = checkpoint.load(path, cell.trained.key, network, None, world)
        for name, total in sums.items():
            total += weights[name]
    for name, total in sums.items():
        weights[name].copy_(total / len(paths))
    return TrainedNetwork(network, precision, position)
