"""Tensors on their devices: copies from the host, and those that FSDP shards over processes (DTensor)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor
    from typing_extensions import TypeIs


def is_shard(tensor: Tensor) -> TypeIs[DTensor]:
    """Return whether this process has only a part of the tensor.

    Its class is not asked for: importing it takes a second and a half, which one process can do without.
    """
    return hasattr(tensor, "to_local")


def local(tensor: Tensor) -> Tensor:
    """Return the part of `tensor` in this process, or all of it if it is not sharded. Shares its memory."""
    return tensor.to_local() if is_shard(tensor) else tensor


def fill(tensor: Tensor, values: Tensor) -> None:
    """Copy the full `values` into `tensor`, or only this process's part if it is sharded."""
    part = local(tensor)
    if is_shard(tensor):
        start = first_row(tensor)
        values = values[start : start + len(part)]
    assert part.shape == values.shape
    part.copy_(values)


def whole(part: Tensor, like: Tensor) -> Tensor:
    """Return the whole tensor of which `part` is what this process has, sharded as `like`. Collective if it is."""
    return sharded_as(like, part, like.shape, like.stride()).full_tensor() if is_shard(like) else part


def sharded_as(like: DTensor, part: Tensor, shape: torch.Size, stride: tuple[int, ...]) -> DTensor:
    """Return the tensor of this shape and stride, sharded as `like`, of which `part` is what this process has."""
    place = like.device_mesh, like.placements
    return type(like).from_local(part, *place, run_check=False, shape=shape, stride=stride)


def first_row(tensor: Tensor) -> int:
    """Return the index in the whole `tensor` of the first row of this process's part."""
    if not is_shard(tensor):
        return 0
    # FSDP shards the first dimension into parts of equal length; the last ones may be shorter or empty.
    assert [placement.is_shard(0) for placement in tensor.placements][-1:] == [True]
    return _place(tensor)[-1] * -(-len(tensor) // tensor.device_mesh.shape[-1])


def copy_of(tensor: DTensor) -> tuple[int, int]:
    """Return which of the equal copies of its shards this process has part of, and how many there are."""
    return (_place(tensor)[0], tensor.device_mesh.shape[0]) if tensor.device_mesh.ndim > 1 else (0, 1)


def _place(tensor: DTensor) -> Sequence[int]:
    place = tensor.device_mesh.get_coordinate()
    assert place is not None
    return place


def sum_of_shards(part: Tensor, like: DTensor) -> Tensor:
    """Replace `part` by its sum over the processes that share a copy of `like`, and return it. Collective.

    The sum is over all processes, so that copies, whose parts are equal, get the same bits.
    """
    dist.all_reduce(part)
    copies = copy_of(like)[1]
    return part.div_(copies) if copies > 1 else part


def reshard(network: object) -> None:
    """Reshard parameters that a forward pass without a backward pass has left gathered. Otherwise zeroing gradients
    or saving would act on the gathered copies instead of the shards."""
    getattr(network, "reshard", lambda: None)()  # FSDP gives its networks the method


@torch.no_grad()
def joint_norm(tensors: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the l2 norm over all elements of `tensors`, shape (), and the norm of each one's part in this process,
    shape (tensors,). Collective if a tensor is sharded.

    Sharded tensors count with all their parts, the others once. The tensors have one type.
    """
    tensors = list(tensors)
    if not tensors:
        return torch.tensor(0.0), torch.zeros(0)
    each = torch._foreach_norm([local(t) for t in tensors])
    norms = torch.stack(each)
    sharded = [t for t in tensors if is_shard(t)]
    if not sharded:
        return torch.linalg.vector_norm(norms), norms
    own = [norm for norm, t in zip(each, tensors, strict=True) if not is_shard(t)]
    shards = [norm for norm, t in zip(each, tensors, strict=True) if is_shard(t)]
    squared = sum_of_shards(torch.linalg.vector_norm(torch.stack(shards)).square(), sharded[0])
    if own:
        squared = squared + torch.linalg.vector_norm(torch.stack(own)).square()
    return squared.sqrt(), norms


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a host tensor on `device`, without waiting for a GPU to finish earlier work."""
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)
