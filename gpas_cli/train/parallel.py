"""The processes that train one network together: how they communicate, share it, and sum its gradients.

Nothing here changes CUDA_VISIBLE_DEVICES: each process uses one of the devices visible to it.

A network is replicated (ddp), sharded (fsdp), or sharded within each node and replicated over nodes (hsdp).

Every process divides its summed loss by the weight of the whole batch, and gradients are summed, not averaged: the
result does not depend on the number of processes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gpas_cli.errors import GpasError
from gpas_cli.model.dtensors import is_shard, local
from gpas_cli.model.init import initialise
from gpas_cli.model.layers import DyT, LayerNorm, RMSNorm
from gpas_cli.model.llama import Llama, build
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.cost import predicted
from gpas_cli.spec.depth import ActiveLayers
from gpas_cli.spec.model import Model
from gpas_cli.spec.optim import ADAM, OptimizerKind, role
from gpas_cli.spec.run import SHARDED, Resources
from gpas_cli.structure import Frozen
from gpas_cli.train.compiling import compile_layers
from gpas_cli.train.precision import Precision

_PEER_TIMEOUT = timedelta(minutes=30)  # long, because one process may tokenise or write while the others wait
_REQUESTS = (None, "interrupted", "cancelled")  # by rising priority

T = TypeVar("T")
_BUCKET_BYTES = 2**25  # of gradients in one message
# The most messages in flight before the oldest is waited for. Each holds a copy of its gradients.
_MOST_IN_FLIGHT = 4
_NORMS = (RMSNorm, LayerNorm, DyT)


class World(Frozen):
    """Process `rank` of `size`, number `local_rank` on its machine.

    All methods are collective: every process calls them, in the same order. A world of one process needs no
    communication.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @property
    def leads(self) -> bool:
        """Whether this is the first process, the only one whose events are recorded."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        """Whether this is the only process."""
        return self.size == 1

    def sum(self, tensor: Tensor) -> Tensor:
        """Replace `tensor` by its sum over all processes, in place, and return it."""
        if not self.alone:
            dist.all_reduce(tensor)
        return tensor

    def max(self, number: int) -> int:
        """Return the maximum of `number` over all processes. Runs on the CPU, without waiting for the device."""
        if self.alone:
            return number
        tensor = torch.tensor(number)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return int(tensor)

    def min(self, number: int) -> int:
        """Return the smallest `number` of any process. Runs on the CPU, without waiting for the device."""
        return -self.max(-number)

    def any(self, fact: bool) -> bool:
        """Return whether `fact` holds in any process."""
        return self.max(int(fact)) > 0

    def agree(self, request: str | None) -> str | None:
        """Return the request of highest priority that any process has, None if no process asks to stop."""
        return _REQUESTS[self.max(_REQUESTS.index(request))]

    def broadcast(self, value: T) -> T:
        """Return the first process's `value`. For small plain data only."""
        if self.alone:
            return value
        carrier = [value]
        dist.broadcast_object_list(carrier, src=0, device=torch.device("cpu"))
        return carrier[0]

    def together(self, act: Callable[[], T]) -> list[T]:
        """Return what `act` returns in each process, small plain data. Raises in every process if it raises in one: its
        OSError, or a RuntimeError that quotes another exception."""
        if self.alone:
            return [act()]
        found: T | Exception
        try:
            found = act()
        except OSError as error:
            found = error
        except Exception as error:
            found = RuntimeError(f"{type(error).__name__}: {error}")
        everyone: list[Any] = [None] * self.size
        dist.all_gather_object(everyone, found)
        for one in everyone:
            if isinstance(one, Exception):
                raise one
        return everyone


ALONE = World()


@contextmanager
def joined(world: World, meeting: str) -> Iterator[World]:
    """Connect the processes of `world` for the block: GPUs through NCCL, CPUs through gloo.

    `meeting`: torch's rendezvous URL (file:// or tcp://). Raises GpasError if the processes do not connect. After an
    exception the connection stays open until the process exits: closing it could wait for processes that wait for this
    one, and its failure would not be recorded.
    """
    if torch.cuda.is_available():
        torch.cuda.set_device(world.local_rank % torch.cuda.device_count())
    if world.alone:
        yield world
        return
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        dist.init_process_group(backend, meeting, rank=world.rank, world_size=world.size, timeout=_PEER_TIMEOUT)
    except (RuntimeError, ValueError, OSError) as error:
        raise GpasError(
            f"process {world.rank} of {world.size} did not connect to the others at {meeting}: {error}"
        ) from error
    yield world
    world.max(0)  # no process exits while another still communicates with it
    dist.destroy_process_group()


