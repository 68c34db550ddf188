"""The loss never holds all logits and skips padding; its gradients take the logits' place, on a GPU by a kernel."""

import importlib.util
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from cases import cases
from torch.utils._python_dispatch import TorchDispatchMode

from gpas_cli.data.loader import IGNORED
from gpas_cli.model.llama import Llama, build
from gpas_cli.spec.parse_cell import parse_model
from gpas_cli.train import loss
from gpas_cli.train.loss import DeviceRows, _one_hot, _subtract_one_hot, softmax_gradients, summed_loss
from gpas_cli.train.precision import Precision

CPU = torch.device("cpu")
SIZE = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 2, "vocab": 50}
LENGTHS = [12, 3, 0, 7, 12, 1]


def network(dtype: torch.dtype = torch.float64, **model: object) -> Llama:
    return build(parse_model({"size": SIZE, "gate": "gpas", **model}), dtype=dtype)


def padded(hole: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of 12 tokens with LENGTHS targets each; with `hole`, one in the middle does not count."""
    inputs, targets = np.random.default_rng(3).integers(0, 50, (2, len(LENGTHS), 12))
    targets[np.arange(12) >= np.array(LENGTHS)[:, None]] = IGNORED
    if hole:
        targets[0, 4] = IGNORED
    return inputs, targets


def plain(made: Llama, inputs: np.ndarray, targets: np.ndarray, smoothing: float = 0.0) -> torch.Tensor:
    """Return the sum of torch's loss over the targets, from all logits at once."""
    logits, wanted = made(torch.from_numpy(inputs)).flatten(0, 1), torch.from_numpy(targets).flatten()
    return F.cross_entropy(logits, wanted, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing)


def gradients(made: Llama, value: torch.Tensor) -> dict[str, torch.Tensor]:
    made.zero_grad()
    value.backward()
    return {name: p.grad.clone() for name, p in made.named_parameters()}


def z_term(made: Llama, inputs: np.ndarray, targets: np.ndarray, weight: float) -> torch.Tensor:
    """Return weight * the sum of log^2 Z over the targets, from all logits at once (PaLM, section 5)."""
    log_z = made(torch.from_numpy(inputs)).flatten(0, 1).logsumexp(-1)
    return weight * log_z[torch.from_numpy(targets).flatten() != IGNORED].square().sum()


@pytest.mark.parametrize("chunk", [50, 350, 10**6])
@pytest.mark.parametrize("hole", [False, True])
@cases("train/cases.yaml", family="llama", z_loss=0.0, smoothing=0.0)
def test_by_chunks_it_is_the_plain_loss_and_the_other_terms_have_gradients_alone(
    monkeypatch: pytest.MonkeyPatch, chunk: int, family: str, hole: bool, z_loss: float, smoothing: float
) -> None:
    monkeypatch.setattr(loss, "_CHUNK_LOGITS", chunk)
    made = network(family=family)
    (inputs, targets) = padded(hole)
    expected = plain(made, inputs, targets)
    rows = DeviceRows.of(inputs, targets, CPU)
    assert rows.packing is not None
    assert rows.inputs.shape == (1, sum(LENGTHS))
    ours = summed_loss(made, rows, Precision("fp32", CPU), 4, z_loss, smoothing=smoothing)
    torch.testing.assert_close(4 * ours, expected, rtol=1e-12, atol=0)
    found = gradients(made, ours)
    minimised = plain(made, inputs, targets, smoothing) + z_term(made, inputs, targets, z_loss)
    for name, gradient in gradients(made, minimised).items():
        torch.testing.assert_close(4 * found[name], gradient, rtol=1e-9, atol=1e-12)
    with torch.no_grad():
        evaluated = summed_loss(made, rows, Precision("fp32", CPU), 4, z_loss, smoothing=smoothing)
    torch.testing.assert_close(evaluated, ours.detach())


def test_in_single_precision_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "_CHUNK_LOGITS", 350)
    made = network(torch.float32)
    (inputs, targets) = padded()
    expected = plain(made, inputs, targets)
    ours = summed_loss(made, DeviceRows.of(inputs, targets, CPU), Precision("fp32", CPU))
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=0)
    theirs, ours = gradients(made, expected), gradients(made, ours)
    largest = max(float(gradient.abs().max()) for gradient in theirs.values())
    for name, gradient in ours.items():
        torch.testing.assert_close(gradient, theirs[name], rtol=1e-4, atol=1e-6 * largest)


@pytest.mark.parametrize("precision", ["bf16", "pure_bf16"])
def test_the_z_loss_pushes_log_z_in_bfloat16_too(precision: str) -> None:
    """A slope of 1.001 is rounded to 1 in bfloat16: it must multiply before that."""
    made = network(torch.float32)
    inputs, targets = padded()
    (exact,) = torch.autograd.grad(z_term(made, inputs, targets, 1e-4), made.lm_head.weight)
    made = made.to(Precision(precision, CPU).weights)

    def head_gradient(weight: float) -> torch.Tensor:
        value = summed_loss(made, DeviceRows.of(inputs, targets, CPU), Precision(precision, CPU), 1.0, weight)
        return torch.autograd.grad(value, made.lm_head.weight)[0].float()

    # The sum over the vocabulary is that of the z-loss: the cross entropy's is zero.
    ours = (head_gradient(1e-4 * 1000) - head_gradient(0.0)).sum(0)
    torch.testing.assert_close(ours, 1000 * exact.sum(0), rtol=0.05, atol=0.02 * float(1000 * exact.sum(0).abs().max()))


