"""Initial parameters against the reference's statistics, and properties of every architecture."""

import itertools
import json
import math
import re
from collections import defaultdict
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from canonical_names import canonical_parameters
from cases import tables
from gate_activations import ALL_ACTIVATIONS, SOFTSIGN
from gate_placements import spread, two_layers
from golden_networks import GOLDEN, model_of
from learned_factors import open_factors

from gpas_cli.extensions.layers.blocks import Removed, own_blocks
from gpas_cli.model.init import initialise
from gpas_cli.model.layers import _MLP, GpasGate, norm_slot
from gpas_cli.model.llama import Llama, build
from gpas_cli.model.stream import stream_statistics
from gpas_cli.spec.equation import equations
from gpas_cli.spec.gate import _SITES, ACTIVATIONS, Gate, activation
from gpas_cli.spec.model import _PRESETS, FAMILIES, SIZES, Model
from gpas_cli.spec.norm import SCHEMES, Norm
from gpas_cli.spec.parse_cell import cell_from, parse_model

STATISTICS = json.loads((GOLDEN / "init_stats.json").read_text())["std_hidden256_layers8_ffn688_vocab2000"]
SIZE = {"hidden": 256, "ffn": 688, "heads": 4, "layers": 8, "vocab": 2000}
SIGMAS = 5  # of the sampling error of two independent draws: one network in a thousand would fail at 4
NAMES = tables("model/cases.yaml")["every_parameter_is_initialised_like_the_references"]


def reference_name(name: str, sandwich: bool) -> str:
    """Return the reference's group of a canonical name, e.g. `layers.*.self_attn.q_proj`."""
    slot = name.split(".", 2)[2] if name.startswith("layers.") else name
    ffn_pre = "pre_feedforward_layernorm" if sandwich else "post_attention_layernorm"
    named = {**NAMES, "norm.ffn_pre": ffn_pre}[slot]
    return f"layers.*.{named}" if name.startswith("layers.") else named


def groups(name: str) -> dict[str, list[torch.Tensor]]:
    """Return the initial parameters of an architecture by the reference's groups, first layer first."""
    values = model_of(name.removeprefix("scale_")).to_mapping()
    gate = values["gate"] and {**values["gate"], "init": 0}
    # "normal" also where the scheme is DeepNorm with a gate: experiments.yaml says so for table2.
    init = "scaled" if name.startswith("scale_") else "deepnorm" if name == "deeppost" else "normal"
    model = parse_model({**values, "size": SIZE, "gate": gate, "init": init})
    found = defaultdict(list)
    for key, parameter in canonical_parameters(build(model, seed=42)).items():
        found[reference_name(key, "sandwich" in name)].append(parameter.detach().double())
    return found


# In its scale_post_pre the reference was run with no Post-LN layer. Gates change DeepNorm's values alone.
NAMED = [name for name in STATISTICS if not re.match("scale_post_pre|(post|sandwich|lns).*_gpas", name)]


@pytest.mark.parametrize("name", NAMED)
def test_every_parameter_is_initialised_like_the_references(name: str) -> None:
    ours = groups(name)
    assert ours.keys() == STATISTICS[name].keys()
    for group, statistics in STATISTICS[name].items():
        if statistics["std"] == 0:
            expected = (
                statistics["mean"] if isinstance(statistics["mean"], list) else [statistics["mean"]] * len(ours[group])
            )
            for parameter, value in zip(ours[group], expected, strict=True):
                torch.testing.assert_close(parameter, torch.full_like(parameter, value), rtol=2e-6, atol=0)
            continue
        values = torch.cat([parameter.flatten() for parameter in ours[group]])
        error = SIGMAS / math.sqrt(len(values))
        assert values.std().item() == pytest.approx(statistics["std"], rel=error), group
        assert values.mean().item() == pytest.approx(
            statistics["mean"], abs=error * math.sqrt(2) * statistics["std"]
        ), group


