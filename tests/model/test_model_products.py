"""Padded products, and attention on the stream of packed rows, compute what the plain ones compute."""

from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from gpas_cli.data.loader import IGNORED
from gpas_cli.model import attention, layers, ragged
from gpas_cli.model.layers import _with_inputs, aligned_output, aligned_rows
from gpas_cli.model.llama import Llama, build
from gpas_cli.model.ragged import has_ragged, ragged_attention, suits_ragged
from gpas_cli.spec.parse_cell import parse_model
from gpas_cli.train import loss as loss_module
from gpas_cli.train.compiling import compile_layers
from gpas_cli.train.loss import DeviceRows, summed_loss
from gpas_cli.train.precision import Precision

SIZE = {"hidden": 16, "ffn": 43, "heads": 2, "layers": 2, "vocab": 50}
FP32 = Precision("fp32", torch.device("cpu"))
TOKENS = np.random.default_rng(0).integers(0, 50, (4, 9))


@pytest.fixture(params=["padded", "full"])
def either(request: pytest.FixtureRequest) -> DeviceRows:
    lengths = np.array((9, 5, 4, 2) if request.param == "padded" else (9, 9, 9, 9))
    return DeviceRows.of(TOKENS, np.where(np.arange(9) < lengths[:, None], TOKENS, IGNORED), FP32.device)


