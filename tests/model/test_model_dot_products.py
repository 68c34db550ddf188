"""The dot products of many pairs: one operation, and the same sums from the GPU's kernel."""

from __future__ import annotations

import importlib
import sys
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_kernel_in_tritons_interpreter(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="triton is not installed; CUDA builds of torch bring it")
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # read when the kernel is defined
    monkeypatch.delitem(sys.modules, "gpas_cli.model.triton_dots", raising=False)
    kernel = importlib.import_module("gpas_cli.model.triton_dots")
    left, right = pairs(dtype)
    found = kernel.launch(list(zip(left, right, strict=True)))
    expected = dot_products([a.double() for a in left], [b.double() for b in right])
    lengths = torch.tensor([a.numel() for a in left]).sqrt()
    tolerance = {torch.float32: 1e-6, torch.float64: 1e-14}[dtype]
    assert found.dtype == dtype
    assert ((found.double() - expected).abs() <= tolerance * lengths).all()


def test_a_machine_without_triton_says_why_it_is_slower() -> None:
    triton_support.triton_works.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert triton_support.triton_works() is False
    assert "Triton's kernels are not used, which makes training slower" in str(caught[0].message)
    triton_support.triton_works.cache_clear()
