"""What a training costs, from the cell alone: FLOPs and bytes of memory.

FLOPs per token = 6 (N - V d) + 6 L T d, as in PaLM, appendix B, but with causal attention: N parameters in matrices,
without the V x d of the input table, which needs no arithmetic (a tied head does); L layers of width d attend to T / 2
positions on average, or to more of the row if attention is not causal. The head reads only tokens with a target.
Forward and backward passes count, recomputation does not. Only tokens that the network reads count, padding does not.
Layers that an update skips do not count.

Bytes count the tensors of an uncompiled training at the peak of an update, over all devices and on each GPU, without
the allocator's losses.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator
from dataclasses import field
from functools import cached_property, partial
from typing import Annotated, Any

from gpas_cli.spec.data import Data
from gpas_cli.spec.depth import Depth, LayerSchedule
from gpas_cli.spec.model import Model
from gpas_cli.spec.norm import Factor, Wiring
from gpas_cli.spec.objective import CAUSAL, Objective
from gpas_cli.spec.optim import MATRIX, TABLE, Optim
from gpas_cli.spec.parse import setting
from gpas_cli.spec.run import SHARDED, Resources
from gpas_cli.structure import Frozen

EVALUATED_PER_TRAINED = 3  # tokens that are evaluated at the cost of training one: evaluation has no backward pass


PRECISIONS = ("fp32", "bf16", "bf16_stream", "fp16", "pure_bf16")
MOST_DROPPED = 0.99  # the highest rate of dropout
MOST_SEED = 2**31 - 1

_WEIGHT_BYTES = {name: 2 if name == "pure_bf16" else 4 for name in PRECISIONS}
# Of an element of the residual stream.
_STREAM_BYTES = {name: 2 if name in ("bf16_stream", "pure_bf16") else 4 for name in PRECISIONS}
_PRODUCT_BYTES = {name: 4 if name == "fp32" else 2 for name in PRECISIONS}  # per element of the factors of a product
_AUTOCAST = ("bf16", "bf16_stream", "fp16")  # weights in float32, products in half precision, of copies of the matrices
# The fraction of a device's memory that weights, gradients and optimizer state may take before the network is sharded.
_STATE_FRACTION = 0.4
USABLE_FRACTION = 0.85  # of a device; the rest is for the driver, communication and the allocator's losses
# Logits that exist at once on a GPU, which needs larger products than a CPU: 8,388 tokens of 32,000 logits, 0.5 GB of
# bfloat16 or 1 GB of float32. On an H200 the head of 71M takes 26 ms with them, and 31 ms with a quarter of them.
GPU_LOGITS = 2**28
# With fewer tokens at once a GPU is poorly used, and under fsdp communication takes too much of the time.
_EFFICIENT_TOKENS = 4096
_MESSAGES_BYTES = 3 * 2**25  # gradients in ddp's messages, without the gradient of a table


class Scalars(Frozen, kw_only=True):
    """The settings of a cell that are no sections."""

    dropout: float = setting(0.0, low=0, high=MOST_DROPPED)
    precision: str = setting("fp32", choices=PRECISIONS)
    seed: int = setting(42, low=0, high=MOST_SEED)


class CellParts(Scalars, kw_only=True):
    """What the cost of a stage and the defaults of its settings may depend on: the parts of a `Cell`."""

    model: Model
    data: Data
    optim: Optim
    depth: Depth = field(default_factory=Depth)
    objective: Objective = CAUSAL

    @cached_property
    def layer_schedule(self) -> LayerSchedule:
        """The layers that train in each update of pretraining."""
        return LayerSchedule(self.depth, self.model.size.layers, self.optim.steps)

    @property
    def is_external(self) -> bool:
        """Whether the network was not trained here."""
        raise NotImplementedError

    def parameters(self, kind: str) -> Any:
        """Return the parameters of the stage `kind` after pretraining, or None if the cell does not have it."""
        raise NotImplementedError


def flops_per_token(cell: CellParts, layers: float | None = None) -> float:
    """Return the FLOPs of a training update with `layers` layers, per token that the network reads; by default the
    average of all updates."""
    size = cell.model.size
    trained = cell.layer_schedule.average() if layers is None else layers
    attended = cell.objective.attended_share() * cell.data.length
    if cell.model.family.encoder:  # a token goes through one of the two stacks
        trained /= 2
    attention = 12 * trained * attended * size.q_hidden
    head = cell.objective.target_share() * size.vocab * size.hidden
    return 6.0 * (head + trained * _per_layer(cell)) + attention


def whole_flops_per_token(cell: CellParts) -> float:
    """Return the FLOPs of a training update of all layers, per token."""
    return flops_per_token(cell, cell.model.size.layers)


def relative_flops(cell: CellParts, first: int = 1, last: int = 0) -> float:
    """Return the cost of the updates first..last (by default all) over the cost of as many with all layers.

    Counted as RaPTr counts it, by the expected number of layers alone (appendix C): without the head.
    """
    return cell.layer_schedule.average(first, last) / cell.model.size.layers


def computed_flops(cell: CellParts, first: int = 1, last: int = 0) -> float:
    """Return the FLOPs of the updates first..last (by default all) over the FLOPs of as many with all layers."""
    return flops_per_token(cell, cell.layer_schedule.average(first, last)) / whole_flops_per_token(cell)


def parameters(cell: CellParts) -> int:
    """Return the number of parameters without norms, gates and biases (2 % at 71M)."""
    size = cell.model.size
    tables = sum(shape[0] * number for role, shape, number in _matrices(cell.model) if role == TABLE)
    return tables * size.hidden + round(size.layers * _per_layer(cell))


def _per_layer(cell: CellParts) -> float:
    """Return the number of parameters in the matrices of a layer, the mean of all."""
    size = cell.model.size
    matrices = 3 if cell.model.family.ffn == "swiglu" else 2
    attention = 2 * size.hidden * (size.q_hidden + size.kv_hidden)
    return _attentions(cell.model) / size.layers * attention + matrices * size.hidden * size.ffn


def _attentions(model: Model) -> int:
    """Return the number of attentions; the layers of a decoder beside an encoder attend twice."""
    return model.size.layers + (model.decoder_layers if model.family.encoder else 0)


class DeviceMemory(Frozen):
    """The predicted memory of one GPU at the peak of an update, in bytes."""

    strategy: Annotated[str, ("none", "ddp", *SHARDED)]
    recompute: Annotated[bool, "whether activations are recomputed in the backward pass"]
    micro_batch: Annotated[int, "rows at once"]
    device_bytes: Annotated[int, "what the GPU has"]
    weights: Annotated[int, "with the copies in half precision that autocast makes"]
    gradients: int
    state: Annotated[int, "of the optimizer"]
    gathered: Annotated[int, "tables of a sharded network that are gathered for a whole pass"]
    activations: Annotated[int, "what the forward pass of the micro-batch saves"]
    working: Annotated[int, "temporary: the logits and the head's gradients, or a layer's gradients and messages"]

    @property
    def total(self) -> int:
        """The bytes of everything."""
        return self.weights + self.gradients + self.state + self.gathered + self.activations + self.working

    @property
    def fits(self) -> bool:
        """Whether it fits the device."""
        return self.total <= USABLE_FRACTION * self.device_bytes


def state_bytes(cell: CellParts) -> int:
    """Return the bytes of weights, gradients and optimizer state, over all devices."""
    return 2 * _WEIGHT_BYTES[cell.precision] * parameters(cell) + _optimizer_bytes(cell)


def checkpoint_bytes(cell: CellParts) -> int:
    """Return the bytes of a checkpoint of the training: weights and optimizer state."""
    return state_bytes(cell) - _WEIGHT_BYTES[cell.precision] * parameters(cell)


def _optimizer_bytes(cell: CellParts) -> int:
    kind = cell.optim.kind
    weight = _WEIGHT_BYTES[cell.precision]
    return sum(count * kind.state_bytes(what, shape, weight) for what, shape, count in _matrices(cell.model))


def _matrices(model: Model) -> Iterator[tuple[str, tuple[int, int], int]]:
    """Yield (role, shape, number) of the matrices and tables that `parameters` counts."""
    size = model.size
    yield MATRIX, (size.q_hidden, size.hidden), 2 * _attentions(model)
    yield MATRIX, (size.kv_hidden, size.hidden), 2 * _attentions(model)
    yield MATRIX, (size.ffn, size.hidden), (2 if model.family.ffn == "swiglu" else 1) * size.layers
    yield MATRIX, (size.hidden, size.ffn), size.layers
    yield TABLE, (size.vocab, size.hidden), 1 if model.family.tied else 2
    yield TABLE, (model.family.context, size.hidden), int(model.family.positions == "learned")


def activation_bytes(model: Model, precision: str, *, recompute: bool = False, dropout: bool = False) -> int:
    """Return the bytes per token that a forward pass saves for the backward pass; with `recompute` only the inputs of
    the layers, with `dropout` also its masks. Logits are computed in chunks and do not count.

    Of an encoder and a decoder a token goes through one, half of the tokens through each."""
    wide = _STREAM_BYTES[precision]
    layers = model.size.layers
    saved = [wide * model.size.hidden] * layers
    if not recompute:
        saved = [_layer_bytes(model, precision, layer, dropout) for layer in range(1, layers + 1)]
    # The inputs of the final norm, of the head and of the embedding's norms, and the embedding's mask.
    norms = model.family.input_norm + sum("norm" in stage for stage in model.embed.stages)
    ends = 2 * wide + norms * _WEIGHT_BYTES[precision] + dropout
    return sum(saved) // (2 if model.family.encoder else 1) + ends * model.size.hidden


def _layer_bytes(model: Model, precision: str, layer: int, dropout: bool) -> int:
    """Return the bytes per token that a layer saves: the inputs of its norms, learned factors and products, q, k, v,
    the output of attention and the logarithms of its sums, what enters the last product of the feed-forward network,
    and the masks of dropout. A decoder's layer also attends to an encoder, with its keys and values."""
    wide, narrow = _STREAM_BYTES[precision], _PRODUCT_BYTES[precision]
    slots = model.gate_slots(layer)
    parts: tuple[Wiring, ...] = model.wiring(layer).parts
    crossing = model.family.encoder and layer > model.encoder_layers
    if crossing:
        slots, parts = (*slots, slots[0]), (*parts, parts[0])
    # Autocast casts the input of every product by itself.
    inputs = 2 if wide == narrow else 5 if model.family.ffn == "swiglu" else 4
    stream = sum(bool(norm) for part in parts for norm in (part.in_norm, part.out_norm))
    if model.gate is not None and model.gate.learnable:
        places = zip(slots, parts, strict=True)
        if precision == "pure_bf16":
            stream += sum(place != "skip" for place, _ in places)
        elif wide != narrow:  # products save their inputs in half precision
            stream += sum(place == "skip" and part.in_norm is None for place, part in places)
    branches = sum(bool(part.branch_norm) + isinstance(part.branch, Factor) for part in parts)
    normed = 3 if parts[0].qkv_norm != "none" else 2 * (model.family.qk_norm != "none")
    products = inputs + branches + (1 if wide == narrow else 3) * crossing
    in_heads = 4 + normed + isinstance(parts[0].value, Factor) + 4 * crossing
    hidden, size = wide * stream + narrow * products + len(parts) * dropout, model.size
    heads = narrow * in_heads * size.q_hidden + 4 * (len(parts) - 1) * size.heads
    return hidden * size.hidden + heads + 2 * narrow * size.ffn


