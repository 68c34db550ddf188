"""What one update produces: loss, gradient norm and, when observed, statistics of every layer, still on the device."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gpas_cli.model.dtensors import first_row, is_shard, local
from gpas_cli.model.llama import Llama
from gpas_cli.spec.depth import ActiveLayers
from gpas_cli.train.parallel import World

# Part of a parameter's name within its layer -> the series of its weight norm. (`gate` alone is a GPAS gate.)
WEIGHT_NORM_SERIES = {
    "q_proj": "weight_norm_q",
    "k_proj": "weight_norm_k",
    "v_proj": "weight_norm_v",
    "o_proj": "weight_norm_o",
    "gate_proj": "weight_norm_ffn_gate",
    "up_proj": "weight_norm_ffn_up",
    "down_proj": "weight_norm_ffn_down",
    "norm": "weight_norm_norms",
}
DIGITS = 7  # significant ones in the journal: float32 has no more

SeriesIndex = tuple[tuple[str, ...], int]  # the series that a number belongs to, and its index in each


@dataclass(frozen=True)
class LayerStatistics:
    """Numbers on the device, shape (n,), and the series and index of each.

    Norms with the same index are combined as norms of the parts of one vector.
    """

    indices: tuple[SeriesIndex, ...]
    numbers: Tensor

    def series(self, numbers: Sequence[float]) -> dict[str, list[float | None]]:
        """Return the series by layer, from the fetched `self.numbers`; None for a layer without the part."""
        found: dict[str, dict[int, float]] = {}
        for (names, index), number in zip(self.indices, numbers, strict=True):
            for name in names:
                at = found.setdefault(name, {})
                at[index] = math.hypot(at[index], number) if index in at else number
        return {name: [_rounded(at.get(i)) for i in range(max(at) + 1)] for name, at in found.items()}


@dataclass(frozen=True)
class GradientNorms:
    """Where an update's gradients are not finite, on the device.

    `held`: which parameters of `network` have a gradient. `norms`: of each of these gradients (for a shard, of its part
    here), before clipping, shape (gradients,). `rows`: the sum of each row of the embedding's, None without gradient.
    """

    network: Llama
    held: tuple[bool, ...]
    norms: Tensor
    rows: Tensor | None

    def first_fault(self, world: World) -> str:
        """Return the name of the first parameter by depth whose gradient is not finite, with the row of an embedding,
        as "model.embed_tokens.weight, row 3"; "" if there is none. Waits for the device. Collective.
        """
        held = [item for item, has in zip(self.network.named_parameters(), self.held, strict=True) if has]
        first = world.min(_first_fault(self.norms))
        if first >= len(held):
            return ""
        name, parameter = held[first]
        table = self.network.model.embed_tokens.weight
        if parameter is not table or self.rows is None:
            return name
        return f"{name}, row {world.min(first_row(table) + _first_fault(self.rows))}"


@dataclass(frozen=True)
class Update:
    """The result of one update. Its tensors stay on the device until the observer fetches them."""

    step: int
    loss: Tensor
    rate: float
    grad_norm: Tensor
    layers: LayerStatistics | None
    gradients: GradientNorms | None = None


def embedding_rows(network: Llama) -> Tensor | None:
    """Return the sum of each row of the embedding's gradient (of a shard's rows in this process), shape (rows,)."""
    gradient = network.model.embed_tokens.weight.grad
    return None if gradient is None else local(gradient).sum(1)


def _first_fault(values: Tensor) -> int:
    """Return the index of the first value that is not finite; a number above all indices if there is none."""
    return next((i for i, value in enumerate(values.tolist()) if not math.isfinite(value)), sys.maxsize // 2)


def measure_layers(network: Llama, variance: Sequence[Tensor], active: ActiveLayers | None = None) -> LayerStatistics:
    """Return l2 norms of gradients and weights: of every layer, in total and by module, of the embedding, the final
    norm and the head; the gates' values act(alpha) and their alpha; and `variance`, the activation variances of this
    process's first micro-batch, of the layers in `active` (None: all) and of the final norm.

    Call it when the gradients are complete and not yet clipped. Collective if the network is sharded.
    """
    norms = list(_norms(network))
    rest = [
        *_values("gate", (gate.value() for gate in network.gates())),
        *_values("alpha", (gate.alpha for gate in network.gates())),
        *_activation_variances(network, variance, active),
    ]
    parts = [number.detach().reshape(()).float() for _, number in rest]
    indices = tuple(index for index, _ in (*norms, *rest))
    return LayerStatistics(indices, torch.stack([*_l2_norms([tensor for _, tensor in norms]), *parts]))


def _l2_norms(tensors: Sequence[Tensor]) -> Tensor:
    """Return the l2 norm of each tensor (for a shard, of the whole tensor), shape (tensors,)."""
    norms = torch.stack([torch.linalg.vector_norm(local(tensor).detach(), dtype=torch.float32) for tensor in tensors])
    shards = [is_shard(tensor) for tensor in tensors]
    if not any(shards):
        return norms
    sharded = torch.tensor(shards, device=norms.device)
    squared = torch.where(sharded, norms.square(), 0.0)
    torch.distributed.all_reduce(squared)
    return torch.where(sharded, squared.sqrt(), norms)


def _norms(network: Llama) -> Iterator[tuple[SeriesIndex, Tensor]]:
    """Yield the weights and gradients whose norms are recorded, each with its index."""
    for i, layer in enumerate(network.model.layers):
        for name, parameter in layer.named_parameters():
            kind = next((series for part, series in WEIGHT_NORM_SERIES.items() if part in name), None)
            yield (("weight_norm", kind) if kind else ("weight_norm",), i), parameter
            if parameter.grad is not None:
                yield (("grad_norm",), i), parameter.grad
    ends = {"embedding": network.model.embed_tokens, "final_norm": network.model.norm, "head": network.lm_head}
    for name, module in ends.items():
        yield from _end(name, module) if module is not None else ()


def _end(name: str, module: nn.Module) -> Iterator[tuple[SeriesIndex, Tensor]]:
    for parameter in module.parameters():
        yield ((f"weight_norm_{name}",), 0), parameter
        if parameter.grad is not None:
            yield ((f"grad_norm_{name}",), 0), parameter.grad


def _values(name: str, values: Iterable[Tensor]) -> list[tuple[SeriesIndex, Tensor]]:
    return [(((name,), i), value) for i, value in enumerate(values)]


def _activation_variances(
    network: Llama, variance: Sequence[Tensor], active: ActiveLayers | None
) -> list[tuple[SeriesIndex, Tensor]]:
    layers = len(network.model.layers)
    places = [*(number - 1 for number in active.layers), layers] if active else range(layers + 1)
    return [((("activation_variance",), place), value) for place, value in zip(places, variance, strict=False)]


def _rounded(value: float | None) -> float | None:
    return value if value is None else float(f"{value:.{DIGITS}g}")
