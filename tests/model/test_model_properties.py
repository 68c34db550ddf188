"""What holds for every scheme, site, activation, stop-gradient, learnable and sharing alike."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

from gpas_cli.model.llama import Llama, build
from gpas_cli.model.probe import activation_variance, gate_values
from gpas_cli.spec.cell import parse_model
from gpas_cli.spec.gate import ACTIVATIONS, SITES
from gpas_cli.spec.norm import SCHEMES
from gpas_cli.spec.size import SIZES

TINY = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 4, "vocab": 19}
TOKENS = torch.arange(14).reshape(2, 7)


def network(norm: object, gate: object = None, **kwargs: object) -> Llama:
    return build(parse_model({"size": TINY, "norm": norm, "gate": gate}), **kwargs)


def gradients(model: Llama) -> dict[str, torch.Tensor]:
    F.cross_entropy(model(TOKENS)[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten()).backward()
    return {name: p.grad for name, p in model.named_parameters()}


PRODUCT = list(itertools.product(SCHEMES, SITES, ACTIVATIONS, (True, False), ("layer", "sublayer")))


@pytest.mark.parametrize("norm", SCHEMES)
def test_every_placement_trains_every_parameter_and_is_plain_at_zero(norm: str) -> None:
    plain = network(norm)(TOKENS)
    for _, site, activation, stop, share in (case for case in PRODUCT if case[0] == norm):
        gate = {"site": site, "activation": activation, "stop_gradient": stop, "share": share, "init": 0.2}
        model = network(norm, gate)
        dead = {name for name, grad in gradients(model).items() if grad is None or not grad.abs().max() > 0}
        # The last layer's stream meets an RMSNorm, which ignores its scale up to eps: that gate's gradient may vanish.
        assert {name for name in dead if not name.endswith("alpha")} == set(), (site, activation)
        for module in model.gates():
            module.alpha.data.zero_()
        assert torch.equal(model(TOKENS), plain), (site, activation)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_stop_gradient_gate_has_the_identity_as_jacobian(activation: str) -> None:
    gate = next(network("pre", {"activation": activation, "init": 0.3}, dtype=torch.float64).gates())
    x = torch.randn(5, dtype=torch.float64)
    assert torch.equal(torch.autograd.functional.jacobian(gate, x), torch.eye(5, dtype=torch.float64))
    act, _ = ACTIVATIONS[activation]
    assert gate.value().item() == pytest.approx(act(0.3), rel=1e-6)


def test_without_stop_gradient_the_jacobian_is_scaled() -> None:
    gate = next(network("pre", {"stop_gradient": False, "init": 0.3}, dtype=torch.float64).gates())
    jacobian = torch.autograd.functional.jacobian(gate, torch.randn(3, dtype=torch.float64))
    assert torch.allclose(jacobian, (1 - gate.value().item()) * torch.eye(3, dtype=torch.float64), rtol=1e-14)


def test_schemes_with_one_seed_share_their_matrices() -> None:
    states = {norm: network(norm, seed=5).state_dict() for norm in ("pre", "post", "sandwich", "mix", "lns")}
    for state in states.values():
        for name in (n for n in state if "_proj" in n or "embed" in n or "head" in n):
            assert torch.equal(state[name], states["pre"][name]), name
    assert not torch.equal(states["pre"]["lm_head.weight"], network("pre", seed=6).state_dict()["lm_head.weight"])


@pytest.mark.parametrize(
    ("size", "total"),
    [("9m", 8_995_968), ("71m", 70_578_688), ("100m", 100_117_120), ("130m", 134_105_856), ("250m", 247_370_496),
     ("350m", 367_969_280), ("1b", 1_339_082_752), ("3b", 2_685_831_680), ("7b", 6_738_415_616)],
)  # fmt: skip
def test_parameter_counts_are_the_references(size: str, total: int) -> None:
    layers = SIZES[size].layers
    for norm, gate, extra in (
        ("pre", None, 0),
        ("pre", "gpas", layers),
        ("sandwich", None, 2 * layers * SIZES[size].hidden),
    ):
        model = build(parse_model({"size": size, "norm": norm, "gate": gate}), device="meta")
        assert sum(p.numel() for p in model.parameters()) == total + extra


def test_the_probe_sees_the_stream_and_leaves_nothing_behind() -> None:
    model = network("pre", {"init": 0.3})
    with activation_variance(model) as seen:
        model(TOKENS)
    embedded = model.model.embed_tokens(TOKENS)
    assert len(seen) == 5
    assert seen[0].item() == pytest.approx(embedded.var(-1, correction=0).mean().item(), rel=1e-6)
    model(TOKENS)
    assert len(seen) == 5
    assert gate_values(model) == pytest.approx([ACTIVATIONS["silu"][0](0.3)] * 4)
