"""What a run tells of itself between its first and last update, and what that costs: one transfer per interval.

Losses, gradient norms and layer statistics stay on the device until the next log line or checkpoint; then all of them
come over in one copy, which is the only place where the host waits for the device.

Every process of a world measures, as a sharded parameter's norm is a sum over processes; the verdict is the first's,
and only its `emit` reaches anybody.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import torch
from torch import Tensor, nn

from gpas_cli.model.dtensors import is_shard, local
from gpas_cli.model.llama import Llama
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.flops import flops_per_token, peak_flops
from gpas_cli.spec.run import Monitoring
from gpas_cli.train.checkpoint import Position
from gpas_cli.train.events import Emit
from gpas_cli.train.health import Divergence, Health, read_state
from gpas_cli.train.parallel import ALONE, World

if TYPE_CHECKING:
    from gpas_cli.train.loop import Update

# Part of a parameter's name in its layer -> the series of its weight norm. `gate` alone is GPAS's.
KINDS = {
    "q_proj": "weight_norm_q",
    "k_proj": "weight_norm_k",
    "v_proj": "weight_norm_v",
    "o_proj": "weight_norm_o",
    "gate_proj": "weight_norm_ffn_gate",
    "up_proj": "weight_norm_ffn_up",
    "down_proj": "weight_norm_ffn_down",
    "norm": "weight_norm_norms",
}
DIGITS = 7  # float32 has no more, and a journal is long

Place = tuple[tuple[str, ...], int]  # the series that a number belongs to, and its index in each


@dataclass(frozen=True)
class Statistics:
    """Numbers on the device, shape (n,), and the places they have in series by layer.

    Norms that fall on one place are joined as parts of one vector.
    """

    places: tuple[Place, ...]
    numbers: Tensor

    def series(self, numbers: Sequence[float]) -> dict[str, list[float | None]]:
        """Series by layer from `self.numbers`, fetched; None where a layer lacks the part."""
        found: dict[str, dict[int, float]] = {}
        for (names, index), number in zip(self.places, numbers, strict=True):
            for name in names:
                at = found.setdefault(name, {})
                at[index] = math.hypot(at[index], number) if index in at else number
        return {name: [_rounded(at.get(i)) for i in range(max(at) + 1)] for name, at in found.items()}


def measure(network: Llama, variance: Sequence[Tensor]) -> Statistics:
    """Of every layer: the l2 norms of its gradients and weights, in all and by module; of the embedding, the final norm
    and the head as well; the values of the gates; and `variance`, of this process's first micro-batch.

    To be called with the gradients complete and not yet clipped. Collective where the network is sharded.
    """
    norms = list(_norms(network))
    rest = [*_values("gate", (gate.value() for gate in network.gates())), *_values("activation_variance", variance)]
    parts = [number.detach().reshape(()).float() for _, number in rest]
    places = tuple(place for place, _ in (*norms, *rest))
    return Statistics(places, torch.stack([*_joined([tensor for _, tensor in norms]), *parts]))


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    """The l2 norm of each tensor, of the whole of one that is sharded, shape (tensors,)."""
    norms = torch.stack([torch.linalg.vector_norm(local(tensor).detach(), dtype=torch.float32) for tensor in tensors])
    shards = [is_shard(tensor) for tensor in tensors]
    if not any(shards):
        return norms
    mine = torch.tensor(shards, device=norms.device)
    squared = torch.where(mine, norms.square(), 0.0)
    torch.distributed.all_reduce(squared)
    return torch.where(mine, squared.sqrt(), norms)


def _norms(network: Llama) -> Iterator[tuple[Place, Tensor]]:
    """The weights and gradients whose norms are to be told, and where."""
    for i, layer in enumerate(network.model.layers):
        for name, parameter in layer.named_parameters():
            kind = next((series for part, series in KINDS.items() if part in name), None)
            yield (("weight_norm", kind) if kind else ("weight_norm",), i), parameter
            if parameter.grad is not None:
                yield (("grad_norm",), i), parameter.grad
    ends = {"embedding": network.model.embed_tokens, "final_norm": network.model.norm, "head": network.lm_head}
    for name, module in ends.items():
        yield from _end(name, module) if module is not None else ()


def _end(name: str, module: nn.Module) -> Iterator[tuple[Place, Tensor]]:
    for parameter in module.parameters():
        yield ((f"weight_norm_{name}",), 0), parameter
        if parameter.grad is not None:
            yield ((f"grad_norm_{name}",), 0), parameter.grad


def _values(name: str, values: Iterable[Tensor]) -> list[tuple[Place, Tensor]]:
    return [(((name,), i), value) for i, value in enumerate(values)]


def _rounded(value: float | None) -> float | None:
    return value if value is None else float(f"{value:.{DIGITS}g}")


def fetch(tensors: Iterable[Tensor]) -> list[list[float]]:
    """The numbers of each tensor, in one transfer, as float64."""
    flat = [tensor.detach().reshape(-1) for tensor in tensors]
    numbers = iter(torch.cat([tensor.double() for tensor in flat]).tolist() if flat else [])
    return [[next(numbers) for _ in range(len(tensor))] for tensor in flat]


@dataclass
class SpeedMeter:
    """Speed and memory since the last mark. Tokens are targets; FLOPs are counted as in `spec.flops`.

    `peak` is FLOP/s of all devices together, None where unknown: there is then no MFU.
    """

    device: torch.device
    flops: float
    peak: float | None
    since: tuple[float, Position] = field(default_factory=lambda: (time.perf_counter(), Position()))

    def mark(self, position: Position) -> None:
        self.since = (time.perf_counter(), position)

    def read(self, position: Position) -> dict[str, float]:
        """What has been done since the last mark, per second; bytes in use. Marks."""
        began, before = self.since
        self.mark(position)
        seconds = max(self.since[0] - began, 1e-9)
        speed = (position.tokens - before.tokens) / seconds
        measured = {
            "tokens_per_second": speed,
            "seconds_per_step": seconds / max(1, position.step - before.step),
            "flops_per_second": speed * self.flops,
            "memory": memory(self.device),
        }
        return measured | ({"mfu": speed * self.flops / self.peak} if self.peak else {})


def memory(device: torch.device) -> int:
    """Bytes: the most that PyTorch has had allocated on the GPU, or what the process has in memory now."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return int(psutil.Process().memory_info().rss)


