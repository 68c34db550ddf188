"""Tensors that may be sharded over processes (FSDP's DTensor): their local part, and norms over all parts."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard


def is_shard(tensor: Tensor) -> bool:
    """Return whether this process has only a part of the tensor."""
    return isinstance(tensor, DTensor)


def local(tensor: Tensor) -> Tensor:
    """Return the part of `tensor` in this process, or all of it if it is not sharded. Shares its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def fill(tensor: Tensor, values: Tensor) -> None:
    """Copy the full `values` into `tensor`, or only this process's part if it is sharded."""
    part = local(tensor)
    if isinstance(tensor, DTensor):
        # FSDP shards the first dimension into parts of equal length; the last ones may be shorter or empty.
        assert tensor.placements == (Shard(0),)
        each = -(-len(values) // tensor.device_mesh.size())
        start = tensor.device_mesh.get_local_rank() * each
        values = values[start : start + each]
    assert part.shape == values.shape
    part.copy_(values)


def reshard(network: nn.Module) -> None:
    """Reshard parameters that a forward pass without a backward pass has left gathered. Otherwise zeroing gradients
    or saving would act on the gathered copies instead of the shards."""
    if isinstance(network, FSDPModule):
        network.reshard()


def joint_norm(tensors: Iterable[Tensor]) -> Tensor:
    """Return the l2 norm over all elements of `tensors`, shape (). Collective if a tensor is sharded.

    Sharded tensors count with all their parts, the others once.
    """
    tensors = list(tensors)
    shards = [local(t) for t in tensors if is_shard(t)]
    whole = torch.nn.utils.get_total_norm([t for t in tensors if not is_shard(t)])
    if not shards:
        return whole
    squared = torch.nn.utils.get_total_norm(shards).square()
    dist.all_reduce(squared)
    return (squared + whole.to(squared.device).square()).sqrt()
