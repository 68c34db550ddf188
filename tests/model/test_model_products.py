"""Joined and padded products compute what the separate ones compute, gradients included."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gpas_cli.data.loader import IGNORED
from gpas_cli.model import layers
from gpas_cli.model.layers import _with_inputs, aligned_rows, outputs
from gpas_cli.model.llama import Llama, build
from gpas_cli.spec.parse_cell import parse_model
from gpas_cli.train.loss import DeviceRows, summed_loss
from gpas_cli.train.precision import Precision

SIZE = {"hidden": 16, "ffn": 43, "heads": 2, "layers": 2, "vocab": 50}
FP32 = Precision("fp32", torch.device("cpu"))
TOKENS = np.random.default_rng(0).integers(0, 50, (4, 9))


@pytest.fixture(params=["padded", "full"])
def rows(request: pytest.FixtureRequest) -> DeviceRows:
    lengths = np.array((9, 5, 4, 2) if request.param == "padded" else (9, 9, 9, 9))
    return DeviceRows.of(TOKENS, np.where(np.arange(9) < lengths[:, None], TOKENS, IGNORED), FP32.device)


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device of the test computes wide products faster, as a GPU does."""
    monkeypatch.setattr(layers, "prefers_wide", lambda x: True)


def gradients(network: Llama, rows: DeviceRows) -> dict[str, Tensor]:
    """Return the loss and the gradient of every parameter that has one."""
    network.zero_grad()
    loss = summed_loss(network, rows, FP32)
    loss.backward()
    return {"loss": loss.detach()} | {name: p.grad for name, p in network.named_parameters() if p.grad is not None}


FAMILIES = [{}, {"qk_norm": "head"}, {"qk_norm": "width"}, {"ffn": "gelu", "bias": True}, {"ffn": "relu"}]


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_wide_products_give_the_same_loss_and_gradients(
    family: dict[str, object], rows: DeviceRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = parse_model({"size": SIZE, "gate": "gpas", "family": family})
    network = build(model, dtype=torch.float64)
    separate = gradients(network, rows)
    monkeypatch.setattr(layers, "prefers_wide", lambda x: True)
    together = gradients(network, rows)
    assert together.keys() == separate.keys()
    for name, expected in separate.items():
        torch.testing.assert_close(together[name], expected, rtol=1e-12, atol=1e-14)
        assert together[name].shape == expected.shape


def test_a_layer_has_a_third_fewer_products(wide: None) -> None:
    class Shapes(torch.overrides.TorchFunctionMode):
        def __init__(self) -> None:
            self.found: list[tuple[int, ...]] = []

        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if func is torch.nn.functional.linear:
                self.found.append(tuple(args[1].shape))
            return func(*args, **(kwargs or {}))

    network = build(parse_model({"size": SIZE}))
    with Shapes() as shapes, torch.no_grad():
        network.model(torch.from_numpy(TOKENS))
    # The feed-forward network's last product is in its own autograd function.
    assert [shape for shape in shapes.found if shape[0] > 16] == [(48, 16), (128, 16)] * 2


@pytest.mark.parametrize("frozen", ["q_proj", "gate_proj", "layers.0"])
def test_frozen_maps_get_no_gradient(wide: None, frozen: str, rows: DeviceRows) -> None:
    network = build(parse_model({"size": SIZE}))
    expected = gradients(network, rows)
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(frozen not in name)
        parameter.grad = None
    found = gradients(network, rows)
    assert found.keys() == {name for name in expected if frozen not in name}
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name])


@pytest.mark.parametrize("name", ["bf16", "pure_bf16"])
def test_in_bfloat16_wide_products_agree_up_to_rounding(
    name: str, rows: DeviceRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    precision = Precision(name, FP32.device)
    network = build(parse_model({"size": SIZE}), dtype=precision.weights)
    separate = summed_loss(network, rows, precision)
    monkeypatch.setattr(layers, "prefers_wide", lambda x: True)
    together = summed_loss(network, rows, precision)
    together.backward()
    torch.testing.assert_close(together, separate, rtol=1e-2, atol=0)
    assert all(p.grad is not None and p.grad.dtype == p.dtype for p in network.parameters())


@pytest.mark.parametrize(
    ("hidden", "dtype", "autocast", "joined"),
    [
        (1024, torch.bfloat16, False, True),
        (1032, torch.bfloat16, False, False),  # as FSDP gathers them, and with `pure_bf16`
        (1032, torch.bfloat16, True, False),
        (1032, torch.float32, True, True),
        (1032, torch.float32, False, False),
    ],
)
def test_weights_are_joined_where_a_copy_is_made_anyway_or_small(
    wide: None, hidden: int, dtype: torch.dtype, autocast: bool, joined: bool
) -> None:
    maps = [nn.Linear(hidden, width, dtype=dtype) for width in (8, 40)]
    x = torch.randn(3, hidden, dtype=dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        assert layers.joins(x, maps[0].weight) == joined
        found = outputs(x, maps, 16)
        for y, linear in zip(found, maps, strict=True):
            width = linear.out_features
            torch.testing.assert_close(y[..., :width], linear(x), rtol=1e-2, atol=1e-2)
            assert y.shape[-1] % 16 == 0
            assert not y[..., width:].any()
        assert (found[0].untyped_storage().data_ptr() == found[1].untyped_storage().data_ptr()) == joined


def test_a_matrix_gets_rows_of_zeros_only_for_narrow_products(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(50, 16)
    assert len(aligned_rows(weight, torch.bfloat16)) == 50
    monkeypatch.setattr(layers, "prefers_wide", lambda x: True)
    found = aligned_rows(weight, torch.bfloat16)
    assert found.shape == (64, 16)
    assert torch.equal(found[:50], weight.to(torch.bfloat16))
    assert not found[50:].any()
    assert aligned_rows(weight, torch.float32) is weight
    assert len(aligned_rows(torch.randn(128, 16), torch.bfloat16)) == 128


def test_on_a_cpu_every_map_is_a_product_of_its_own() -> None:
    maps = [nn.Linear(5, 3), nn.Linear(5, 7)]
    x = torch.randn(2, 5)
    assert [y.shape[-1] for y in outputs(x, maps, 4)] == [3, 7]
    assert all(torch.equal(y, linear(x)) for y, linear in zip(outputs(x, maps, 4), maps, strict=True))
    weight = maps[0].weight
    assert _with_inputs(weight, 5) is weight


def test_the_state_dict_is_that_of_separate_maps(wide: None) -> None:
    network = build(parse_model({"size": SIZE}))
    shapes = {name: tuple(tensor.shape) for name, tensor in network.model.layers[0].state_dict().items()}
    assert shapes["self_attn.q_proj.weight"] == (16, 16)
    assert shapes["mlp.gate_proj.weight"] == (43, 16)
    assert shapes["mlp.down_proj.weight"] == (16, 43)