def lost_a_peer(error: BaseException) -> bool:
    """Return whether `error` means that another process has ended, rather than that this one has failed."""
    words = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "NCCL", "Timed out waiting")
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and any(w in str(error) for w in words)
    )


class GradientSum:
    """The sums over all processes of the gradients of `parameters` in one update.

    A message has the gradients of neighbouring parameters. All processes send the same messages in the same order, that
    of the backward pass: from the last parameters to the first. What is in a message does not depend on when it is
    sent, and neither do the sums.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], *, overlap: bool = True):
        self._buckets = list(_buckets(parameters))[::-1]
        self._overlap = overlap
        self._bucket_of = {p: number for number, bucket in enumerate(self._buckets) for p in bucket}
        self._awaited = [len(bucket) for bucket in self._buckets]
        self._sent = 0
        self._in_flight: deque[_Message] = deque()

    @contextmanager
    def during_backward(self) -> Iterator[None]:
        """Send each message as soon as its gradients are complete: for the backward pass of the last micro-batch."""
        watched = self._bucket_of if self._overlap else ()
        handles = [p.register_post_accumulate_grad_hook(self._complete) for p in watched]  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def finish(self) -> None:
        """Send the remaining messages and replace the gradients by their sums. Collective.

        A parameter without a gradient counts as zero and keeps none. A process whose backward pass has failed calls it
        without gradients, so that the others do not wait forever.
        """
        while self._sent < len(self._buckets):
            self._send()
        while self._in_flight:
            self._in_flight.popleft().receive()

    def _complete(self, parameter: Tensor) -> None:
        self._awaited[self._bucket_of[parameter]] -= 1  # type: ignore[index]
        while self._sent < len(self._buckets) and not self._awaited[self._sent]:
            self._send()

    def _send(self) -> None:
        if len(self._in_flight) == _MOST_IN_FLIGHT:
            self._in_flight.popleft().receive()
        self._in_flight.append(_Message(self._buckets[self._sent]))
        self._sent += 1


class _Message:
    """The gradients of one bucket in flight."""

    def __init__(self, bucket: Sequence[nn.Parameter]):
        self._bucket = bucket
        self._flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in bucket])
        self._work = dist.all_reduce(self._flat, async_op=True)

    def receive(self) -> None:
        """Wait for the sums, on a GPU without stopping the process, and copy them into the gradients."""
        self._work.wait()
        parts = torch.split(self._flat, [p.numel() for p in self._bucket])
        sums = [(p.grad, part.view_as(p)) for p, part in zip(self._bucket, parts, strict=True) if p.grad is not None]
        if sums:
            torch._foreach_copy_([gradient for gradient, _ in sums], [part for _, part in sums])


def _buckets(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Group `parameters` into lists of one dtype and about _BUCKET_BYTES bytes."""
    for dtype in dict.fromkeys(p.dtype for p in parameters):
        bucket: list[nn.Parameter] = []
        filled = 0
        for parameter in (p for p in parameters if p.dtype == dtype):
            bucket.append(parameter)
            filled += parameter.numel() * parameter.element_size()
            if filled >= _BUCKET_BYTES:
                yield bucket
                bucket = []
                filled = 0
        if bucket:
            yield bucket


class ParallelLayout(Frozen):
    """How a network is distributed."""

    world: World = ALONE
    strategy: str = "none"  # none (one process), ddp, fsdp or hsdp, over `nodes`
    recompute: bool = False  # activations inside a layer are recomputed in the backward pass
    compiled: bool = False  # layers are compiled, one graph for all with the same wiring
    optimizer: OptimizerKind = ADAM  # how much state it keeps
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
        total = torch.cuda.get_device_properties(precision.device).total_memory
        memory = predicted(cell, resources, world.min(int(total)), world.size)
        strategy, recompute = memory.strategy, memory.recompute
    if strategy == "hsdp" and (faults := replace(resources, ranks=world.size).faults):
        raise GpasError("; ".join(f"resources.{name}: {fault}" for name, fault in faults.items()))
    return ParallelLayout(world, strategy, recompute, compiled, cell.optim.kind, resources.nodes)


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
