"""Copy tensors from the host to a device."""

from __future__ import annotations

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the host on `device`, without waiting for a GPU to do what it was given before."""
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)
