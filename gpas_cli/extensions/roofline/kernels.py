"""Where the time of an update goes, by kind of kernel, beside what this device itself can do: a roofline.

    products    of matrices, forward and backward, without the head's
    attention   the kernel of attention, forward and backward
    norms       RMSNorm, with the sums of the residual stream (compiled layers fuse them)
    SwiGLU      silu(gate) * up and its gradients
    head        logits, loss and the gradients of both: its products and its passes over the logits
    optimizer   Adam, and the norm of the gradients
    the rest    rotation, embedding, gates, copies
    idle        the device waits for the host, or on a CPU nothing: what the profiler sees is all

A kind has the time of a profiled update, the least FLOPs and bytes of the computation, and its bound: for each of its
parts the larger of FLOPs over the rate of a large product of matrices, and bytes over the rate of a copy, both as
measured on this device. Bytes count each tensor of the computation once where it is read or written in the dtype of
this precision; a kind that keeps a tensor in a cache may beat its bound, as on a CPU with a small network. The MFU is
that of the peak in the data sheet; where it is unknown, as for a CPU, of the measured product.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile

from gpas_cli.processor import peak_flops
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.cost import parameters, whole_flops_per_token
from gpas_cli.structure import Frozen
from gpas_cli.train.device import choose_device
from gpas_cli.train.loop import Loop
from gpas_cli.train.precision import Precision

REST, IDLE = "the rest", "idle"
# Kind -> what the name of a kernel, or one of the operations that it is part of, contains; the first that fits counts.
_ANYWHERE = {
    "head": r"_LinearCrossEntropy|softmax_gradients|cross_entropy",
    "attention": r"scaled_dot_product|flash|fmha|sdpa",
    "optimizer": r"Optimizer\.step|[Aa]dam|multi_tensor|vector_norm|_foreach",
}
_OF_THE_KERNEL = {"products": r"^aten::(add|b|badd)?mm_?$|gemm|nvjet|cutlass|cublas|xmma|splitK"}
_THEN_ANYWHERE = {"SwiGLU": r"_GatedDown|silu|sigmoid", "norms": r"_Normed|rsqrt|triton_(red|per)_|^aten::add_?$"}
KINDS = ("products", "attention", "norms", "SwiGLU", "head", "optimizer", REST)
_REPEATS = 10
PROFILED = 2  # updates


class Part(Frozen):
    """The least FLOPs and bytes of a part of an update."""

    flops: float
    bytes: float

    def bound(self, device: Reach) -> float:
        """Return the seconds that `device` needs at least."""
        return max(self.flops / device.flops, self.bytes / device.bytes)


class Reach(Frozen):
    """What a device reaches, per second: FLOPs in a large product of matrices, bytes read and written in a copy."""

    flops: float
    bytes: float

    @classmethod
    def of(cls, dtype: torch.dtype) -> Reach:
        """Measure this device."""
        side, size = (8192, 2**30) if choose_device().type == "cuda" else (1024, 2**28)
        return cls(product_flops(side, dtype), copy_bytes(size))


def product_flops(side: int, dtype: torch.dtype) -> float:
    """Return the FLOP/s of a product of two matrices of side x side."""
    a, b = (torch.randn(side, side, device=choose_device(), dtype=dtype) for _ in range(2))
    return 2 * side**3 / fastest(lambda: torch.mm(a, b))


def copy_bytes(size: int) -> float:
    """Return the bytes per second that a copy of `size` bytes reads and writes."""
    a, b = (torch.zeros(size, device=choose_device(), dtype=torch.uint8) for _ in range(2))
    return 2 * size / fastest(lambda: b.copy_(a))


def seconds_of(do: Callable[[int], object], number: int) -> float:
    """Return the seconds until the device has done `number` updates."""
    _wait()
    began = time.perf_counter()
    do(number)
    _wait()
    return time.perf_counter() - began


def _wait() -> None:
    if choose_device().type == "cuda":
        torch.cuda.synchronize()


def fastest(do: Callable[[], object]) -> float:
    """Return the seconds of the fastest of a few repeats, each of several times, after a warm-up."""

    def repeat(number: int) -> None:
        for _ in range(number):
            do()

    repeat(3)
    return min(seconds_of(repeat, _REPEATS) / _REPEATS for _ in range(3))


def least(cell: Cell, tokens: int) -> dict[str, list[Part]]:
    """Return the parts of each kind of an update of `tokens` tokens on full rows. Recomputation does not count."""
    size = cell.model.size
    precision = Precision(cell.precision, choose_device())
    half, weight = precision.matmul(precision.weights).itemsize, precision.weights.itemsize
    stream = 2 if cell.precision in ("bf16_stream", "pure_bf16") else weight
    wide, in_heads, ffn = (tokens * features for features in (size.hidden, size.q_hidden, size.ffn))
    layers, swiglu = size.layers, cell.model.family.ffn == "swiglu"

    def linear(inputs: int, outputs: int) -> Part:
        """y = x W^T, dx and dW: each reads two of the three and writes the other; dW is in the dtype of weights."""
        states, matrix = tokens * (inputs + outputs), inputs * outputs
        return Part(6.0 * tokens * matrix, half * (3 * states + 2 * matrix) + weight * matrix)

    hidden = size.hidden
    inner = [*(1 + swiglu) * [linear(hidden, size.ffn)], linear(size.ffn, hidden)]
    layer = [*2 * [linear(hidden, size.q_hidden)], *2 * [linear(hidden, size.kv_hidden)], *inner]
    # Forward: q, k, v, o. Backward: these, the gradient of o, and those of q, k and v.
    attention = Part(6.0 * in_heads * cell.data.length, 12 * half * in_heads)
    # Forward: reads the stream and the branch, writes their sum and the normalised. Backward: the same in reverse,
    # and reads the stream once more.
    norm = Part(0.0, wide * (5 * stream + 4 * half))
    logits = tokens * size.vocab
    return {
        "products": layers * layer,
        "attention": layers * [attention],
        "norms": (2 * layers + 1) * [norm],
        # Forward: two are read, one is written. Backward: three are read, two are written.
        "SwiGLU": layers * swiglu * [Part(0.0, 8 * half * ffn)],
        # The logits are read, and their gradients written in their place.
        "head": [linear(hidden, size.vocab), Part(0.0, 2 * half * logits)],
        # Weight, gradient and two moments are read, all but the gradient are written; the norm reads the gradient.
        "optimizer": [Part(0.0, 8 * weight * (parameters(cell)))],
        # q and k are rotated, and their gradients; the rows of the table are read, and their gradients added.
        REST: [*layers * [Part(0.0, 8 * half * in_heads)], Part(0.0, (3 * weight + 2 * stream) * wide)],
    }


def kind_of(chain: tuple[str, ...]) -> str:
    """Return the kind of a kernel. chain: its name, then the operations around it, from the innermost."""
    whole = "\n".join(chain)
    tables = ((_ANYWHERE, whole), (_OF_THE_KERNEL, chain[0]), (_THEN_ANYWHERE, whole))
    found = (kind for table, text in tables for kind, pattern in table.items() if re.search(pattern, text, re.M))
    return next(found, REST)


def times_by_kind(seen: profile) -> dict[str, float]:
    """Return the seconds of each kind in a profile: of the device's kernels, or on a CPU of all operations."""
    events: list[FunctionEvent] = list(seen.events() or ())  # type: ignore[no-untyped-call]
    found: defaultdict[str, float] = defaultdict(float)
    on_device: defaultdict[str, float] = defaultdict(float)
    for event in events:
        if event.device_type != DeviceType.CPU and not event.is_user_annotation:  # which spans kernels
            on_device[event.name] += event.self_device_time_total
    cuda = bool(on_device)
    for event in events:
        if event.device_type != DeviceType.CPU:
            continue
        chain = _around(event)
        if not cuda:
            found[kind_of(chain)] += event.self_cpu_time_total / 1e6
        for kernel in event.kernels:
            found[kind_of((kernel.name, *chain))] += kernel.duration / 1e6
            on_device[kernel.name] -= kernel.duration
    for name, left in on_device.items():  # those that the profiler found no operation for
        found[kind_of((name,))] += max(0.0, left) / 1e6
    return found


