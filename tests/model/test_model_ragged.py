"""Attention on the stream of packed rows equals attention on the rows. The kernel itself runs on GPUs only."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode

from gpas_cli.data.loader import IGNORED
from gpas_cli.model import attention
from gpas_cli.model.attention import has_ragged, ragged_attention, suits_ragged
from gpas_cli.model.llama import build
from gpas_cli.spec.parse_cell import parse_model
from gpas_cli.train import loss as loss_module
from gpas_cli.train.compiling import compile_layers
from gpas_cli.train.loss import DeviceRows, summed_loss
from gpas_cli.train.precision import Precision

CPU = torch.device("cpu")
FP32 = Precision("fp32", CPU)
SIZE = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 2, "vocab": 50}
TOKENS = np.random.default_rng(0).integers(0, 50, (4, 9))


def rows(*lengths: int) -> DeviceRows:
    targets = np.where(np.arange(9) < np.array(lengths)[:, None], TOKENS, IGNORED)
    return DeviceRows.of(TOKENS, targets, CPU)


def documents(*first: int) -> DeviceRows:
    starts = np.zeros((4, 9), np.bool_)
    starts[:, 0] = True
    starts.ravel()[list(first)] = True
    return DeviceRows.of(TOKENS, TOKENS, CPU, starts=starts)


def by_rows(q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, longest: int) -> Tensor:
    """Compute what FlashAttention's kernel does, row by row."""
    ends = bounds.tolist()
    assert max(np.diff(ends)) <= longest
    parts = []
    for start, end in zip(ends, ends[1:], strict=False):  # noqa: RUF007
        own = (tensor[start:end].transpose(0, 1) for tensor in (q, k, v))
        parts.append(F.scaled_dot_product_attention(*own, is_causal=True).transpose(0, 1))
    return torch.cat(parts)


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device of the test has the kernel, which takes every dtype."""
    monkeypatch.setattr(loss_module, "has_ragged", lambda device: True)
    monkeypatch.setattr(attention, "suits_ragged", lambda x, head_dim: True)
    monkeypatch.setattr(attention, "ragged_attention", by_rows)


@pytest.mark.parametrize("family", [{}, {"qk_norm": "head"}, {"positions": "learned", "context": 9}], ids=str)
@pytest.mark.parametrize("kind", ["padded", "empty rows", "documents"])
def test_attention_on_the_stream_is_that_on_the_rows(
    family: dict[str, object], kind: str, request: pytest.FixtureRequest
) -> None:
    def made() -> DeviceRows:
        return {"padded": rows(9, 5, 4, 2), "empty rows": rows(9, 0, 4, 0), "documents": documents(3, 11, 30)}[kind]

    network = build(parse_model({"size": SIZE, "gate": "gpas", "family": family}), dtype=torch.float64)
    found = []
    for _ in range(2):
        network.zero_grad()
        own = made()
        value = summed_loss(network, own, FP32)
        value.backward()
        found.append((value.detach(), {name: p.grad for name, p in network.named_parameters()}))
        assert own.packing is not None
        assert (own.packing.bounds is not None) == (len(found) == 2)
        request.getfixturevalue("on_gpu")
    torch.testing.assert_close(found[0], found[1], rtol=1e-10, atol=1e-12)


def test_the_kernel_has_the_shapes_that_attention_expects() -> None:
    """Without a GPU: on fake tensors of one."""
    assert attention._in_torch()
    with FakeTensorMode():
        stream = [torch.empty(20, 2, 8, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
        bounds = torch.empty(5, device="cuda", dtype=torch.int32)
        y = ragged_attention(*stream, bounds, 9)
        assert (y.shape, y.dtype) == ((20, 2, 8), torch.bfloat16)


def test_only_causal_attention_has_bounds(on_gpu: None) -> None:
    lengths = np.array([9, 5, 4, 2])
    targets = np.where(np.arange(9) < lengths[:, None], TOKENS, IGNORED)
    masked = DeviceRows.of(TOKENS, targets, CPU, prefix=lengths)
    assert masked.packing is not None
    assert masked.targeted is not None
    assert masked.packing.bounds is None
    assert masked.targeted.bounds is None
    assert rows(*lengths).packing.bounds.tolist() == [0, 9, 14, 18, 20]  # type: ignore[union-attr]


def test_a_kernel_is_used_only_for_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not has_ragged(CPU)
    assert rows(9, 5, 4, 2).packing.bounds is None  # type: ignore[union-attr]
    assert not suits_ragged(torch.empty(1, dtype=torch.bfloat16), 64)
    with FakeTensorMode():
        half, single = (torch.empty(1, device="cuda", dtype=dtype) for dtype in (torch.bfloat16, torch.float32))
        assert suits_ragged(half, 64)
        assert not suits_ragged(half, 84)
        assert not suits_ragged(single, 64)
        monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: device == "cuda")
        assert suits_ragged(single, 64)


def test_a_kernel_that_fails_or_errs_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda", 99)

    def fail(device: torch.device) -> float:
        raise RuntimeError("no kernel for this GPU")

    monkeypatch.setattr(attention, "_in_torch", lambda: True)

    def fail_without_message(device: torch.device) -> float:
        raise AssertionError

    cases = [(fail, "no kernel for this GPU"), (fail_without_message, "AssertionError")]
    for error, message in [*cases, (lambda device: 0.3, "off by 0.3"), (lambda device: np.nan, "off by nan")]:
        has_ragged.cache_clear()
        monkeypatch.setattr(attention, "_error", error)
        with pytest.warns(UserWarning, match=message):
            assert not has_ragged(gpu)
    has_ragged.cache_clear()
    monkeypatch.setattr(attention, "_error", lambda device: 0.001)
    assert has_ragged(gpu)
    has_ragged.cache_clear()


def test_the_check_of_the_kernel_compares_outputs_and_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "ragged_attention", by_rows)
    assert attention._error(CPU) < attention.TOLERANCE
    with torch.no_grad():  # as in an evaluation
        assert attention._error(CPU) < attention.TOLERANCE
    monkeypatch.setattr(
        attention, "ragged_attention", lambda q, k, v, bounds, longest: by_rows(q, k, v.detach(), bounds, 64)
    )
    assert attention._error(CPU) > attention.TOLERANCE

    def no_numbers(q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, longest: int) -> Tensor:
        v.register_hook(lambda gradient: gradient * torch.nan)
        return by_rows(q, k, v, bounds, longest)

    monkeypatch.setattr(attention, "ragged_attention", no_numbers)
    assert np.isnan(attention._error(CPU))


@pytest.mark.filterwarnings("ignore:The .grad attribute", "ignore:.torch.jit.script")
def test_rows_of_any_number_and_length_have_one_graph(on_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    # An operation that does not ask for the bounds' values, as the kernel does not.
    monkeypatch.setattr(attention, "ragged_attention", lambda q, k, v, bounds, longest: q + k + v * bounds.sum())
    torch._dynamo.reset()
    counter = CompileCounter()
    network = build(parse_model({"size": SIZE}))
    compile_layers(network, counter)
    for own in (rows(9, 5, 4, 2), documents(3, 11, 30), documents(4), rows(3, 3, 1, 2)):
        summed_loss(network, own, FP32).backward()
    assert counter.frame_count == 2
