"""The activations on tensors: value and gradient are the numbers of `gpas_cli.spec.gate`."""

from __future__ import annotations

import pytest
import torch
from gate_activations import ALL_ACTIVATIONS

from gpas_cli.model.layers import torch_activation
from gpas_cli.spec.gate import ACTIVATIONS, activation


@pytest.mark.parametrize("act", [*ALL_ACTIVATIONS, *ACTIVATIONS.values()])
def test_values_and_gradients_are_those_of_the_numbers(act: str) -> None:
    points = [0.25 * step for step in range(-12, 13)]  # 0 and ties included
    alphas = torch.tensor(points, dtype=torch.float64, requires_grad=True)
    values = torch_activation(act)(alphas)
    values.sum().backward()
    known = activation(act)
    assert values.tolist() == pytest.approx([known.value(a) for a in points], rel=1e-13, abs=1e-15)
    assert alphas.grad.tolist() == pytest.approx([known.slope(a) for a in points], rel=1e-13, abs=1e-15)


@pytest.mark.parametrize("act", ALL_ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shape_and_dtype_are_kept(act: str, dtype: torch.dtype) -> None:
    found = torch_activation(act)(torch.tensor([0.3], dtype=dtype))
    assert (found.shape, found.dtype) == ((1,), dtype)
