"""The elementwise part of the head: torch's operations and the GPU's kernel, compared with autograd."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from gpas_cli.data.loader import IGNORED
from gpas_cli.train import loss
from gpas_cli.train.loss import _subtract_one_hot, softmax_gradients

TARGETS = torch.tensor([3, 0, IGNORED, 89, 41, 3])
KERNEL_CASES = Path(__file__).parent / "kernel_cases.py"


def logits(dtype: torch.dtype) -> torch.Tensor:
    return (3 * torch.randn(len(TARGETS), 90, generator=torch.Generator().manual_seed(1))).to(dtype)


def by_autograd(given: torch.Tensor, z_loss: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log p(target) of each row and the gradients of -log p(target) + z_loss * log^2 Z, in float64."""
    wide = given.double().requires_grad_()
    chosen = -F.cross_entropy(wide, TARGETS.clamp_min(0), reduction="none")
    (z_loss * wide.logsumexp(-1).square() - chosen).sum().backward()
    assert wide.grad is not None
    return chosen.detach()[:, None], wide.grad


@pytest.mark.parametrize("z_loss", [0.0, 0.3])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 2e-2)]
)
def test_the_gradients_take_the_logits_place(dtype: torch.dtype, tolerance: float, z_loss: float) -> None:
    ours = logits(dtype)
    chosen, gradients = by_autograd(ours, z_loss)
    found = softmax_gradients(ours, TARGETS, torch.promote_types(dtype, torch.float32), z_loss, True, 90)
    torch.testing.assert_close(found.double(), chosen, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(ours.double(), gradients, rtol=0, atol=tolerance * float(gradients.abs().max()))


def test_an_evaluation_leaves_the_logits() -> None:
    ours = logits(torch.float32)
    found = softmax_gradients(ours.clone(), TARGETS, torch.float32, 0.0, False, 90)
    torch.testing.assert_close(found, ours.log_softmax(-1).gather(1, TARGETS.clamp_min(0)[:, None]))


def test_further_columns_do_not_count_and_get_no_gradient() -> None:
    ours = logits(torch.float32)
    wider = F.pad(ours, (0, 6), value=50.0)
    found = softmax_gradients(wider, TARGETS, torch.float32, 0.1, True, 90)
    assert torch.equal(found, softmax_gradients(ours, TARGETS, torch.float32, 0.1, True, 90))
    assert torch.equal(wider, F.pad(ours, (0, 6)))


def test_the_one_hot_is_subtracted_in_the_same_way_without_scattering() -> None:
    given = logits(torch.float32)
    place = TARGETS.clamp_min(0)[:, None]
    on_cpu, on_meta = given.clone(), given.to("meta")
    _subtract_one_hot(on_cpu, place)
    assert torch.equal(on_cpu, given - F.one_hot(place[:, 0], 90))
    _subtract_one_hot(on_meta, place.to("meta"))


@pytest.mark.parametrize("interpreted", [True, False])
def test_the_kernels_are_those_of_torch(interpreted: bool) -> None:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed; CUDA builds of torch bring it")
    if not interpreted and not torch.cuda.is_available():
        pytest.skip("no GPU is visible")
    # Triton reads the variable when it is imported.
    environment = {**os.environ, **({"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""} if interpreted else {})}
    done = subprocess.run([sys.executable, KERNEL_CASES], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is visible, where Triton works")
def test_a_machine_without_triton_says_why_it_is_slower() -> None:
    loss._has_triton.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert not loss._has_triton(torch.device("cuda"))
        assert not loss._has_triton(torch.device("cpu"))
    (warning,) = caught
    assert "Triton's kernel is not used, which makes training slower" in str(warning.message)
    loss._has_triton.cache_clear()
