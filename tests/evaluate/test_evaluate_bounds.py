"""Spike No More's bounds: the equations as printed, above measured norms, and a small Figure 2."""

import itertools
import math
from collections.abc import Sequence
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from gpas_cli.errors import GpasError
from gpas_cli.evaluate.bounds import (
    _SLOPES,
    AttentionSigmas,
    FeedForwardSigmas,
    Surroundings,
    spectral_norm,
    stream_gradients,
    sublayer_inputs,
)
from gpas_cli.evaluate.theory import LayerBounds, Sample, bounds_of
from gpas_cli.model.layers import FFN_ACTIVATIONS
from gpas_cli.model.llama import Llama, build
from gpas_cli.spec.model import _PRESETS
from gpas_cli.spec.norm import SCHEMES
from gpas_cli.spec.parse_cell import parse_model

SIZE = {"hidden": 32, "ffn": 80, "heads": 2, "layers": 4, "vocab": 61}
FIGURE_2 = {"hidden": 64, "ffn": 256, "heads": 2, "layers": 4, "vocab": 61}


def network(**parts: object) -> Llama:
    return build(parse_model({"size": SIZE, **parts}), dtype=torch.float64)


def sample(length: int = 10) -> Sample:
    row = torch.randint(0, 60, (1, length + 1), generator=torch.Generator().manual_seed(3))
    return Sample(row[:, :-1], row[:, 1:], "random")


@cache
def figure(embed: str = "plain", preset: str = "small") -> tuple[LayerBounds, ...]:
    init = {"preset": preset, "embed_std": math.sqrt(2 / (5 * 64))}
    model = build(parse_model({"size": FIGURE_2, "embed": embed, "init": init}), dtype=torch.float64)
    return tuple(bounds_of(model, sample(12)))


def linear(layers: Sequence[LayerBounds]) -> list[float]:
    return [layer.feed_forward.identity for layer in layers]


def bound(module: float, sigma_x: float) -> float:
    """Return the bound of x + f(N(x)) for that of the Jacobian of f."""
    return Surroundings(in_norm=1 / sigma_x).bound(module)


def test_equation_15_at_1700_million_parameters() -> None:
    """Section 4: sigma = sqrt(2/(5d)), W_2 divided by sqrt(2N), and the stream as short, or sqrt(2/5), or 1."""
    sigma = math.sqrt(2 / (5 * 2304))
    ffn = FeedForwardSigmas(2304, 9216, sigma, sigma / math.sqrt(48))
    assert ffn.c_ffn == pytest.approx(48**2 * 9)
    assert bound(ffn.identity(), sigma) == pytest.approx(1 + sigma / math.sqrt(48) * 20736)
    assert bound(ffn.identity(), math.sqrt(2 / 5)) == pytest.approx(1.8216, abs=1e-4)
    assert bound(ffn.identity(), 1.0) == pytest.approx(1.5196, abs=1e-4)
    assert ffn.jacobian() == ffn.identity()


def test_equations_44_and_20_as_printed() -> None:
    ffn = FeedForwardSigmas(16, 64, 0.1, 0.2, sigma_v=0.3)
    assert bound(ffn.jacobian(), 0.5) == pytest.approx(1 + 0.006 / 0.5 * 2.1 * 144 * math.sqrt(32 * math.log(64)))
    attention = AttentionSigmas(16, 4, 25, 0.1, 0.1, 0.1, 0.2)
    heads = 4 * ((5 + 2 + 1 / 5) * 1e-3 * math.sqrt(16**3 * 4) + 0.1 * (4 + 2))
    assert attention.heads_jacobian() == pytest.approx(heads)
    assert bound(attention.jacobian(), 0.5) == pytest.approx(1 + 0.2 / 0.5 * 2 * 4 * heads)


def test_equation_29_has_the_slope_of_the_activation() -> None:
    ffn = FeedForwardSigmas(16, 64, 0.1, 0.2, slope=1.1)
    assert bound(ffn.jacobian(), 0.5) == pytest.approx(1 + 1.1 * 0.02 / 0.5 * 144)


@pytest.mark.parametrize("ffn", _SLOPES)
def test_slopes_are_the_largest_of_the_activations(ffn: str) -> None:
    x = torch.linspace(-8, 8, 160_001, dtype=torch.float64, requires_grad=True)
    FFN_ACTIVATIONS[ffn](x).sum().backward()
    assert _SLOPES[ffn] == pytest.approx(x.grad.max().item(), abs=0.002)


@pytest.mark.parametrize("ffn", _SLOPES)
def test_the_bound_of_an_activation_is_above_the_measured_norm(ffn: str) -> None:
    model = network(family={"ffn": ffn}, init="small")
    for layer in bounds_of(model, sample()):
        part = layer.feed_forward
        assert part.bound - 1 == pytest.approx(_SLOPES[ffn] * (part.identity - 1))
        assert not part.swiglu
        assert part.worst >= part.bound >= part.norm


