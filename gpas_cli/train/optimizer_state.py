"""Allocate the state of optimizers, sharded as its parameter."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from gpas_cli.model.dtensors import local
from gpas_cli.spec.optim import StateTensor


def zeros(parameter: Tensor, state: StateTensor) -> Tensor:
    """Return the state tensor of a parameter, filled with zeros.

    A number for each row is sharded as the rows are; one for each column is whole in every process.
    """
    dtype = torch.float32 if state.wide else parameter.dtype
    if state.shape == "parameter":
        return torch.zeros_like(parameter, dtype=dtype)
    if state.shape == "columns":
        return torch.zeros(1, parameter.shape[-1], dtype=dtype, device=parameter.device)
    rows = torch.zeros(len(local(parameter)), 1, dtype=dtype, device=parameter.device)
    if not isinstance(parameter, DTensor):
        return rows
    shape = torch.Size((parameter.shape[0], 1))
    mesh, placements = parameter.device_mesh, parameter.placements
    return DTensor.from_local(rows, mesh, placements, run_check=False, shape=shape, stride=(1, 1))
