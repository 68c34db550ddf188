"""Copy tensors from the host to a device."""

from __future__ import annotations

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a host tensor on `device`, without waiting for a GPU to finish earlier work."""
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)