def _around(event: FunctionEvent) -> tuple[str, ...]:
    names: list[str] = []
    now: Any = event
    while now is not None:
        names.append(now.name)
        now = now.cpu_parent
    return tuple(names)


def profiled(do: Callable[[int], None]) -> tuple[float, profile]:
    """Return the seconds of a profiled update, and the profile of PROFILED of them."""
    activities = [ProfilerActivity.CPU]
    if choose_device().type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as seen:
        seconds = seconds_of(do, PROFILED)
    return seconds / PROFILED, seen


class Kind(Frozen):
    """The part of an update that the kernels of one kind take.

    bound_seconds, flops, bytes: of the least computation, None for what has none.
    """

    name: str
    seconds: float
    bound_seconds: float | None
    flops: float | None
    bytes: float | None
    mfu: float  # in percent, that the update would have if this kind alone ran at its bound


class Roofline(Frozen):
    """An update: its seconds, its MFU in percent, and that with all kinds at their bounds. `reach`: of the device."""

    seconds: float
    mfu: float
    bound_mfu: float
    reach: Reach
    kinds: tuple[Kind, ...]


def examine(cell: Cell, loop: Loop) -> Roofline:
    """Profile updates of a training, and measure what the device reaches."""

    def updates(number: int) -> None:
        for _ in range(number):
            loop.update()

    before = loop.position.tokens
    seconds, seen = profiled(updates)
    return roofline(cell, (loop.position.tokens - before) // PROFILED, seconds, seen)


def roofline(cell: Cell, tokens: int, seconds: float, seen: profile) -> Roofline:
    """Return the roofline of an update of `tokens` tokens. seconds, seen: what `profiled` has returned."""
    precision = Precision(cell.precision, choose_device())
    device = Reach.of(precision.matmul(precision.weights))
    times = {kind: spent / PROFILED for kind, spent in times_by_kind(seen).items()}
    cuda = choose_device().type == "cuda"
    peak = (peak_flops(torch.cuda.get_device_name(), cell.precision) if cuda else None) or device.flops
    needed = 100 * whole_flops_per_token(cell) * tokens / peak
    kinds = []
    for name, parts in least(cell, tokens).items():
        spent, bound = times.get(name, 0.0), sum(part.bound(device) for part in parts)
        flops, moved = (sum(getattr(part, of) for part in parts) for of in ("flops", "bytes"))
        kinds.append(Kind(name, spent, bound, flops, moved, needed / (seconds - spent + bound)))
    bounds = sum(kind.bound_seconds or 0.0 for kind in kinds)
    idle = max(0.0, seconds - sum(times.values()))
    kinds.append(Kind(IDLE, idle, None, None, None, needed / (seconds - idle)))
    return Roofline(seconds, needed / seconds, needed / bounds, device, tuple(kinds))
