"""The printed equations, and the published schedule of learning rates."""

from __future__ import annotations

import json

import pytest
from golden_networks import GOLDEN

from gpas_cli.spec.equation import _embedding, equation, equations, family
from gpas_cli.spec.optim import Optim
from gpas_cli.spec.parse_cell import parse_model

SCHEDULES = json.loads((GOLDEN / "lr_schedule.json").read_text())["sizes"]


@pytest.mark.parametrize(
    ("norm", "site", "expected"),
    [
        ("pre", "home", "G(x + f(N(x)))"),
        ("pre", "before-sublayer", "G(x) + f(N(G(x)))"),
        ("pre", "before-sublayer-shortcut", "G(x) + f(N(x))"),
        ("pre", "after-norm", "x + f(G(N(x)))"),
        ("pre", "after-module", "x + G(f(N(x)))"),
        ("post", "home", "N(G(x) + f(x))"),
        ("post", "after-norm", "G(N(x + f(x)))"),
        ("deepnorm", "home", "N(2.213 G(x) + f(x))"),
        ("sandwich", "home", "G(x + N(f(N(x))))"),
        ("sandwich", "after-module", "x + G(N(f(N(x))))"),
        ("lns", "home", "G(x + f(N(x)))"),
        ("peri", "home", "G(x + N(f(N(x))))"),
        ("b2t", "home", "N(G(x) + f(x)), then N(b + G(x) + f(x)) with b the layer's input"),
        ("b2t", "after-sublayer", "N(G(x + f(x))), then N(G(b + x + f(x))) with b the layer's input"),
    ],
)
def test_equation_of_a_layer(norm: str, site: str, expected: str) -> None:
    assert (
        equation(parse_model({"size": "quickstart", "norm": norm, "gate": {"site": site, "init": 0.1}}), 3) == expected
    )


def test_mix_changes_its_equation_once() -> None:
    model = parse_model({"size": "quickstart", "norm": "mix", "gate": "gpas"})
    assert equations(model) == [(1, 3, "N(G(x) + f(x))"), (4, 12, "G(x + f(N(x)))")]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, "E[t]"),
        ({"norm": "peri"}, "RMSNorm(E[t])"),
        ({"embed": {"stages": ["scale", "layernorm"]}}, "LayerNorm(5.657 E[t])"),
        ({"embed": {"like": "scaled", "multiplier": 5}}, "5 E[t]"),
        ({"embed": "detach"}, "0.1 E[t] + 0.9 sg(E[t])"),
        ({"family": "gpt"}, "E[t] + P"),
    ],
)
def test_the_input_of_the_first_layer(values: dict, expected: str) -> None:
    assert _embedding(parse_model({"size": "quickstart", **values})) == expected


def test_families_in_words() -> None:
    assert family(parse_model({"size": "quickstart"})) == ""
    assert family(parse_model({"size": "quickstart", "family": "gpt"})) == (
        "N is LayerNorm; FFN(x) = W_down gelu(W_up x); P has 2048 learned positions; projections have biases; "
        "the head is E"
    )
    qk_norm = {"like": "llama", "qk_norm": "head"}
    assert family(parse_model({"size": "quickstart", "family": qk_norm})) == "q = N(W_q x) and k = N(W_k x), each head"


@pytest.mark.parametrize("size", SCHEDULES)
def test_learning_rates_are_the_references(size: str) -> None:
    golden = SCHEDULES[size]
    optim = Optim(lr=golden["base_lr"], warmup=golden["warmup"], steps=golden["steps"])
    for update, rate in golden["lr_of_update_u"].items():
        assert optim.learning_rate(int(update)) == pytest.approx(rate, rel=1e-9, abs=1e-15)
