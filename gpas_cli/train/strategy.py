"""How a network lies over the processes of a world: whole in each (ddp) or in shards (fsdp); and its gradients' sum.

Every process divides its summed loss by the weight of the whole batch, and gradients are added, not averaged: any
number of processes computes the number that one does.
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
from gpas_cli.spec.run import Resources
from gpas_cli.train.compiling import compile_layers
from gpas_cli.train.parallel import ALONE, World
from gpas_cli.train.precision import Precision

LARGE = 1_000_000_000  # parameters from which a network is sharded and its activations are recomputed on GPUs
SHARE = 0.4  # of a device's memory: what weights, gradients and Adam may take before the network is sharded
BUCKET = 2**25  # bytes of gradients in one message


@dataclass(frozen=True)
class ParallelLayout:
    """`strategy` none (one process), ddp or fsdp; `recompute`: activations inside a layer are not kept; `compiled`: its
    layers are compiled, one graph for all that are wired alike."""

    world: World = ALONE
    strategy: str = "none"
    recompute: bool = False
    compiled: bool = False

    def build(self, model: Model, seed: int, precision: Precision) -> Llama:
        """The initialised network, laid out. Collective.

        A sharded one is never whole anywhere: each process draws one matrix at a time and keeps its part.
        """
        sharded = self.strategy == "fsdp"
        if sharded:
            network = build(model, device="meta").to(precision.weights)
        else:
            network = build(model, seed=seed, dtype=precision.weights, device=precision.device)
        if self.compiled:
            compile_layers(network, dynamic=True if precision.device.type == "cpu" else None)
        if self.recompute:
            _recompute(network)
        if sharded:
            _shard(network, precision.device)
            network.to_empty(device=precision.device)
            initialise(network, model, seed)
        for tensor in network.state_dict().values() if self.strategy == "ddp" else ():
            dist.broadcast(tensor, src=0)
        return network

    def still_to_come(self, network: Llama) -> int:
        """Bytes that gradients and Adam will take in this process."""
        return 3 * sum(local(p).numel() * p.element_size() for p in network.parameters())

    def sum_parts(self, tensor: Tensor) -> Tensor:
        """The sum over processes of what each has of its shards. Collective."""
        return self.world.sum(tensor) if self.strategy == "fsdp" else tensor

    def add_up(self, network: Llama, loss: Tensor) -> None:
        """Replace gradients and `loss` by their sums over all processes, after the last micro-batch. Collective."""
        if self.world.alone:
            return
        gradients = [p.grad for p in network.parameters() if p.grad is not None]
        for bucket in _buckets([g for g in gradients if not is_shard(g)]):  # FSDP has added up its own
            _all_reduce(bucket)
        self.world.sum(loss)


def choose_layout(
    resources: Resources, model: Model, precision: Precision, world: World, *, compiled: bool = False
) -> ParallelLayout:
    """The layout that was asked for, or the cheapest one that fits."""
    network = build(model, device="meta")
    heavy = precision.device.type == "cuda" and state_bytes(network, precision) > SHARE * _memory(precision.device)
    large = precision.device.type == "cuda" and sum(p.numel() for p in network.parameters()) >= LARGE
    strategy = {"auto": "fsdp" if large or heavy else "ddp"}.get(resources.strategy, resources.strategy)
    if world.alone:
        strategy = "none"
    # What is sharded has little room beside it; one process alone recomputes only where its states fill the device.
    tight = heavy or (large and strategy == "fsdp")
    asked = resources.activation_checkpointing
    return ParallelLayout(world, strategy, asked == "blocks" or (asked == "auto" and tight), compiled)


def state_bytes(network: Llama, precision: Precision) -> int:
    """Bytes of weights, gradients and Adam's two averages, over all processes."""
    return 4 * precision.weights.itemsize * sum(p.numel() for p in network.parameters())


def _memory(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).total_memory)


def _recompute(network: Llama) -> None:
    # On the instances, so that names of parameters and types of modules stay; hooks run outside and once.
    for layer in network.model.layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def _shard(network: Llama, device: torch.device) -> None:
    """FSDP2: every layer a group, the rest one more; gates stay whole everywhere, as they have one element."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    gates = {p for gate in network.gates() for p in gate.parameters()}
    for module in (*network.model.layers, network):
        sharded = fully_shard(module, mesh=mesh, ignored_params=gates)
        # A sum and no division: gloo took "average" for "sum" up to torch 2.8.
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """`tensors` in lists of one dtype and about BUCKET bytes."""
    for dtype in dict.fromkeys(t.dtype for t in tensors):
        bucket, filled = list[Tensor](), 0
        for tensor in (t for t in tensors if t.dtype == dtype):
            bucket.append(tensor)
            filled += tensor.numel() * tensor.element_size()
            if filled >= BUCKET:
                yield bucket
                bucket, filled = [], 0
        if bucket:
            yield bucket


def _all_reduce(bucket: Sequence[Tensor]) -> None:
    flat = torch.cat([tensor.flatten() for tensor in bucket])
    dist.all_reduce(flat)
    parts = torch.split(flat, [tensor.numel() for tensor in bucket])
    torch._foreach_copy_(list(bucket), [part.view_as(t) for part, t in zip(parts, bucket, strict=True)])
