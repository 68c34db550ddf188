"""Distribute a network over the processes of a world, replicated (ddp) or sharded (fsdp), and sum its gradients.

Every process divides its summed loss by the weight of the whole batch, and gradients are summed, not averaged: the
result does not depend on the number of processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gpas_cli.model.dtensors import is_shard, local
from gpas_cli.model.init import initialise
from gpas_cli.model.llama import Llama, build
from gpas_cli.spec.model import Model
from gpas_cli.spec.optimizers import ADAM, OptimizerKind, role
from gpas_cli.spec.run import Resources
from gpas_cli.train.compiling import compile_layers
from gpas_cli.train.parallel import ALONE, World
from gpas_cli.train.precision import Precision

LARGE_PARAMETERS = 1_000_000_000  # from this size a network on several GPUs is sharded and recomputes activations
# The fraction of a device's memory that weights, gradients and optimizer state may take before the network is sharded.
STATE_FRACTION = 0.4
BUCKET_BYTES = 2**25  # of gradients in one message


@dataclass(frozen=True)
class ParallelLayout:
    """How a network is distributed.

    `strategy`: none (one process), ddp or fsdp. `recompute`: activations inside a layer are recomputed in the backward
    pass. `compiled`: layers are compiled, one graph for all that are wired alike. `optimizer`: how much state it keeps.
    """

    world: World = ALONE
    strategy: str = "none"
    recompute: bool = False
    compiled: bool = False
    optimizer: OptimizerKind = ADAM

    def build(self, model: Model, seed: int, precision: Precision) -> Llama:
        """Return the initialised network, distributed. Collective.

        A sharded network is never whole in any process: each draws one matrix at a time and keeps its shard.
        """
        sharded = self.strategy == "fsdp"
        if sharded:
            network = build(model, device="meta").to(precision.weights)
        else:
            network = build(model, seed=seed, dtype=precision.weights, device=precision.device)
        if self.compiled:
            compile_layers(network)
        if self.recompute:
            _recompute(network)
        if sharded:
            _shard(network, precision.device)
            network.to_empty(device=precision.device)
            initialise(network, model, seed)
        for tensor in network.state_dict().values() if self.strategy == "ddp" else ():
            dist.broadcast(tensor, src=0)
        return network

    def unallocated_bytes(self, network: Llama) -> int:
        """Return the bytes that gradients and optimizer state will take in this process."""
        return sum(
            local(p).numel() * p.element_size() + _state_bytes(self.optimizer, name, local(p), p.element_size())
            for name, p in network.named_parameters()
        )

    def sum_parts(self, tensor: Tensor) -> Tensor:
        """Return the sum over processes of a number that each computed from its shards. Collective."""
        return self.world.sum(tensor) if self.strategy == "fsdp" else tensor

    def sum_gradients(self, network: Llama, loss: Tensor) -> None:
        """Replace gradients and `loss` by their sums over all processes, after the last micro-batch. Collective."""
        if self.world.alone:
            return
        gradients = [p.grad for p in network.parameters() if p.grad is not None]
        for bucket in _buckets([g for g in gradients if not is_shard(g)]):  # FSDP sums the shards
            _all_reduce(bucket)
        self.world.sum(loss)


def choose_layout(
    resources: Resources,
    model: Model,
    precision: Precision,
    world: World,
    *,
    compiled: bool = False,
    optimizer: OptimizerKind = ADAM,
) -> ParallelLayout:
    """Return the requested layout, or the cheapest one that fits."""
    network = build(model, device="meta")
    parameters = sum(p.numel() for p in network.parameters())
    weight = precision.weights.itemsize
    own = sum(_state_bytes(optimizer, name, p, weight) for name, p in network.named_parameters())
    states = 2 * weight * parameters + own
    on_gpu = precision.device.type == "cuda"
    heavy = on_gpu and states > STATE_FRACTION * _memory(precision.device)
    large = on_gpu and parameters >= LARGE_PARAMETERS
    strategy = {"auto": "fsdp" if large or heavy else "ddp"}.get(resources.strategy, resources.strategy)
    if world.alone:
        strategy = "none"
    # A sharded network leaves little memory; a single process recomputes only if weights and states fill the device.
    tight = heavy or (large and strategy == "fsdp")
    asked = resources.activation_checkpointing
    recompute = asked == "blocks" or (asked == "auto" and tight)
    return ParallelLayout(world, strategy, recompute, compiled, optimizer)


def _state_bytes(optimizer: OptimizerKind, name: str, parameter: Tensor, weight_bytes: int) -> int:
    return optimizer.state_bytes(role(name, parameter.dim()), parameter.shape, weight_bytes)


def _memory(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).total_memory)


def _recompute(network: Llama) -> None:
    # Set on the instances, so that parameter names and module types stay the same; hooks run outside, once.
    for layer in network.model.layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def _shard(network: Llama, device: torch.device) -> None:
    """Shard with FSDP2: each layer is a group, the rest another. Gates, of one element each, are replicated."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    gates = {p for gate in network.gates() for p in gate.parameters()}
    for module in (*network.model.layers, network):
        sharded = fully_shard(module, mesh=mesh, ignored_params=gates)
        # Sum without dividing: up to torch 2.8, gloo summed when asked for an average.
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Group `tensors` into lists of one dtype and about BUCKET_BYTES bytes."""
    for dtype in dict.fromkeys(t.dtype for t in tensors):
        bucket: list[Tensor] = []
        filled = 0
        for tensor in (t for t in tensors if t.dtype == dtype):
            bucket.append(tensor)
            filled += tensor.numel() * tensor.element_size()
            if filled >= BUCKET_BYTES:
                yield bucket
                bucket = []
                filled = 0
        if bucket:
            yield bucket


def _all_reduce(bucket: Sequence[Tensor]) -> None:
    flat = torch.cat([tensor.flatten() for tensor in bucket])
    dist.all_reduce(flat)
    parts = torch.split(flat, [tensor.numel() for tensor in bucket])
    torch._foreach_copy_(list(bucket), [part.view_as(t) for part, t in zip(parts, bucket, strict=True)])
