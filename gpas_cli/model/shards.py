"""Tensors that may be spread over processes (FSDP's DTensor): the part here, and norms over all parts."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard


def is_shard(tensor: Tensor) -> bool:
    """Whether this process holds a part of the tensor only."""
    return isinstance(tensor, DTensor)


def local(tensor: Tensor) -> Tensor:
    """The part of `tensor` that this process holds: all of it, unless it is sharded. Shares its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def fill(tensor: Tensor, values: Tensor) -> None:
    """Copy `values`, which are whole, into `tensor`: only this process's part where it is sharded."""
    part = local(tensor)
    if isinstance(tensor, DTensor):
        # FSDP cuts along the first dimension, into parts of equal length and a shorter or empty rest.
        assert tensor.placements == (Shard(0),)
        each = -(-len(values) // tensor.device_mesh.size())
        start = tensor.device_mesh.get_local_rank() * each
        values = values[start : start + each]
    assert part.shape == values.shape
    part.copy_(values)


def put_back(network: nn.Module) -> None:
    """Shard again what a forward pass without a backward pass has left whole. Else its parameters would be copies,
    and what is done to them (zeroing gradients, saving) would miss the shards."""
    if isinstance(network, FSDPModule):
        network.reshard()


def joint_norm(tensors: Iterable[Tensor]) -> Tensor:
    """The l2 norm over all elements of `tensors`, shape (). Collective where a tensor is sharded.

    Sharded tensors count with all their parts, others once, as every process has them whole.
    """
    tensors = list(tensors)
    shards = [local(t) for t in tensors if is_shard(t)]
    whole = torch.nn.utils.get_total_norm([t for t in tensors if not is_shard(t)])
    if not shards:
        return whole
    squared = torch.nn.utils.get_total_norm(shards).square()
    dist.all_reduce(squared)
    return (squared + whole.to(squared.device).square()).sqrt()