def speed_meter(cell: Cell, device: torch.device, devices: int = 1) -> SpeedMeter:
    """The meter of a training of `cell` on `device` and others like it, so many together."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    peak = peak_flops(name, cell.precision, tf32=_tf32())
    return SpeedMeter(device, flops_per_token(cell), peak * devices if peak else None)


def _tf32() -> bool:
    """Whether float32 products may use tensor cores; where the new setting is used, PyTorch refuses to tell the old."""
    matmul = torch.backends.cuda.matmul
    new = getattr(matmul, "fp32_precision", None)  # from PyTorch 2.9 on
    return bool(matmul.allow_tf32) if new is None else new == "tf32"


class Observer:
    """Takes every update, judges it, and tells of it. Nothing is waited for but in `settle`."""

    def __init__(self, cell: Cell, watch: Monitoring, device: torch.device, emit: Emit, world: World = ALONE) -> None:
        self.steps, self.emit, self.world = cell.optim.steps, emit, world
        self.health = Health(watch, cell.model.size.vocab)
        self.meter = speed_meter(cell, device, world.size)
        self._pending: list[Update] = []
        self._last: dict[str, float] = {}

    def resume(self, folders: Sequence[Path], position: Position) -> None:
        """Go on after the checkpoint of `position`, which lies in one of `folders`. Collective."""
        self.meter.mark(position)
        if not position.step:
            return
        state = self.world.broadcast(read_state(folders, position.step))
        if state is not None:
            self.health.restore(state)
        else:
            message = f"how the updates before {position.step} went is not recorded: a spike soon after goes unseen"
            self.emit("warning", message=message)

    def add(self, update: Update) -> None:
        self._pending.append(update)

    def settle(self) -> Divergence | None:
        """Fetch what is pending, tell its statistics and spikes; the divergence that it shows, if any. Collective."""
        pending, self._pending = self._pending, []
        layers = [update.layers.numbers for update in pending if update.layers]
        losses = torch.stack([update.loss for update in pending]) if pending else torch.zeros(0)
        norms = torch.stack([update.grad_norm for update in pending]) if pending else torch.zeros(0)
        losses_, norms_, *series = fetch([losses, norms, *layers])
        numbers, divergence = iter(series), None
        for update, loss, norm in zip(pending, losses_, norms_, strict=True):
            if update.layers:
                self.emit("layers", step=update.step, values=update.layers.series(next(numbers)))
            self._last = {"step": update.step, "loss": loss, "lr": update.rate, "grad_norm": norm}
            divergence = divergence or self._judge(update.step, loss, norm)
        return self.world.broadcast(divergence)  # all leave, or none

    def _judge(self, step: int, loss: float, norm: float) -> Divergence | None:
        spikes, divergence = self.health.add(step, loss, norm)
        for spike in spikes:
            self.emit("spike", step=spike.step, of=spike.of, value=spike.value, usual=spike.usual)
        return divergence

    def log(self, position: Position) -> None:
        """Tell the last settled update, and the speed since the last mark."""
        measured = self.meter.read(position)
        self.emit("step", **self._last, steps=self.steps, tokens=position.tokens, **measured)

    def keep(self, folder: Path, position: Position) -> None:
        """Write what a run resumed from the checkpoint of `position` in `folder` needs."""
        if not self.world.leads:
            return
        try:
            self.health.save(folder, position.step)
        except OSError as error:
            self.emit("warning", message=f"how the run went until update {position.step} not written: {error}")
