"""Schemes that scale the branch or the stream: their papers' formulas written here, gated or not."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gpas_cli.model.llama import build
from gpas_cli.spec.equation import description
from gpas_cli.spec.parse_cell import parse_model

SIZE = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 3, "vocab": 90}
LAYERS = SIZE["layers"]
TOKENS = torch.arange(22).view(2, 11)


Map = Callable[[Tensor], Tensor]


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return weight * x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()


def sum_of(
    scheme: str, state: dict[str, Tensor], layer: int, part: str, x: Tensor, f: Callable[[Tensor], Tensor]
) -> Any:
    """The sum of a sub-layer before the gate, x + ..., as the papers write it."""
    own = f"model.layers.{layer}."
    norm = own + ("input_layernorm.weight" if part == "attn" else "post_attention_layernorm.weight")
    if scheme == "rezero":
        return x + state[own + "factor.weight"] * f(x)
    if scheme == "skipinit":
        return x + state[f"{own}{part}_factor.weight"] * f(x)
    branch = f(rms(x, state[norm]))
    if scheme == "layerscale":
        return x + branch @ torch.diag(state[f"{own}{part}_factor.weight"])
    if scheme == "scalars":
        return state[f"{own}{part}_skip_factor.weight"] * x + state[f"{own}{part}_factor.weight"] * branch
    return x + branch / math.sqrt(2 * LAYERS)


RIVALS = ("rezero", "skipinit", "layerscale", "scalars", "scaled-branches")


@pytest.mark.parametrize("gate", ["none", "gpas"])
@pytest.mark.parametrize("scheme", RIVALS)
def test_a_rival_is_the_formula_of_its_paper(scheme: str, gate: str) -> None:
    network = build(parse_model({"size": SIZE, "norm": scheme, "gate": gate}), seed=5).double()
    with torch.no_grad():
        for number, parameter in enumerate(network.parameters()):
            if parameter.dim() == 1:
                parameter.add_(torch.linspace(-0.3, 0.4, len(parameter), dtype=torch.float64) + 0.01 * number)
    state = network.state_dict()
    x = network.model.embed_tokens(TOKENS)
    positions = network.model.positions(x)
    for place, layer in enumerate(network.model.blocks()):
        parts = (("attn", lambda h, own=layer: own.self_attn(h, positions)), ("mlp", layer.mlp))
        for part, f in parts:
            x = sum_of(scheme, state, place, part, x, f)
            if gate == "gpas":
                alpha = state[f"model.layers.{place}.gate.alpha"]
                x = x - torch.nn.functional.silu(alpha) * x
    expected = rms(x, state["model.norm.weight"]) @ state["lm_head.weight"].T
    torch.testing.assert_close(network(TOKENS), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("scheme", "starts"),
    [("rezero", {0.0}), ("skipinit", {0.0}), ("layerscale", {0.1}), ("scalars", {1.0}), ("scaled-branches", set())],
)
def test_factors_start_as_in_their_papers(scheme: str, starts: set[float]) -> None:
    network = build(parse_model({"size": SIZE, "norm": scheme}), seed=5)
    found = {name: value for name, value in network.named_parameters() if "factor" in name}
    assert {round(one, 6) for value in found.values() for one in value.tolist()} == starts
    whole = {"rezero": LAYERS, "skipinit": 2 * LAYERS, "layerscale": 2 * LAYERS * 16, "scalars": 4 * LAYERS}
    assert sum(value.numel() for value in found.values()) == whole.get(scheme, 0)


def test_the_start_of_layerscale_depends_on_the_depth() -> None:
    for layers, start in ((18, 0.1), (24, 1e-5), (25, 1e-6)):
        model = parse_model({"size": {**SIZE, "layers": layers}, "norm": "layerscale"})
        assert model.wiring(1).branch.init == start  # type: ignore[union-attr]
    model = parse_model({"size": SIZE, "norm": {"scheme": "layerscale", "start": 0.5}})
    assert model.wiring(1).branch.init == 0.5  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("scheme", "lines"),
    [
        ("rezero", ["x <- G(x + b f(x))", "b is a learned number, one per layer, starts at 0"]),
        ("layerscale", ["x <- G(x + b * f(N(x)))", "b is a learned vector, one per branch, starts at 0.1"]),
        ("scalars", ["x <- G(a x + b f(N(x)))", "a is a learned number, one per branch, starts at 1"]),
        ("scaled-branches", ["x <- G(x + 0.4082 f(N(x)))"]),
    ],
)
def test_the_equation_is_explained(scheme: str, lines: list[str]) -> None:
    text = "\n".join(description(parse_model({"size": SIZE, "norm": scheme, "gate": "gpas"})))
    for line in lines:
        assert line in text
