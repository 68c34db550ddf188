"""Determinism, the allocator and the float32 matrix product of a process that trains."""

import os
from collections.abc import Iterator

import pytest
import torch

from gpas_cli.model.llama import build
from gpas_cli.spec.model import SIZES
from gpas_cli.spec.parse_cell import parse_model
from gpas_cli.train import precision
from gpas_cli.train.compiling import compile_layers
from gpas_cli.train.precision import (
    _ALLOCATOR_VARIABLES,
    TOLERANCE,
    MatmulChoice,
    choose_matmul,
    make_deterministic,
    use_expandable_segments,
)


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore what `make_deterministic` sets."""
    for name in ("CUBLAS_WORKSPACE_CONFIG", *_ALLOCATOR_VARIABLES):
        monkeypatch.setenv(name, "")  # so that it is restored afterwards
        monkeypatch.delenv(name)
    enabled = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    yield
    torch.use_deterministic_algorithms(enabled, warn_only=warn_only)


@pytest.mark.parametrize("on_gpu", [True, False])
def test_with_a_gpu_determinism_is_strict(on_gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """ATen's attention is deterministic in its backward pass only if it is."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: on_gpu)
    make_deterministic(torch.get_num_threads())
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.is_deterministic_algorithms_warn_only_enabled() is not on_gpu
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    compile_layers(build(parse_model({"size": {"hidden": 8, "ffn": 8, "heads": 1, "layers": 1, "vocab": 9}})), "eager")
    assert torch._inductor.config.deterministic


@pytest.mark.parametrize("variable", [None, *_ALLOCATOR_VARIABLES])
@pytest.mark.parametrize("on_gpu", [True, False])
def test_segments_are_expandable_unless_the_user_has_settings(
    on_gpu: bool, variable: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: on_gpu)
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", found.append, raising=False)
    monkeypatch.setattr(torch, "empty", lambda *size, device: None)
    if variable:
        monkeypatch.setenv(variable, "max_split_size_mb:64")
    use_expandable_segments()
    assert found == (["expandable_segments:True"] if on_gpu and variable is None else [])


def test_torch_accepts_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "empty", lambda *size, device: None)
    use_expandable_segments()


def test_an_allocator_that_cannot_extend_segments_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*size: int, device: str) -> None:
        raise RuntimeError("CUDA driver error: operation not supported\nmore")

    found: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", found.append, raising=False)
    monkeypatch.setattr(torch, "empty", refuse)
    with pytest.warns(UserWarning, match="may become fragmented: CUDA driver error: operation not supported$"):
        use_expandable_segments()
    assert found == ["expandable_segments:True", "expandable_segments:False"]


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