@pytest.fixture
def aligned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device of the test multiplies aligned rows faster, as a GPU does."""
    monkeypatch.setattr(layers, "prefers_aligned", lambda x: True)


def gradients(network: Llama, either: DeviceRows) -> dict[str, Tensor]:
    """Return the loss and the gradient of every parameter that has one."""
    network.zero_grad()
    loss = summed_loss(network, either, FP32)
    loss.backward()
    return {"loss": loss.detach()} | {name: p.grad for name, p in network.named_parameters() if p.grad is not None}


FAMILIES = [{}, {"qk_norm": "head"}, {"qk_norm": "width"}, {"ffn": "gelu", "bias": True}, {"ffn": "relu"}]


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_padded_products_give_the_same_loss_and_gradients(
    family: dict[str, object], either: DeviceRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = parse_model({"size": SIZE, "gate": "gpas", "family": family})
    network = build(model, dtype=torch.float64)
    plain = gradients(network, either)
    monkeypatch.setattr(layers, "prefers_aligned", lambda x: True)
    padded = gradients(network, either)
    assert padded.keys() == plain.keys()
    for name, expected in plain.items():
        torch.testing.assert_close(padded[name], expected, rtol=1e-12, atol=1e-14)
        assert padded[name].shape == expected.shape


@pytest.mark.parametrize("frozen", ["q_proj", "gate_proj", "layers.0"])
def test_frozen_maps_get_no_gradient(aligned: None, frozen: str, either: DeviceRows) -> None:
    network = build(parse_model({"size": SIZE}))
    expected = gradients(network, either)
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(frozen not in name)
        parameter.grad = None
    found = gradients(network, either)
    assert found.keys() == {name for name in expected if frozen not in name}
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name])


@pytest.mark.parametrize("name", ["bf16", "pure_bf16"])
def test_bfloat16_padded_products_agree_nearly(name: str, either: DeviceRows, monkeypatch: pytest.MonkeyPatch) -> None:
    precision = Precision(name, FP32.device)
    network = build(parse_model({"size": SIZE}), dtype=precision.weights)
    separate = summed_loss(network, either, precision)
    monkeypatch.setattr(layers, "prefers_aligned", lambda x: True)
    together = summed_loss(network, either, precision)
    together.backward()
    torch.testing.assert_close(together, separate, rtol=1e-2, atol=0)
    assert all(p.grad is not None and p.grad.dtype == p.dtype for p in network.parameters())


def test_an_output_gets_columns_of_zeros(aligned: None) -> None:
    x = torch.randn(3, 16)
    for bias in (True, False):
        linear = nn.Linear(16, 43, bias=bias)
        found = aligned_output(x, linear)
        assert found.shape == (3, 64)
        torch.testing.assert_close(found[:, :43], linear(x))
        assert not found[:, 43:].any()


def test_a_matrix_gets_rows_of_zeros_only_for_narrow_products(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(50, 16)
    assert len(aligned_rows(weight, torch.bfloat16)) == 50
    monkeypatch.setattr(layers, "prefers_aligned", lambda x: True)
    found = aligned_rows(weight, torch.bfloat16)
    assert found.shape == (64, 16)
    assert torch.equal(found[:50], weight.to(torch.bfloat16))
    assert not found[50:].any()
    assert aligned_rows(weight, torch.float32) is weight
    assert len(aligned_rows(torch.randn(128, 16), torch.bfloat16)) == 128


def test_on_a_cpu_nothing_is_padded() -> None:
    linear, x = nn.Linear(5, 3), torch.randn(2, 5)
    assert torch.equal(aligned_output(x, linear), linear(x))
    assert _with_inputs(linear.weight, 5) is linear.weight


def test_the_state_dict_is_that_of_unpadded_maps(aligned: None) -> None:
    network = build(parse_model({"size": SIZE}))
    shapes = {name: tuple(tensor.shape) for name, tensor in network.model.layers[0].state_dict().items()}
    assert shapes["self_attn.q_proj.weight"] == (16, 16)
    assert (shapes["mlp.gate_proj.weight"], shapes["mlp.down_proj.weight"]) == ((43, 16), (16, 43))


CPU = torch.device("cpu")
NARROW = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 2, "vocab": 50}


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
    monkeypatch.setitem(loss_module._agreed, "cpu", {"triton": False, "ragged": True, "wider": False})
    monkeypatch.setattr(attention, "suits_ragged", lambda x, head_dim: True)
    monkeypatch.setattr(attention, "ragged_attention", by_rows)


@pytest.mark.parametrize("family", [{}, {"qk_norm": "head"}, {"positions": "learned", "context": 9}], ids=str)
@pytest.mark.parametrize("kind", ["padded", "empty rows", "documents"])
def test_attention_on_stream_and_rows(family: dict[str, object], kind: str, request: pytest.FixtureRequest) -> None:
    def made() -> DeviceRows:
        return {"padded": rows(9, 5, 4, 2), "empty rows": rows(9, 0, 4, 0), "documents": documents(3, 11, 30)}[kind]

    network = build(parse_model({"size": NARROW, "gate": "gpas", "family": family}), dtype=torch.float64)
    found = []
    for _ in range(2):
        network.zero_grad()
        own = made()
        value = summed_loss(network, own, FP32)
        value.backward()
        found.append((value.detach(), {name: p.grad for name, p in network.named_parameters()}))
        assert (own.packing.bounds is not None) == (len(found) == 2)
        request.getfixturevalue("on_gpu")
    torch.testing.assert_close(found[0], found[1], rtol=1e-10, atol=1e-12)


def test_the_kernel_has_the_shapes_that_attention_expects() -> None:
    """Without a GPU: on fake tensors of one."""
    assert ragged._in_torch()
    with FakeTensorMode():
        stream = [torch.empty(20, 2, 8, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
        bounds = torch.empty(5, device="cuda", dtype=torch.int32)
        y = ragged_attention(*stream, bounds, 9)
        assert (y.shape, y.dtype) == ((20, 2, 8), torch.bfloat16)


def test_only_causal_attention_has_bounds(on_gpu: None) -> None:
    lengths = np.array([9, 5, 4, 2])
    targets = np.where(np.arange(9) < lengths[:, None], TOKENS, IGNORED)
    masked = DeviceRows.of(TOKENS, targets, CPU, prefix=lengths)
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

    monkeypatch.setattr(ragged, "_in_torch", lambda: True)
    for error, message in (
        (Mock(side_effect=RuntimeError("no kernel for this GPU")), "no kernel for this GPU"),
        (Mock(side_effect=AssertionError), "AssertionError"),
        (Mock(return_value=0.3), "off by 0.3"),
        (Mock(return_value=np.nan), "off by nan"),
    ):
        has_ragged.cache_clear()
        monkeypatch.setattr(ragged, "_error", error)
        with pytest.warns(UserWarning, match=message):
            assert not has_ragged(gpu)
    has_ragged.cache_clear()
    monkeypatch.setattr(ragged, "_error", lambda device: 0.001)
    assert has_ragged(gpu)
    has_ragged.cache_clear()


def test_the_check_of_the_kernel_compares_outputs_and_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ragged, "ragged_attention", by_rows)
    assert ragged._error(CPU) < ragged.TOLERANCE
    with torch.no_grad():  # as in an evaluation
        assert ragged._error(CPU) < ragged.TOLERANCE
    monkeypatch.setattr(
        ragged, "ragged_attention", lambda q, k, v, bounds, longest: by_rows(q, k, v.detach(), bounds, 64)
    )
    assert ragged._error(CPU) > ragged.TOLERANCE

    def no_numbers(q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, longest: int) -> Tensor:
        v.register_hook(lambda gradient: gradient * torch.nan)
        return by_rows(q, k, v, bounds, longest)

    monkeypatch.setattr(ragged, "ragged_attention", no_numbers)
    assert np.isnan(ragged._error(CPU))


@pytest.mark.filterwarnings("ignore:The .grad attribute", "ignore:.torch.jit.script")
def test_rows_of_any_number_are_one_graph(on_gpu: None, monkeypatch: pytest.MonkeyPatch, counter: Any) -> None:
    # An operation that does not ask for the bounds' values, as the kernel does not.
    monkeypatch.setattr(attention, "ragged_attention", lambda q, k, v, bounds, longest: q + k + v * bounds.sum())
    network = build(parse_model({"size": NARROW}))
    compile_layers(network, counter)
    for own in (rows(9, 5, 4, 2), documents(3, 11, 30), documents(4), rows(3, 3, 1, 2)):
        summed_loss(network, own, FP32).backward()
    assert counter.frame_count == 2
