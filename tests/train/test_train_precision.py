"""Determinism and the allocator of a process that trains."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from gpas_cli.train.precision import _ALLOCATOR_VARIABLES, make_deterministic, use_expandable_segments


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore what `make_deterministic` sets."""
    for name in ("CUBLAS_WORKSPACE_CONFIG", "TORCHINDUCTOR_DETERMINISTIC", *_ALLOCATOR_VARIABLES):
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
    assert os.environ.get("TORCHINDUCTOR_DETERMINISTIC") == ("1" if on_gpu else None)


@pytest.mark.parametrize("variable", [None, *_ALLOCATOR_VARIABLES])
@pytest.mark.parametrize("on_gpu", [True, False])
def test_segments_are_expandable_unless_the_user_has_settings(
    on_gpu: bool, variable: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: on_gpu)
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", found.append, raising=False)
    if variable:
        monkeypatch.setenv(variable, "max_split_size_mb:64")
    use_expandable_segments()
    assert found == (["expandable_segments:True"] if on_gpu and variable is None else [])


def test_torch_accepts_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    use_expandable_segments()
