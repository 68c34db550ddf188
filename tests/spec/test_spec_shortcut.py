"""The conditions of Spike No More, without torch, against the parameters that the network starts with."""

from __future__ import annotations

import math

import pytest
import torch

from gpas_cli.model.llama import build
from gpas_cli.spec.model import conditions, has_large_shortcut, has_small_sublayers, remark, shortcut_std
from gpas_cli.spec.parse_cell import parse_model

SIZE = {"hidden": 64, "ffn": 128, "heads": 2, "layers": 2, "vocab": 3000}
EVERYWHERE = {"preset": "xavier", "everywhere": True}
METHODS = {  # Table 5: name -> parts, small sub-layers, large shortcut
    "xavier": ({"init": EVERYWHERE}, False, False),
    "vanilla": ({"init": "small"}, True, False),
    "detach": ({"init": "small", "embed": "detach"}, True, False),
    "layernorm": ({"init": "small", "embed": "layernorm"}, True, True),
    "scaled": ({"init": "small", "embed": "scaled"}, True, True),
}


def model(**parts: object) -> object:
    return parse_model({"size": SIZE, "norm": "pre", **parts})


@pytest.mark.parametrize(("parts", "small", "large"), METHODS.values(), ids=METHODS)
def test_table_5(parts: dict, small: bool, large: bool) -> None:
    spec = model(family="gpt", **parts)
    assert (has_small_sublayers(spec), has_large_shortcut(spec)) == (small, large)
    assert f"({'large' if large else 'small'} shortcut)" in conditions(spec)
    assert not remark(spec)


@pytest.mark.parametrize(
    "parts",
    [
        *(parts for parts, _, _ in METHODS.values()),
        {"init": "small", "embed": {"like": "scaled", "multiplier": 50}},
        {"init": {**EVERYWHERE}, "embed": "scaled"},
        {"norm": "peri"},
    ],
)
@pytest.mark.parametrize("family", ["gpt", "llama"])
def test_the_std_is_that_of_the_stream(parts: dict, family: str) -> None:
    spec = model(family=family, **parts)
    decoder = build(spec, seed=3).model
    row = torch.arange(0, 2048).reshape(1, -1)
    streams = []
    decoder.layers[0].register_forward_pre_hook(lambda _, args: streams.append(args[0]))
    with torch.no_grad():
        decoder(row)
    assert streams[0].std().item() == pytest.approx(shortcut_std(spec), rel=0.02)


def test_small_outside_gpt_has_a_large_shortcut_and_says_so() -> None:
    spec = model(init="small")
    assert shortcut_std(spec) == pytest.approx(math.sqrt(2 / 5))
    assert "init: small starts the embedding at std 0.632, a large shortcut" in remark(spec)
    assert not remark(model(init={"preset": "small", "embed_std": math.sqrt(2 / 320)}))
    assert not remark(model(init="normal"))


def test_scaled_on_top_of_a_large_embedding_says_so() -> None:
    spec = parse_model({"size": {**SIZE, "hidden": 1024}, "init": "small", "embed": "scaled"})
    assert "so the stream starts at 20.2" in remark(spec)
    assert not remark(model(init="small", embed="scaled", family="gpt"))
