"""The dot products of many pairs: one operation. `tests/train/kernel_cases.py` compares the GPU's kernel."""

from __future__ import annotations

import warnings

import pytest
import torch

from gpas_cli.model import triton_support
from gpas_cli.model.dot_products import dot_products


def pairs(dtype: torch.dtype, device: str = "cpu") -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return tensors of several shapes, an empty one and one of several blocks for each program among them."""
    generator = torch.Generator().manual_seed(1)
    shapes = [(5,), (0,), (16, 24), (3, 100_001)]
    left, right = ([torch.randn(s, generator=generator, dtype=dtype).to(device) for s in shapes] for _ in range(2))
    return left, right


def test_they_are_those_of_torch() -> None:
    left, right = pairs(torch.float32)
    expected = torch.stack([torch.dot(a.flatten(), b.flatten()) for a, b in zip(left, right, strict=True)])
    assert torch.equal(dot_products(left, right), expected)
    left, right = pairs(torch.float32, "meta")
    assert dot_products(left, right).shape == (4,)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is visible, where Triton works")
def test_a_machine_without_triton_says_why_it_is_slower() -> None:
    triton_support.has_triton.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert not triton_support.has_triton(torch.device("cuda"))
        assert not triton_support.has_triton(torch.device("cpu"))
    (warning,) = caught
    assert "Triton's kernels are not used, which makes training slower" in str(warning.message)
    triton_support.has_triton.cache_clear()
