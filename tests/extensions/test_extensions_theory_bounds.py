"""Spike No More's bounds: the equations as printed, above measured norms, and a small Figure 2."""

import itertools
import math
from collections.abc import Sequence
from functools import cache

import pytest
import torch
from learned_factors import open_factors
from torch import Tensor, nn

from gpas_cli.errors import GpasError
from gpas_cli.extensions.theory import initialisation
from gpas_cli.extensions.theory.bounds import (
    _SLOPES,
    AttentionSigmas,
    FeedForwardSigmas,
    Surroundings,
    spectral_norm,
    stream_gradients,
    sublayer_inputs,
)
from gpas_cli.extensions.theory.depth_bounds import _constant, depth_bound, stage_gap
from gpas_cli.extensions.theory.initialisation import LayerBounds, Sample, bounds_of
from gpas_cli.model.layers import FFN_ACTIVATIONS
from gpas_cli.model.llama import Llama, build
from gpas_cli.spec.depth import ActiveLayers
from gpas_cli.spec.model import _PRESETS
from gpas_cli.spec.norm import SCHEMES
from gpas_cli.spec.parse_cell import parse_model

SIZE = {"hidden": 32, "ffn": 80, "heads": 2, "layers": 4, "vocab": 61}
FIGURE_2 = {"hidden": 64, "ffn": 256, "heads": 2, "layers": 4, "vocab": 61}


def network(**parts: object) -> Llama:
    return open_factors(build(parse_model({"size": SIZE, **parts}), dtype=torch.float64))


def sample(length: int = 10) -> Sample:
    row = torch.randint(0, 60, (1, length + 1), generator=torch.Generator().manual_seed(3))
    return Sample(row[:, :-1], row[:, 1:], "random")


@cache
def figure(embed: str = "plain", preset: str = "small") -> tuple[LayerBounds, ...]:
    init = {"preset": preset, "embed_std": math.sqrt(2 / (5 * 64))}
    model = build(parse_model({"size": FIGURE_2, "embed": embed, "init": init}), dtype=torch.float64)
    (first,) = itertools.islice(bounds_of(model, sample(12)), 1)
    with pytest.MonkeyPatch.context() as patch:  # of the layers after it only the bounds are needed
        patch.setattr(initialisation, "spectral_norm", lambda *_: 0.0)
        return (first, *itertools.islice(bounds_of(model, sample(12)), 1, None))


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
    part = next(iter(bounds_of(network(family={"ffn": ffn}, init="small"), sample()))).feed_forward
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


# Layers pass on nothing else.
ONE_STREAM = [norm for norm in SCHEMES if norm != "value-residual"]
SEQUENTIAL = [norm for norm in ONE_STREAM if norm not in ("b2t", "hybridnorm")]  # whose queries and keys have norms
CELLS = [
    *((norm, "normal") for norm in SEQUENTIAL),
    *(("pre", preset) for preset in _PRESETS if preset != "normal"),
    ("sandwich", "xavier"),
]


@pytest.mark.parametrize(("norm", "preset"), CELLS)
def test_bounds_are_above_the_measured_norms(norm: str, preset: str) -> None:
    gate = {"init": 0.3, "stop_gradient": preset != "small"}
    # The first layer of Mix-LN is Post-LN and the second is Pre-LN; LNS scales by the layer. In others all are alike.
    layers = 2 if norm in ("mix", "lns") else 1
    for layer in itertools.islice(bounds_of(network(norm=norm, gate=gate, init=preset), sample()), layers):
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


@pytest.mark.parametrize("embed", ["plain", "layernorm"])
def test_equation_15_is_above_a_network_without_activation(embed: str) -> None:
    model = build(
        parse_model({"size": FIGURE_2, "embed": embed, "init": {"preset": "small", "embed_std": 0.08}}),
        dtype=torch.float64,
    )
    for layer in model.model.layers:
        layer.mlp = Linear(layer.mlp)
    assert model.spec.family.ffn == "swiglu"  # without a gate its own slope is 1, that of the identity
    for layer in itertools.islice(bounds_of(model, sample()), 2):
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


def test_the_bound_of_lns_falls_with_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(initialisation, "spectral_norm", lambda *_: 0.0)  # slow, and no part of the bound
    plain, scaled = (list(itertools.islice(bounds_of(network(norm=norm), sample(4)), 2)) for norm in ("pre", "lns"))
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


def through_all_but_the_last(model: Llama, tokens: Tensor) -> float:
    """Return log10 of |dy/dx_1|, from the whole Jacobian."""
    x = model.model.embed_tokens(tokens).detach()
    places = model.model.positions(x)

    def layers(x: Tensor) -> Tensor:
        for block in model.model.blocks()[:-1]:
            x = block(x, places)
        return x

    jacobian = torch.autograd.functional.jacobian(layers, x).reshape(x.numel(), x.numel())
    return math.log10(torch.linalg.matrix_norm(jacobian, 2).item())


