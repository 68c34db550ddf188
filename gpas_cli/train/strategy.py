"""Distribute a network over the processes of a world, and sum its gradients.

It is replicated (ddp), sharded (fsdp), or sharded within each node and replicated over nodes (hsdp).

Every process divides its summed loss by the weight of the whole batch, and gradients are summed, not averaged: the
result does not depend on the number of processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from gpas_cli.errors import GpasError
from gpas_cli.model.dtensors import is_shard, local
from gpas_cli.model.init import initialise
from gpas_cli.model.layers import DyT, HyperConnection, LayerNorm, RMSNorm
from gpas_cli.model.llama import Llama, build
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.cost import predicted
from gpas_cli.spec.depth import ActiveLayers
from gpas_cli.spec.model import Model
from gpas_cli.spec.optim import ADAM, OptimizerKind, role
from gpas_cli.spec.run import SHARDED, Resources
from gpas_cli.train.compiling import compile_layers
from gpas_cli.train.parallel import ALONE, GradientSum, World
from gpas_cli.train.precision import Precision

_NORMS = (RMSNorm, LayerNorm, DyT, HyperConnection)


@dataclass(frozen=True)
class ParallelLayout:
    """How a network is distributed.

    `strategy`: none (one process), ddp, fsdp or hsdp, over `nodes`. `recompute`: activations inside a layer are
    recomputed in the backward pass. `compiled`: layers are compiled, one graph for all with the same wiring.
    `optimizer`: how much state it keeps.
    """

    world: World = ALONE
    strategy: str = "none"
    recompute: bool = False
    compiled: bool = False
    optimizer: OptimizerKind = ADAM
    nodes: int = 1

    def build(self, model: Model, seed: int, precision: Precision) -> Llama:
        """Return the initialised network, distributed. Collective.

        A sharded network is never whole in any process: each draws one matrix at a time and keeps its shard.
        """
        sharded = self.strategy in SHARDED
        if sharded:
            network = build(model, device="meta").to(precision.weights)
        else:
            network = build(model, seed=seed, dtype=precision.weights, device=precision.device)
        precision.apply(network)
        if self.compiled:
            compile_layers(network)
        if self.recompute:
            _recompute(network)
        if sharded:
            _shard(network, precision, self.nodes if self.strategy == "hsdp" else 1)
            network.to_empty(device=precision.device)
            initialise(network, model, seed)
        for tensor in network.state_dict().values() if self.strategy == "ddp" else ():
            dist.broadcast(tensor, src=0)
        return network

    def unallocated_bytes(self, network: Llama) -> int:
        """Return the bytes that gradients and optimizer state will take in this process."""
        return sum(
            local(p).numel() * p.element_size()
            + self.optimizer.state_bytes(role(name, p.dim()), local(p).shape, p.element_size())
            for name, p in network.named_parameters()
        )

    def gradient_sum(self, network: Llama, active: ActiveLayers | None) -> GradientSum:
        """Return what sums the gradients of an update of the `active` layers (None: all), except those of shards, which
        FSDP sums."""
        if self.world.alone:
            return GradientSum(())
        whole = [p for p in _differentiated(network, active) if not is_shard(p)]
        # FSDP sends its own messages during the backward pass.
        return GradientSum(whole, overlap=self.strategy == "ddp")

    def sum_over_nodes(self, network: Llama, wanted: bool) -> None:
        """Set whether the next backward pass sums the shards' gradients of this update over nodes, or only adds to
        those of this node."""
        if self.strategy == "hsdp":
            network.set_requires_all_reduce(wanted)  # type: ignore[operator]  # FSDP gives its networks the method


def choose_layout(
    cell: Cell, resources: Resources, precision: Precision, world: World, *, compiled: bool = False
) -> ParallelLayout:
    """Return the requested layout, or the cheapest one that fits: on GPUs, as `spec.cost.predicted` says.

    Raises GpasError if `hsdp` is requested and the processes of `world` are not as many on each node.
    """
    strategy = "none" if world.alone else resources.strategy.replace("auto", "ddp")
    recompute = resources.activation_checkpointing == "blocks"
    if precision.device.type == "cuda":
        memory = predicted(cell, resources, world.min(_memory(precision.device)), world.size)
        strategy, recompute = memory.strategy, memory.recompute
    if strategy == "hsdp" and (faults := replace(resources, ranks=world.size).faults):
        raise GpasError("; ".join(f"resources.{name}: {fault}" for name, fault in faults.items()))
    return ParallelLayout(world, strategy, recompute, compiled, cell.optim.kind, resources.nodes)


def _memory(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).total_memory)


def _recompute(network: Llama) -> None:
    # Set on the instances, so that parameter names and module types stay the same; hooks run outside, once.
    for layer in network.model.layers:  # which draw nothing
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)


def _differentiated(network: Llama, active: ActiveLayers | None) -> Iterator[nn.Parameter]:
    """Yield the parameters that have gradients in an update of the `active` layers, None for all."""
    applied = {id(layer) for _, layer, _ in network.model.applied(active)}
    skipped = {p for layer in network.model.layers if id(layer) not in applied for p in layer.parameters()}
    yield from (p for p in network.parameters() if p.requires_grad and p not in skipped)


def _shard(network: Llama, precision: Precision, replicas: int = 1) -> None:
    """Shard with FSDP2: each layer is a group, the rest another. Gates, of one element each, are replicated.

    With `replicas` the shards lie on as many equal groups of neighbouring processes, each with a whole network.

    Under autocast a layer needs its matrices in that dtype only, so they are gathered in it; their gradients are summed
    in float32. Norms, which autocast leaves in float32, are then replicated; embedding and head are gathered as they
    are.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    shape: tuple[int, ...] = (dist.get_world_size(),)
    if replicas > 1:
        shape = (replicas, shape[0] // replicas)
    mesh = init_device_mesh(precision.device.type, shape, mesh_dim_names=("replicas", "shards")[-len(shape) :])
    gathered = MixedPrecisionPolicy()
    replicated = {p for gate in network.gates() for p in gate.parameters()}
    if precision.autocast:
        gathered = MixedPrecisionPolicy(precision.autocast, torch.float32, cast_forward_inputs=False)
        replicated |= {p for module in network.modules() if isinstance(module, _NORMS) for p in module.parameters()}
    for module, policy in (*((layer, gathered) for layer in network.model.layers), (network, MixedPrecisionPolicy())):
        sharded = fully_shard(module, mesh=mesh, mp_policy=policy, ignored_params=replicated)
        # Sum without dividing, and without asking for an average, which gloo cannot compute.
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)