@pytest.mark.parametrize("z_loss", [0.0, 0.1])
def test_a_padded_vocabulary_gives_the_same_loss_and_gradients(z_loss: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where the products of 50,257 outputs are slower than those of 50,304."""
    made = network()
    rows = DeviceRows.of(*padded(), CPU)
    precision = Precision("fp32", CPU)
    value = summed_loss(made, rows, precision, z_loss=z_loss)
    expected = gradients(made, value)
    widths: list[int] = []

    def wider(weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        widths.append(len(weight) + 14)
        return F.pad(weight.to(dtype), (0, 0, 0, 14))

    monkeypatch.setattr(loss, "aligned_rows", wider)
    monkeypatch.setattr(loss, "_CHUNK_LOGITS", 350)
    ours = summed_loss(made, rows, precision, z_loss=z_loss)
    torch.testing.assert_close(ours, value, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradients(made, ours), expected, rtol=1e-9, atol=1e-12)
    with torch.no_grad():
        torch.testing.assert_close(summed_loss(made, rows, precision), value.detach(), rtol=1e-12, atol=0)
    assert widths == [64, 64]


def test_full_rows_stay_rows() -> None:
    inputs, targets = np.ones((2, 2, 5), np.int64)
    rows = DeviceRows.of(inputs, targets, CPU)
    assert rows.packing is None
    assert rows.inputs.shape == (2, 5)


def test_a_batch_without_targets_has_zero_loss() -> None:
    inputs, targets = np.ones((2, 5), np.int64), np.full((2, 5), IGNORED)
    value = summed_loss(network(), DeviceRows.of(inputs, targets, CPU), Precision("fp32", CPU))
    assert value.item() == 0


@pytest.mark.parametrize("name", ["bf16", "pure_bf16"])
def test_in_bfloat16_it_is_near_the_exact_one(name: str) -> None:
    precision = Precision(name, CPU)
    (inputs, targets) = padded()
    made = network(precision.weights)
    ours = summed_loss(made, DeviceRows.of(inputs, targets, CPU), precision)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours.double(), plain(network(), inputs, targets), rtol=2e-2, atol=0)
    ours.backward()
    assert all(p.grad is None or p.grad.dtype == p.dtype for p in made.parameters())


def test_an_evaluation_computes_no_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = []
    whole = loss._chunked
    monkeypatch.setattr(
        loss, "_chunked", lambda *args, **kwargs: wanted.append(kwargs["wanted"]) or whole(*args, **kwargs)
    )
    made = network()
    rows = DeviceRows.of(*padded(), CPU)
    with torch.no_grad():
        summed_loss(made, rows, Precision("fp32", CPU))
    summed_loss(made, rows, Precision("fp32", CPU))
    assert wanted == [False, True]


class Large(TorchDispatchMode):
    """Collects the memory of results of at least so many elements."""

    def __init__(self, elements: int) -> None:
        super().__init__()
        self.elements = elements
        self.found: list[torch.UntypedStorage] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.numel() >= self.elements:
            storage = result.untyped_storage()
            if all(storage._cdata != other._cdata for other in self.found):
                self.found.append(storage)
        return result


@pytest.mark.parametrize(("device", "dtype", "buffers"), [
    ("cpu", torch.float32, 1), ("cpu", torch.bfloat16, 2), ("meta", torch.float32, 1), ("meta", torch.bfloat16, 1),
])  # fmt: skip
@pytest.mark.parametrize("wanted", [True, False])
def test_the_logits_of_a_chunk_are_in_memory_once(
    device: str, dtype: torch.dtype, buffers: int, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On processors a bfloat16 chunk has a float32 copy. The meta device takes the path of GPUs."""
    monkeypatch.setattr(loss, "logits_at_once", lambda _: 10 * 500)
    hidden, head = torch.ones(40, 8, device=device), torch.ones(500, 8, device=device)
    targets = torch.ones(40, dtype=torch.int64, device=device)
    with Large(10 * 500) as large:
        loss._chunked(hidden, head, targets, dtype, wanted=wanted, z_loss=0.1)
    assert len(large.found) == buffers
    assert sum(storage.nbytes() for storage in large.found) <= 5000 * (4 if buffers == 1 else 6)


@cases("train/cases.yaml")
def test_chunks_are_few_even_and_of_whole_tiles(rows: int, most: int, tile: int, chunk: int) -> None:
    assert loss._chunk_rows(rows, most, tile) == chunk


TARGETS = torch.tensor([3, 0, IGNORED, 89, 41, 3])
KERNEL_CASES = Path(__file__).parent / "kernel_cases.py"


def logits(dtype: torch.dtype) -> torch.Tensor:
    return (3 * torch.randn(len(TARGETS), 90, generator=torch.Generator().manual_seed(1))).to(dtype)


def by_autograd(given: torch.Tensor, z_loss: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log p(target) of each row and the gradients of -log p(target) + z_loss * log^2 Z, in float64."""
    wide = given.double().requires_grad_()
    chosen = -F.cross_entropy(wide, TARGETS.clamp_min(0), reduction="none")
    (z_loss * wide.logsumexp(-1).square() - chosen).sum().backward()
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
    assert torch.equal(given.sub_(_one_hot(place, given)), on_cpu)  # a GPU subtracts no booleans
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