@pytest.mark.parametrize("norm", ["pre", {"scheme": "lns", "apply": "scale"}])
def test_bounds_of_the_curse_of_depth_as_printed(norm: object) -> None:
    """Equations 25, 36, 37 and 35, or 54 and 55, with one sigma for all matrices."""
    model = network(norm=norm, init={"embed_std": 0.5})
    sigma, d, ffn, h, s, d_head = 0.05, 32, 80, 2, 10, 16
    with torch.no_grad():
        for name, parameter in model.model.layers.named_parameters():
            if "proj" in name:
                parameter.copy_(parameter.sign() * sigma)
    found = depth_bound(model, sample().tokens)
    root = 2 * d * h * (math.sqrt(s) + 2 + 1 / math.sqrt(s))
    a = sigma**2 / (math.sqrt(d) + math.sqrt(ffn)) ** 2
    a += root * sigma**2 * (d * math.sqrt(d_head) + 1 + math.sqrt(d_head / d))
    b = root * sigma**4 * d * math.sqrt(d_head)
    products = [1.0, 1.0]
    square = found.layers[0].stream_std ** 2
    for layer in found.layers:
        scale = 1 if norm == "pre" else layer.layer
        x, middle = layer.stream_std * scale, (layer.middle_std if norm == "pre" else layer.stream_std) * scale
        first = 1 + sigma**2 / (middle * (math.sqrt(d) + math.sqrt(ffn)) ** 2)
        second = 1 + root * sigma**2 / x * (sigma**2 * d * math.sqrt(d_head) + 1 + math.sqrt(d_head / d))
        assert (layer.feed_forward, layer.attention) == pytest.approx((first, second), rel=1e-9)
        assert (layer.a, layer.b, layer.joined) == pytest.approx((a, b, 1 + a / x + b / x**2), rel=1e-6)
        assert layer.grown_std == pytest.approx(math.sqrt(square))
        square *= 1 + 1 / math.sqrt(scale * square)
        if layer is not found.layers[-1]:
            products = [products[0] * first * second, products[1] * layer.joined]
    assert [found.log10_bound, found.log10_joined] == pytest.approx([math.log10(one) for one in products])


@pytest.mark.parametrize(("norm", "embed_std"), [("pre", 0.6), ("lns", 0.02)])
def test_the_curse_of_depths_products_hold_only_by_the_room_that_attention_leaves(norm: str, embed_std: float) -> None:
    model = network(norm=norm, init={"std": 0.08, "embed_std": embed_std})
    for layer in model.model.layers:
        layer.mlp = Linear(layer.mlp)
    tokens = sample(4).tokens
    found = depth_bound(model, tokens)
    assert found.log10_joined > found.log10_bound > through_all_but_the_last(model, tokens) > 0
    with torch.no_grad():
        for name, parameter in model.model.layers.named_parameters():
            if "self_attn" in name:
                parameter.zero_()
    found = depth_bound(model, tokens)
    measured = through_all_but_the_last(model, tokens)
    assert measured > 20 * found.log10_bound  # (30) divides where (29) multiplies
    c_ffn = (math.sqrt(32) + math.sqrt(80)) ** 2
    mended = [
        1 + (one.feed_forward - 1) * c_ffn**2 * (math.sqrt(one.layer) if norm == "lns" else 1) for one in found.layers
    ]
    assert math.log10(math.prod(mended[:-1])) > measured


def test_the_curse_of_depth_has_no_bound_for_other_schemes() -> None:
    for norm in SCHEMES.keys() - {"pre", "lns"}:
        assert depth_bound(network(norm=norm), sample().tokens) is None, norm
    assert depth_bound(network(gate={"stop_gradient": False}), sample().tokens) is None


@pytest.mark.parametrize(
    ("norm", "family"),
    [
        *((norm, {}) for norm in ONE_STREAM),
        ("pre", {"norm": "layernorm", "tied": True}),
        ("mix", {"head_transform": True}),
    ],
)
def test_theorem_4_2_of_raptr(norm: str, family: dict[str, object]) -> None:
    model, text = network(norm=norm, family=family, init={"std": 0.2}), sample()

    def loss(kept: Sequence[int]) -> float:
        logits = model(text.tokens, active=ActiveLayers(tuple(kept), (1.0,) * len(kept)))
        return nn.functional.cross_entropy(logits.flatten(0, 1), text.targets.flatten()).item()

    found = stage_gap(model, text.tokens, text.targets)
    rises = [loss([kept for kept in range(1, 5) if kept != layer]) - loss([1, 2, 3, 4]) for layer in range(1, 5)]
    assert found.rise == pytest.approx(rises, abs=1e-12)
    assert found.gap == pytest.approx(abs(sum(rises)) / 4)
    if "head_transform" in family:
        assert found.constant is found.bound is None
        return
    assert found.bound >= found.gap > 0


@pytest.mark.parametrize(
    ("kind", "size"), [("rmsnorm", 1e-4), ("rmsnorm", 3.0), ("layernorm", 0.5), ("layernorm", 3.0)]
)
def test_the_loss_of_a_head_changes_by_at_most_c_times_the_change_of_its_input(kind: str, size: float) -> None:
    """Condition (1) of theorem G.1, with absolute values."""
    model = network(family={"norm": kind})
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(1, 500, 32, generator=generator, dtype=torch.float64)
    change = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    change *= size / change.norm(dim=-1, keepdim=True)
    change[:, :9] = -(1 + 1e-9) * x[:, :9] / x[:, :9].norm(dim=-1, keepdim=True)  # the opposite direction
    targets = torch.randint(0, 60, (500,), generator=generator)

    def losses(x: Tensor) -> Tensor:
        logits = model.lm_head(model.model.norm(x)).flatten(0, 1)
        return nn.functional.cross_entropy(logits, targets, reduction="none")

    constant = _constant(model, x)
    moved = (losses(x + change * x.norm(dim=-1, keepdim=True)) - losses(x)).abs()
    assert (moved <= constant * change.norm(dim=-1).flatten()).all()
    assert moved.max() > 0.001 * constant * min(size, 2)