def test_deepnorm_with_gpas_takes_either_initialisation() -> None:
    """With a gate, the reference's code omits DeepNorm's initialisation; the paper does not. Both can be set."""
    plain = {"size": SIZE, "norm": "deepnorm"}
    deepnorm, gated, reference = (
        build(parse_model({**plain, **more})).state_dict()
        for more in ({}, {"gate": "gpas"}, {"gate": "gpas", "init": "normal"})
    )
    pre = build(parse_model({"size": SIZE})).state_dict()
    for name in (name for name in pre if "_proj" in name or "embed" in name or "head" in name):
        assert torch.equal(gated[name], deepnorm[name]), name
        assert torch.equal(reference[name], pre[name]), name
    assert deepnorm["model.layers.3.self_attn.v_proj.weight"].std().item() == pytest.approx(64**-0.25 / 16, rel=0.01)


@pytest.mark.parametrize("preset", _PRESETS)
def test_presets(preset: str) -> None:
    """hidden 64, ffn 96, 4 layers: standard deviations of q, v, o, gate, down and the head."""
    size = {"hidden": 64, "ffn": 96, "heads": 2, "layers": 4, "vocab": 300}
    small = math.sqrt(2 / (5 * 64))
    depth = math.sqrt(8)
    gain = 32**-0.25
    square, oblong = math.sqrt(1 / 64), math.sqrt(2 / 160)
    expected = {
        "normal": (0.02, 0.02, 0.02, 0.02, 0.02, 0.02),
        "scaled": (0.02, 0.02, 0.02 / depth, 0.02, 0.02 / depth, 0.02),
        "small": (small, small, small / depth, small, small / depth, small),
        "xavier": (square, square, square, oblong, oblong, 0.02),
        "deepnorm": (square, gain * square, gain * square, gain * oblong, gain * oblong, 0.02),
        "deepnorm-inverted": (square, square / gain, square / gain, oblong / gain, oblong / gain, 0.02),
    }[preset]
    parameters = canonical_parameters(build(parse_model({"size": size, "init": preset})))
    for name, std in zip(("attn.q", "attn.v", "attn.o", "mlp.gate", "mlp.down"), expected, strict=False):
        stacked = torch.stack([parameters[f"layers.{i}.{name}"] for i in range(4)])
        assert stacked.std().item() == pytest.approx(std, rel=0.03), name
    assert parameters["lm_head"].std().item() == pytest.approx(expected[-1], rel=0.03)


@pytest.mark.parametrize("tied", [True, False])
def test_xavier_everywhere_has_no_matrix_with_another_std(tied: bool) -> None:
    init = {"preset": "xavier", "everywhere": True}
    network = build(parse_model({"size": SIZE, "family": {"like": "gpt", "tied": tied, "context": 512}, "init": init}))
    for name, parameter in network.named_parameters():
        if parameter.dim() == 2:
            assert parameter.std().item() == pytest.approx(math.sqrt(2 / sum(parameter.shape)), rel=0.02), name
        elif name.endswith("bias"):
            assert not parameter.any(), name


@pytest.mark.parametrize(("std", "zero"), [(0.02, True), (math.sqrt(0.4), False), (1.0, True)])
def test_the_embedding(std: float, zero: bool) -> None:
    init = {"embed_std": std, "zero_last_row": zero}
    network = build(parse_model({"size": {**SIZE, "layers": 1}, "init": init}))
    table = network.model.embed_tokens.weight
    assert table[:-1].std().item() == pytest.approx(std, rel=0.01)
    assert (table[-1].abs().max().item() == 0) == zero
    network(torch.tensor([[1999, 3, 1999]])).sum().backward()
    assert (table.grad[-1].abs().max().item() == 0) == zero


def test_a_parameter_without_a_rule_is_an_error() -> None:
    model = build(parse_model({"size": {**SIZE, "layers": 1}}))
    model.extra = torch.nn.Linear(2, 2)
    with pytest.raises(LookupError, match=r"no initialisation rule matches extra\.weight"):
        initialise(model, model.spec, seed=1)


