"""Schemes that scale the branch or the stream: their papers' formulas written here, gated or not.

Rivals of the gate that change what attention reads and what the stream is: their papers' formulas written here,
attention included, gated or not.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases import cases
from torch import Tensor

from gpas_cli.errors import GpasError, InvalidExperiments
from gpas_cli.extensions.layers.blocks import Removed, own_blocks
from gpas_cli.model.llama import Llama, build
from gpas_cli.spec.equation import description
from gpas_cli.spec.parse_cell import cell_from, parse_model

SIZE = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 3, "vocab": 90}
LAYERS = SIZE["layers"]
TOKENS = torch.arange(22).view(2, 11)


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
    network = moved(scheme, gate)
    state = network.state_dict()
    x = network.model.embed_tokens(TOKENS)
    positions = network.model.positions(x)
    for place, layer in enumerate(network.model.blocks()):
        parts = (("attn", lambda h, own=layer: own.self_attn(h, positions)), ("mlp", layer.mlp))
        for part, f in parts:
            x = sum_of(scheme, state, place, part, x, f)
            x = gated(layer_of(state, place), x)
    check(network, x)


@cases("model/cases.yaml")
def test_factors_start_as_in_their_papers(scheme: str, starts: list[float], numbers: int) -> None:
    network = build(parse_model({"size": SIZE, "norm": scheme}), seed=5)
    found = {name: value for name, value in network.named_parameters() if "factor" in name}
    assert {round(one, 6) for value in found.values() for one in value.tolist()} == set(starts)
    assert sum(value.numel() for value in found.values()) == numbers


def test_the_start_of_layerscale_depends_on_the_depth() -> None:
    for layers, start in ((18, 0.1), (24, 1e-5), (25, 1e-6)):
        model = parse_model({"size": {**SIZE, "layers": layers}, "norm": "layerscale"})
        assert model.wiring(1).branch.init == start  # type: ignore[union-attr]
    model = parse_model({"size": SIZE, "norm": {"scheme": "layerscale", "start": 0.5}})
    assert model.wiring(1).branch.init == 0.5  # type: ignore[union-attr]


@cases("model/cases.yaml")
def test_the_equation_is_explained(scheme: str, lines: list[str]) -> None:
    text = "\n".join(description(parse_model({"size": SIZE, "norm": scheme, "gate": "gpas"})))
    for line in lines:
        assert line in text


State = dict[str, Tensor]


def heads(x: Tensor) -> Tensor:
    return x.view(2, 11, 2, 8).transpose(1, 2)


def turned(x: Tensor) -> Tensor:
    """Rotary positions with complex numbers: feature j and j + h/2 are one."""
    angle = torch.outer(torch.arange(11.0, dtype=torch.float64), 10_000 ** (-torch.arange(4, dtype=torch.float64) / 4))
    z = torch.complex(x[..., :4], x[..., 4:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((z.real, z.imag), -1)


def attend(q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> Tensor:
    """q, k, v: (2, heads, 11, 8) -> (2, 11, 16)."""
    later = torch.ones(11, 11, dtype=torch.bool).triu(1)
    weights = (turned(q) @ turned(k).mT / 8**0.5).masked_fill(later, -torch.inf).softmax(-1)
    return (weights @ v).transpose(1, 2).reshape(2, 11, 16) @ out.T


def feed(own: State, x: Tensor) -> Tensor:
    return (torch.nn.functional.silu(x @ own["mlp.gate_proj.weight"].T) * (x @ own["mlp.up_proj.weight"].T)) @ own[
        "mlp.down_proj.weight"
    ].T


def layer_of(state: State, number: int) -> State:
    prefix = f"model.layers.{number}."
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def gated(own: State, x: Tensor) -> Tensor:
    alpha = own.get("gate.alpha")
    return x if alpha is None else x - torch.nn.functional.silu(alpha) * x


def moved(norm: object, gate: object) -> Llama:
    """Return a network whose vectors and numbers all differ from their first values."""
    network = build(parse_model({"size": SIZE, "norm": norm, "gate": gate, "init": {"std": 0.3}}), seed=5).double()
    with torch.no_grad():
        for number, parameter in enumerate(network.parameters()):
            if parameter.numel() <= 16:
                parameter += torch.linspace(-0.3, 0.4, parameter.numel()).double().view_as(parameter) + 0.01 * number
    return network


def check(network: Llama, last: Tensor) -> None:
    """Compare the logits with those of the stream that leaves the last layer."""
    state = network.state_dict()
    expected = rms(last, state["model.norm.weight"]) @ state["lm_head.weight"].T
    torch.testing.assert_close(network(TOKENS), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("gate", ["none", "gpas"])
@pytest.mark.parametrize("learned", [False, True])
def test_value_residual(learned: bool, gate: str) -> None:
    network = moved({"scheme": "value-residual", "learned": learned}, gate)
    state = network.state_dict()
    x = state["model.embed_tokens.weight"][TOKENS]
    for number in range(3):
        own = layer_of(state, number)
        h = rms(x, own["input_layernorm.weight"])
        q, k, v = (h @ own[f"self_attn.{name}_proj.weight"].T for name in "qkv")
        if number == 0:
            first = v
        else:
            ours, theirs = (own.get(f"self_attn.{name}.weight", 0.5) for name in ("value", "first_value"))
            v = ours * v + theirs * first
        x = gated(own, x + attend(heads(q), heads(k), heads(v), own["self_attn.o_proj.weight"]))
        x = gated(own, x + feed(own, rms(x, own["post_attention_layernorm.weight"])))
    check(network, x)
    assert len([name for name in state if "value" in name]) == 4 * learned


@pytest.mark.parametrize("gate", ["none", "gpas"])
@pytest.mark.parametrize("over", ["head", "width"])
@pytest.mark.parametrize("first", ["hybrid", "pre"])
def test_hybridnorm(first: str, over: str, gate: str) -> None:
    network = moved({"scheme": "hybridnorm", "first": first, "qkv_norm": over}, gate)
    state = network.state_dict()
    x = state["model.embed_tokens.weight"][TOKENS]
    for number in range(3):
        own = layer_of(state, number)
        pre = first == "pre" and number == 0
        h = rms(x, own["input_layernorm.weight"]) if pre else x
        q, k, v = (
            rms(heads(y), own[f"self_attn.{name}_norm.weight"])
            if over == "head"
            else heads(rms(y, own[f"self_attn.{name}_norm.weight"]))
            for name in "qkv"
            for y in [h @ own[f"self_attn.{name}_proj.weight"].T]
        )
        attention = attend(q, k, v, own["self_attn.o_proj.weight"])
        if pre:
            x = gated(own, x + attention)
            x = gated(own, x + feed(own, rms(x, own["post_attention_layernorm.weight"])))
        else:
            x = rms(gated(own, x) + attention, own["attn_out_norm.weight"])
            x = gated(own, x + feed(own, x))
    check(network, x)


def test_hybridnorm_is_explained_and_refuses_other_norms_of_queries() -> None:
    text = "\n".join(description(parse_model({"size": SIZE, "norm": {"scheme": "hybridnorm", "first": "pre"}})))
    assert "layer 1        x <- x + f(N(x))" in text
    assert "layers 2-3     x <- N(x + f(x)), then x + f(x)" in text
    assert "queries, keys and values are N(W x), each head" in text
    text = "\n".join(description(parse_model({"size": SIZE, "norm": "hybridnorm", "gate": "gpas"})))
    assert "layers 1-3     x <- N(G(x) + f(x)), then G(x + f(x))" in text
    with pytest.raises(
        InvalidExperiments, match="has norms of queries, keys and values; remove the setting or write n"
    ):
        parse_model({"size": SIZE, "norm": "hybridnorm", "family": {"qk_norm": "head"}})


@pytest.mark.parametrize(("norm", "nearest"), [("value-residual", "pre"), ("hybridnorm", "post")])
def test_an_encoder_beside_the_decoder_is_refused(norm: str, nearest: str) -> None:
    with pytest.raises(
        InvalidExperiments, match=f"{norm} has no place for attention to an encoder; nearest: {nearest}"
    ):
        parse_model({"size": {**SIZE, "layers": 4}, "norm": norm, "family": "encoder-decoder"})


def test_value_residual_is_explained_and_says_what_it_does_not_compose_with() -> None:
    text = "\n".join(description(parse_model({"size": SIZE, "norm": "value-residual", "gate": "gpas"})))
    assert "attention of layers 2-3 averages 0.5 v + 0.5 v1 with v1 the values of layer 1" in text
    learned = {"scheme": "value-residual", "learned": True}
    text = "\n".join(description(parse_model({"size": SIZE, "norm": learned})))
    assert "averages u v + u1 v1" in text
    assert "u1 is a learned number, one per layer, starts at 0.5" in text
    blocks = own_blocks(moved(learned, "none"))
    with pytest.raises(GpasError, match="so none is removed alone"), blocks.without(Removed(2)):
        pass
    recipe = {
        "size": {**SIZE, "vocab": 300}, "norm": "value-residual", "data": "quickstart",
        "optim": {"lr": 1e-3, "warmup": 1, "steps": 9},
    }  # fmt: skip
    assert cell_from({**recipe, "depth": {"like": "raptr", "stages": "2-3"}})
    for section, message in (
        ({"depth": {"like": "raptr", "stages": "2-3", "fixed": "last"}}, "leaves out layer 1.*write fixed: first,last"),
        ({"depth": "layerdrop"}, "layerdrop may skip layer 1"),
        ({"importance": {}}, "none is removed alone; remove the section"),
    ):
        with pytest.raises(InvalidExperiments, match=message):
            cell_from({**recipe, **section})
