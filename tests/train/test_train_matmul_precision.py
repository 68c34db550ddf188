"""The float32 matrix product: it follows from the processor, is float32 in fact, and is kept by a resumed run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from gpas_cli.spec.model import SIZES
from gpas_cli.train import precision
from gpas_cli.train.precision import TOLERANCE, MatmulChoice, choose_matmul

CPU = torch.device("cpu")
SIZE = SIZES["71m"]


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def processor(monkeypatch: pytest.MonkeyPatch, capability: str, error: float) -> None:
    """Fix the processor's instructions and the error of "medium"."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(precision, "_product_error", lambda path, *_: error if path == "medium" else 1e-7)


def test_the_chosen_product_is_accurate_and_set() -> None:
    choice = choose_matmul(SIZE, CPU)
    assert choice.error <= TOLERANCE
    assert choice.path == torch.get_float32_matmul_precision()


@pytest.mark.parametrize(
    ("capability", "error", "before", "expected"),
    [
        ("AVX512", 9e-7, "", MatmulChoice("medium", 9e-7, "processor")),
        ("AVX512", 9e-7, "highest", MatmulChoice("highest", 1e-7, "checkpoint")),
        ("AVX512", 2**-9, "", MatmulChoice("highest", 1e-7, "processor")),
        ("AVX512", 2**-9, "medium", MatmulChoice("highest", 1e-7, "processor")),
        ("AVX2", 9e-7, "", MatmulChoice("highest", 1e-7, "processor")),
        ("AVX2", 9e-7, "medium", MatmulChoice("medium", 9e-7, "checkpoint")),
    ],
)
def test_the_product_of_each_processor(
    capability: str, error: float, before: str, expected: MatmulChoice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """oneDNN's with AVX-512, unless it is bfloat16 there; a resumed run keeps its own if it is float32 here."""
    processor(monkeypatch, capability, error)
    assert choose_matmul(SIZE, CPU, before) == expected