@pytest.mark.parametrize("norm", ["pre", "sandwich"])
def test_lanczos_is_the_largest_singular_value_that_autograd_sees(norm: str) -> None:
    model = network(norm=norm, gate={"init": 0.4})
    for attention, feed_forward, x, middle in itertools.islice(sublayer_inputs(model, sample(2).tokens), 1):
        for sublayer, stream in ((attention, x), (feed_forward, middle)):
            jacobian = torch.autograd.functional.jacobian(sublayer.apply, stream).reshape(64, 64)
            exact = torch.linalg.matrix_norm(jacobian, 2).item()
            assert spectral_norm(sublayer.apply, stream, steps=64) == pytest.approx(exact, rel=1e-9)
            assert exact * 0.99 <= spectral_norm(sublayer.apply, stream) <= exact * (1 + 1e-9)


def test_lanczos_of_the_identity_ends_after_a_step() -> None:
    assert spectral_norm(lambda x: 3 * x, torch.ones(1, 2, 4, dtype=torch.float64)) == pytest.approx(3, rel=1e-12)


SEQUENTIAL = [norm for norm in SCHEMES if norm != "b2t"]
CELLS = [*((norm, "normal") for norm in SEQUENTIAL), *(("pre", preset) for preset in _PRESETS), ("sandwich", "xavier")]


@pytest.mark.parametrize(("norm", "preset"), CELLS)
def test_bounds_are_above_the_measured_norms(norm: str, preset: str) -> None:
    gate = {"init": 0.3, "stop_gradient": preset != "small"}
    for layer in bounds_of(network(norm=norm, gate=gate, init=preset), sample()):
        for part in (layer.attention, layer.feed_forward):
            assert part.worst >= part.norm, (layer.layer, part)
            assert part.worst >= part.bound
            if layer.equation:
                assert part.bound >= part.norm
        assert layer.gradient_ratio <= 1.01 * layer.attention.norm * layer.feed_forward.norm
        assert layer.equation == (norm in ("pre", "lns") or (norm == "mix" and layer.layer > 1)) or preset == "small"


class Linear(nn.Module):
    """The feed-forward network of section 3.1: the identity as activation."""

    def __init__(self, like: nn.Module):
        super().__init__()
        self.up_proj, self.down_proj = like.gate_proj, like.down_proj

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.up_proj(x))


@pytest.mark.parametrize("embed", ["plain", "scaled", "layernorm"])
def test_equation_15_is_above_a_network_without_activation(embed: str) -> None:
    model = build(
        parse_model({"size": FIGURE_2, "embed": embed, "init": {"preset": "small", "embed_std": 0.08}}),
        dtype=torch.float64,
    )
    for layer in model.model.layers:
        layer.mlp = Linear(layer.mlp)
    assert model.spec.family.ffn == "swiglu"  # without a gate its own slope is 1, that of the identity
    for layer in bounds_of(model, sample()):
        assert not layer.feed_forward.swiglu
        assert layer.feed_forward.bound == layer.feed_forward.identity >= layer.feed_forward.norm


def test_figure_2_only_a_large_shortcut_and_small_sublayers_keep_the_bound_small() -> None:
    vanilla, scaled, embed_ln = linear(figure()), linear(figure("scaled")), linear(figure("layernorm"))
    xavier = linear(figure(preset="xavier"))
    assert max(scaled) < 3
    assert max(embed_ln) < 2.5
    assert vanilla[0] > 8
    assert vanilla == sorted(vanilla, reverse=True)  # the shallow layers have the shortest stream
    assert all(x > max(scaled[0], embed_ln[0]) for x in vanilla)
    # Without 1/sqrt(2N), and with a stream that attention has already lengthened, still above the two.
    assert min(xavier[:2]) > 1.5 * scaled[0]
    assert figure(preset="xavier")[0].attention.bound > 5 * figure()[0].attention.bound
    assert all(b < s for b, s in zip(embed_ln, scaled, strict=True))


def test_figure_2_holds_for_the_measured_norms_too() -> None:
    vanilla, scaled = figure()[0], figure("scaled")[0]
    assert vanilla.feed_forward.norm > 2 * scaled.feed_forward.norm
    assert vanilla.gradient_ratio > 1.5 > 1.1 > scaled.gradient_ratio


def test_the_bound_of_lns_falls_with_depth() -> None:
    plain, scaled = (list(bounds_of(network(norm=norm), sample(4))) for norm in ("pre", "lns"))
    for layer, (p, s) in enumerate(zip(plain, scaled, strict=True), start=1):
        ratio = (s.feed_forward.bound - 1) * s.feed_forward.stream_std
        assert ratio == pytest.approx((p.feed_forward.bound - 1) * p.feed_forward.stream_std / layer, rel=1e-3)


def test_a_layer_that_is_not_the_composition_of_its_sublayers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    layer = model.model.layers[1]
    whole = layer.forward
    monkeypatch.setattr(layer, "forward", lambda x, places: x + whole(x, places))
    with pytest.raises(GpasError, match="attention followed by a feed-forward network"):
        list(bounds_of(model, sample()))


def test_gradients_of_the_stream_are_autograds() -> None:
    model = network(norm="mix", gate="gpas")
    text = sample()
    gradients = stream_gradients(model, text.tokens, text.targets)
    assert len(gradients) == 5
    model.zero_grad()
    nn.functional.cross_entropy(model(text.tokens).flatten(0, 1), text.targets.flatten()).backward()
    embedding = torch.zeros_like(model.model.embed_tokens.weight)
    embedding.index_add_(0, text.tokens.flatten(), gradients[0][0])
    assert torch.allclose(embedding, model.model.embed_tokens.weight.grad, rtol=1e-12, atol=0)