def _update_bytes(
    cell: CellParts, rows: int, *, strategy: str = "none", recompute: bool = False, logits: int = GPU_LOGITS
) -> int:
    """Return the bytes of an update of `rows` rows at once, `logits` logits at once, without weights, gradients and
    optimizer state."""
    return sum(_parts(cell, rows, strategy, recompute, logits)) + _saved_copies(cell, strategy, recompute)


def _copies(cell: CellParts) -> int:
    """Return the bytes of the copies of the layers' matrices that autocast makes."""
    return 2 * cell.model.size.layers * int(_per_layer(cell)) if cell.precision in _AUTOCAST else 0


def _saved_copies(cell: CellParts, strategy: str, recompute: bool) -> int:
    """Return the bytes of those copies that are saved for the backward pass. What fsdp gathers needs no copies."""
    return 0 if recompute or strategy in SHARDED else _copies(cell)


def _parts(cell: CellParts, rows: int, strategy: str, recompute: bool, logits: int) -> tuple[int, int, int]:
    """Return `gathered`, `activations` and `working` of `DeviceMemory`."""
    model, precision, dropout = cell.model, cell.precision, cell.dropout > 0
    weight, stream, narrow = _WEIGHT_BYTES[precision], _STREAM_BYTES[precision], _PRODUCT_BYTES[precision]
    tokens, hidden = rows * cell.data.length, model.size.hidden
    table = model.size.vocab * hidden
    # Tensors within the feed-forward network; the gradient of the stream has taken the place of others.
    inner, gone = (5, narrow) if model.family.ffn == "swiglu" else (2, 3 * narrow - weight)
    computed = inner * narrow * model.size.ffn - gone * hidden
    if recompute:  # the layer's input is saved anyway
        computed += _layer_bytes(model, precision, model.encoder_layers + 1, dropout) - stream * hidden
    backward = tokens * computed
    if recompute and strategy not in SHARDED:
        backward += _copies(cell) // model.size.layers
    gathered = 0
    if strategy in SHARDED:
        gathered = (1 if model.family.tied else 2) * weight * table
        # Two layers and half the gradients of one; when a layer is done, all its gradients and those on their way.
        # Those of the head are kept until the end.
        one = int(_per_layer(cell))
        backward = max(backward + 5 * narrow * one // 2, (3 * narrow + weight) * one) + weight * table
    if strategy == "ddp":
        backward += weight * table + _MESSAGES_BYTES
    # The logits, the gradient of the head's matrix in float32, and the matrix or the gradient in bfloat16.
    head = (4 if precision == "fp32" else 6) * table + narrow * logits
    if recompute and strategy not in SHARDED:
        head += _copies(cell)  # until the forward pass ends
    saved = tokens * activation_bytes(model, precision, recompute=recompute, dropout=dropout)
    return gathered, saved, max(head, backward)


def predicted(cell: CellParts, resources: Resources, device_bytes: int, devices: int = 0) -> DeviceMemory:
    """Return the memory of each of `devices` GPUs (0: as in `resources`) with `device_bytes` of memory, and how the
    trainer distributes the network over them.

    A network whose weights, gradients and optimizer state leave most of a device free is replicated, any other sharded:
    within each node if that leaves most free, because one sum of gradients in an update takes the place of two gathers
    and a sum between nodes in each micro-batch.
    Activations are recomputed where fewer than EFFICIENT_TOKENS of an update would fit at once.
    """
    devices = devices or resources.processes
    kept = _on_device(cell, resources, device_bytes, devices, recompute=False)
    if resources.activation_checkpointing == "none":
        return kept
    recomputed = _on_device(cell, resources, device_bytes, devices, recompute=True)
    if resources.activation_checkpointing == "blocks":
        return recomputed
    enough = min(most_rows(cell, devices, resources.micro_batch), math.ceil(_EFFICIENT_TOKENS / cell.data.length))
    return kept if kept.fits and kept.micro_batch >= enough else recomputed


def most_rows(cell: CellParts, devices: int, asked: int = 0) -> int:
    """Return the most rows that a device computes at once: its part of a mean, or fewer if `asked`."""
    share = max(1, cell.optim.rows_of_mean(devices))
    return min(share, asked or share)


def fitting_rows(
    cell: CellParts, most: int, free: int, *, strategy: str, recompute: bool, logits: int = GPU_LOGITS
) -> int:
    """Return how many rows at once, at least 1 and at most `most`, leave an update within `free` bytes.

    Micro-batches of about equal size: 256 and 256 of 512 rows, not 501 and 11, which takes longer and all the memory.
    """
    needed = partial(_update_bytes, cell, strategy=strategy, recompute=recompute, logits=logits)
    fitting = max(1, bisect.bisect_right(range(1, most + 1), free, key=needed))
    return math.ceil(most / math.ceil(most / fitting))


def _on_device(
    cell: CellParts, resources: Resources, device_bytes: int, devices: int, *, recompute: bool
) -> DeviceMemory:
    strategy = _strategy(cell, resources, device_bytes, devices)
    shards = {"fsdp": devices, "hsdp": max(1, devices // resources.nodes)}.get(strategy, 1)
    weights = _WEIGHT_BYTES[cell.precision] * parameters(cell) // shards
    state = _optimizer_bytes(cell) // shards
    most = most_rows(cell, devices, resources.micro_batch)
    free = int(USABLE_FRACTION * device_bytes) - 2 * weights - state
    rows = most if resources.micro_batch else fitting_rows(cell, most, free, strategy=strategy, recompute=recompute)
    parts = _parts(cell, rows, strategy, recompute, GPU_LOGITS)
    own = weights + _saved_copies(cell, strategy, recompute)
    return DeviceMemory(strategy, recompute, rows, device_bytes, own, weights, state, *parts)


def _strategy(cell: CellParts, resources: Resources, device_bytes: int, devices: int) -> str:
    if devices == 1:
        return "none"
    if resources.strategy != "auto":
        return resources.strategy
    needed = state_bytes(cell) / (_STATE_FRACTION * device_bytes)  # devices that share it
    in_node, left = divmod(devices, resources.nodes)
    return "ddp" if needed <= 1 else "fsdp" if resources.nodes == 1 or left or needed > in_node else "hsdp"