TINY = {"hidden": 8, "ffn": 12, "heads": 2, "layers": 2, "vocab": 11}
TOKENS = torch.arange(10).reshape(2, 5)
SHARES = ("layer", "sublayer")
OPEN = 0.2  # alpha of a gate that takes something away


def network(scheme: str, gate: object = None, size: dict = TINY, **kwargs: object) -> Llama:
    # Matrices large enough that every part of the network matters.
    model = parse_model({"size": size, "norm": two_layers(scheme), "gate": gate, "init": {"std": 0.4}})
    return open_factors(build(model, **kwargs))


def gradients(model: Llama) -> dict[str, torch.Tensor]:
    model.zero_grad()
    F.cross_entropy(model(TOKENS)[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten()).backward()
    return {name: p.grad for name, p in model.named_parameters()}


def absorbed(model: Model, layer: int, last: bool) -> bool:
    """Return whether a norm directly follows the gate of a sub-layer, so that only its eps makes a difference."""
    slot = model.gate_slots(layer)[last]
    if slot == "sum" and model.wiring(layer).parts[last].out_norm:
        return True
    return last and layer == model.size.layers and slot in ("sum", "out")


def useless(model: Model) -> set[str]:
    """Return the gates without any effect, which are exceptions."""
    found = set[str]()
    for layer in range(1, model.size.layers + 1):
        attention, feed_forward = absorbed(model, layer, last=False), absorbed(model, layer, last=True)
        if model.gate.share == "layer":
            found |= {f"model.layers.{layer - 1}.gate.alpha"} if attention and feed_forward else set()
        else:
            found |= {f"model.layers.{layer - 1}.attn_gate.alpha"} if attention else set()
            found |= {f"model.layers.{layer - 1}.mlp_gate.alpha"} if feed_forward else set()
    return found


VARIANTS = [*((act, True) for act in ACTIVATIONS), (SOFTSIGN, False)]


@pytest.mark.parametrize(("scheme", "site", "variant", "share"), spread(VARIANTS, SHARES))
def test_placements_train_and_are_plain_at_zero(scheme: str, site: str, variant: tuple[str, bool], share: str) -> None:
    act, stop = variant
    gate = {"site": site, "share": share, "init": OPEN, "activation": act, "stop_gradient": stop}
    model = network(scheme, gate, dtype=torch.float64)
    exceptions = useless(model.spec)
    # Leaky ReLU's slope is 1 above 0, all others' at least 0.6: a gradient below 1e-5 is the eps of a norm.
    dead = {name for name, grad in gradients(model).items() if not grad.abs().max() > 1e-5}
    # Without norms in the layers the stream is small, and the eps of the final norm is more.
    assert dead == exceptions or (scheme in ("rezero", "skipinit") and dead < exceptions)
    for module in model.gates():
        module.alpha.data.zero_()
    with torch.no_grad():
        assert torch.equal(model(TOKENS), network(scheme, dtype=torch.float64)(TOKENS))


@pytest.mark.parametrize(("scheme", "share"), list(zip(SCHEMES, itertools.cycle(SHARES), strict=False)))
def test_a_fixed_gate_computes_the_same_without_a_parameter(scheme: str, share: str) -> None:
    gate = {"share": share, "init": [OPEN, -OPEN]}
    learnable, fixed = network(scheme, gate), network(scheme, {**gate, "learnable": False})
    assert torch.equal(learnable(TOKENS), fixed(TOKENS))
    kept = {name for name in canonical_parameters(learnable) if ".gate" not in name or "mlp.gate" in name}
    kept -= {name for name in kept if name.endswith("gate.mlp")}
    assert set(canonical_parameters(fixed)) == kept


@pytest.mark.parametrize(
    ("scheme", "share"),
    [pair for pair in zip(SCHEMES, itertools.cycle(SHARES), strict=False) if pair[0] != "value-residual"],
)
def test_states_travel_and_any_layer_can_be_removed(scheme: str, share: str) -> None:
    gate = {"share": share, "init": OPEN}
    one, other = network(scheme, gate, seed=1), network(scheme, gate, seed=2)
    assert not torch.equal(one(TOKENS), other(TOKENS))
    other.load_state_dict(one.state_dict())
    whole = one(TOKENS)
    assert torch.equal(whole, other(TOKENS))
    for layer in (1, 2):
        with own_blocks(one).without(Removed(layer)):
            rest = one(TOKENS)
        assert rest.isfinite().all()
        assert not torch.equal(rest, whole)
    assert torch.equal(one(TOKENS), whole)


@pytest.mark.parametrize(("number", "scheme"), list(enumerate(SCHEMES)))
def test_networks_have_one_key_exactly_if_they_have_one_equation(number: int, scheme: str) -> None:
    """Each setting of the other fields with some of the schemes: they are in keys and equations of their own."""
    optim = {"lr": 1e-3, "warmup": 1, "steps": 9}
    settings = itertools.product(ALL_ACTIVATIONS, (True, False), (True, False), SHARES)
    for act, stop, learnable, share in itertools.islice(settings, number, None, len(SCHEMES) - 1):
        gate = {"activation": act, "stop_gradient": stop, "learnable": learnable, "share": share, "init": OPEN}
        values = {"size": {**TINY, "vocab": 300}, "norm": two_layers(scheme), "data": "quickstart", "optim": optim}
        cells = [cell_from({**values, "gate": {**gate, "site": site}}) for site in _SITES]
        found = {(cell.key, json.dumps(equations(cell.model))) for cell in cells}
        assert len(found) == len({key for key, _ in found}) == len({text for _, text in found})


@pytest.mark.parametrize("stop", [True, False])
@pytest.mark.parametrize("act", ALL_ACTIVATIONS)
def test_the_jacobian_of_a_gate(act: str, stop: bool) -> None:
    """The identity with stop-gradient, 1 - act(alpha) times it without."""
    gate = next(network("pre", {"activation": act, "stop_gradient": stop, "init": 0.3}).gates()).double()
    assert gate.value().item() == pytest.approx(activation(act, gate.alpha.item())[0], rel=1e-14)
    jacobian = torch.autograd.functional.jacobian(gate, torch.randn(5, dtype=torch.float64))
    expected = torch.eye(5, dtype=torch.float64)
    if stop:
        assert torch.equal(jacobian, expected)
    else:
        torch.testing.assert_close(jacobian, (1 - gate.value()).detach() * expected, rtol=1e-14, atol=0)


def test_schemes_with_one_seed_share_their_matrices() -> None:
    alike = [scheme for scheme in SCHEMES if SCHEMES[scheme].init_preset == "normal"]
    states = {scheme: network(scheme, seed=5).state_dict() for scheme in alike}
    for state in states.values():
        for name in (n for n in state if "_proj" in n or "embed_tokens" in n or "head" in n):
            assert torch.equal(state[name], states["pre"][name]), name
    assert not torch.equal(states["pre"]["lm_head.weight"], network("pre", seed=6).state_dict()["lm_head.weight"])


COUNTS = tables("model/cases.yaml")["parameter_counts_are_the_references"]


def count(**values: object) -> int:
    return sum(p.numel() for p in build(parse_model(values), device="meta").parameters())


@pytest.mark.parametrize("size", COUNTS)
def test_parameter_counts_are_the_references(size: str) -> None:
    assert count(size=size) == COUNTS[size]
    assert count(size=size, gate="gpas") == COUNTS[size] + SIZES[size].layers


@pytest.mark.parametrize("scheme", SCHEMES)
def test_parameter_counts_of_schemes(scheme: str) -> None:
    shape = SIZES["9m"]
    vectors = {"sandwich": 2, "peri": 2, "layerscale": 2, "rezero": -2, "skipinit": -2, "hybridnorm": -1}
    numbers = {"rezero": 1, "skipinit": 2, "scalars": 4, "hybridnorm": 3 * shape.head_width}
    more = vectors.get(scheme, 0) * shape.layers * shape.hidden + (shape.hidden if scheme == "peri" else 0)
    more += numbers.get(scheme, 0) * shape.layers
    assert count(size="9m", norm=scheme) == COUNTS["9m"] + more
    assert count(size="9m", norm=scheme, gate="gpas") == COUNTS["9m"] + more + shape.layers


def test_the_probe_sees_the_stream_and_removes_its_hooks() -> None:
    model = network("pre", {"init": 0.3})
    with stream_statistics(model) as seen:
        model(TOKENS)
    embedded = model.model.embed_tokens(TOKENS)
    assert len(seen) == 3
    assert seen[0]["activation_variance"].item() == pytest.approx(
        embedded.var(-1, correction=0).mean().item(), rel=1e-6
    )
    model(TOKENS)
    assert len(seen) == 3
    assert [gate.value().item() for gate in model.gates()] == pytest.approx([activation("silu", 0.3)[0]] * 2)


@pytest.mark.parametrize("bias", [False, True])
def test_swiglu_saves_only_its_two_halves_and_has_every_derivative(bias: bool) -> None:
    torch.manual_seed(0)
    size = parse_model({"size": {"hidden": 4, "ffn": 3, "heads": 1, "layers": 1, "vocab": 10}}).size
    mlp = _MLP(size, replace(FAMILIES["llama"], bias=bias)).double()
    x = torch.randn(1, 2, 4, dtype=torch.float64, requires_grad=True)

    def plain(x: torch.Tensor, *_parameters: torch.Tensor) -> torch.Tensor:
        return mlp.down_proj(F.silu(mlp.gate_proj(x)) * mlp.up_proj(x))  # type: ignore[no-any-return]

    def ours(x: torch.Tensor, *_parameters: torch.Tensor) -> torch.Tensor:
        return mlp(x)  # type: ignore[no-any-return]

    inputs = (x, *mlp.parameters())
    kept = list[torch.Tensor]()
    d_y = torch.randn_like(x)
    for a, b in zip(*(torch.autograd.grad(f(*inputs), inputs, d_y) for f in (plain, ours)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=0)
    assert torch.autograd.gradgradcheck(ours, inputs)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        mlp(x)
    assert sum(t.shape == (1, 2, size.ffn) for t in kept) == 2


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_rmsnorm_saves_only_its_input_and_has_every_derivative(scale: float) -> None:
    torch.manual_seed(0)
    norm = norm_slot(Norm(scale=scale), 6, 1e-6).double()
    torch.nn.init.normal_(norm.weight)
    inputs = (torch.randn(2, 3, 6, dtype=torch.float64, requires_grad=True), norm.weight)
    kept = list[torch.Tensor]()

    def plain(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * (weight * scale)

    d_y = torch.randn(2, 3, 6, dtype=torch.float64)
    ours, theirs = (torch.autograd.grad(y, inputs, d_y) for y in (norm(inputs[0]), plain(*inputs)))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-15)
    assert torch.autograd.gradgradcheck(lambda x, _weight: norm(x), inputs)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        norm(inputs[0])
    assert [t.shape for t in kept if t.numel() > 6] == [(2, 3, 6)]


def test_a_small_share_is_not_rounded_away_under_autocast() -> None:
    gate = GpasGate(Gate(activation="identity"), 0.0)
    torch.nn.init.constant_(gate.alpha, 2.0**-12)
    x = torch.ones(3, dtype=torch.bfloat16)
    assert torch.equal(gate(x), torch.full((3,), 1 - 2.0**-12))
    assert gate.to(torch.bfloat16)(x).dtype == torch.bfloat16
