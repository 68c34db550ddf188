"""muP and CompleteP: their factors against a table of the papers, one network at the base, and refusals."""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cases import cases

from gpas_cli.errors import InvalidExperiments
from gpas_cli.model.init import standard_deviations
from gpas_cli.model.llama import Llama, build
from gpas_cli.spec.equation import description
from gpas_cli.spec.gate import _SITES
from gpas_cli.spec.norm import SCHEMES
from gpas_cli.spec.optim import Optim
from gpas_cli.spec.parametrisation import Parametrisation
from gpas_cli.spec.parse_cell import cell_from, parse_model
from gpas_cli.train.optim import make_optimizer, set_learning_rate

BASE, BASE_LAYERS = 16, 4
TOKENS = torch.randint(36, (4, 13), generator=torch.Generator().manual_seed(2))
MUP = {"like": "mup", "base_hidden": BASE}
COMPLETEP = {"like": "completep", "base_hidden": BASE, "base_layers": BASE_LAYERS}
RECIPE = Optim(lr=1e-2, warmup=0, steps=9, weight_decay=0.1, eps=1e-6)


def size(width: float = 1, depth: float = 1) -> dict[str, object]:
    hidden, ffn = round(width * BASE), round(width * 24)
    return {"hidden": hidden, "ffn": ffn, "heads": hidden // 8, "layers": round(depth * BASE_LAYERS), "vocab": 37}


def settings(network: Llama, recipe: Optim = RECIPE) -> dict[str, tuple[float, float, float]]:
    """Return the learning rate, eps and weight decay of every parameter, over those of the recipe."""
    optimizer = make_optimizer(network, recipe)
    set_learning_rate(optimizer, recipe.lr)
    names = {parameter: name for name, parameter in network.named_parameters()}
    return {
        names[p]: (group["lr"] / recipe.lr, group["eps"] / recipe.eps, group["weight_decay"] / recipe.weight_decay)
        for group in optimizer.param_groups
        for p in group["params"]
    }


# Dey et al. 2025, Table 1, whose column "muP" is Table 8 of Yang et al. 2022 with decay and eps, for m = 4, n = 8 and
# alpha = 1/2: rate, eps, weight decay. The last four rows are this package's.
TABLE = {
    r"embed_(tokens|positions)\.weight$": {"mup": (1, 1 / 4, 1), "completep": (1, 1 / 4, 1)},
    r"^model\.norm\.": {"mup": (1, 1 / 4, 1), "completep": (1, 1 / 4, 1)},
    r"^lm_head\.": {"mup": (1, 1 / 4, 1), "completep": (1, 1 / 4, 1)},
    r"layers.*_proj\.weight$": {"mup": (1 / 4, 1 / 4, 4), "completep": (1 / 4 * 8**-0.5, 1 / 4 * 8**-0.5, 4)},
    r"layers.*_proj\.bias$": {"mup": (1, 1 / 4, 1), "completep": (8**-0.5, 1 / 4 * 8**-0.5, 1)},
    r"(_layernorm|_branch_norm|[qk]_norm)\.": {"mup": (1, 1 / 4, 1), "completep": (8**-0.5, 1 / 4 * 8**-0.5, 1)},
    r"_out_norm\.": {"mup": (1, 1 / 4, 1), "completep": (1 / 8, 1 / 4, 1)},
    r"(attn|mlp)_factor\.": {"mup": (1, 1, 1), "completep": (8**-0.5, 8**-0.5, 1)},
    r"skip_factor\.": {"mup": (1, 1, 1), "completep": (1 / 8, 1, 1)},
    r"gate\.alpha$": {"mup": (1, 1, 1), "completep": (1 / 8, 1, 1)},
}


@pytest.mark.parametrize("kind", ["mup", "completep"])
@pytest.mark.parametrize("scheme", ["pre", "post", "sandwich", "scalars"])
def test_the_factors_are_those_of_the_papers(scheme: str, kind: str) -> None:
    how = {"mup": MUP, "completep": {**COMPLETEP, "base_layers": 1, "alpha": 0.5}}[kind]
    for family in ({"like": "gpt", "tied": False}, {"like": "llama", "qk_norm": "head"}):
        values = {"size": size(4, 2), "norm": scheme, "gate": "gpas", "family": family, "parametrisation": how}
        for name, found in settings(build(parse_model(values))).items():
            rows = [row[kind] for pattern, row in TABLE.items() if re.search(pattern, name)]
            assert [found] == [pytest.approx(row, rel=1e-12) for row in rows], name


def test_lns_counts_layers_as_the_base_does() -> None:
    model = parse_model({"size": size(1, 8), "norm": "lns", "parametrisation": COMPLETEP})
    starts = [model.wiring(layer).in_norm.init for layer in (1, 8, 9, 16, 17, 24, 25, 32)]
    assert starts == pytest.approx([1, 1, 2**-0.5, 2**-0.5, 3**-0.5, 3**-0.5, 0.5, 0.5])


def test_a_gate_inside_a_branch_is_a_parameter_of_the_branch() -> None:
    model = parse_model({"size": size(4, 8), "gate": {"site": "after-module"}, "parametrisation": COMPLETEP})
    found = {value for name, value in settings(build(model)).items() if name.endswith("alpha")}
    assert found == {(1, 1 / 8, 1)}


@pytest.mark.parametrize("preset", ["normal", "scaled", "small", "xavier", "deepnorm"])
def test_initial_values_are_the_bases_and_those_of_hidden_matrices_shrink(preset: str) -> None:
    for family in ("llama", "gpt"):
        parts = {"init": {"preset": preset, "everywhere": preset == "xavier"}, "family": family, "embed": "scaled"}
        base = build(parse_model({"size": size(1, 1 / 2), **parts}), device="meta")
        deep = {**COMPLETEP, "base_layers": BASE_LAYERS // 2}
        for m, n, how in ((4, 1 / 2, MUP), (1, 2, deep), (4, 2, deep)):
            ours = build(parse_model({"size": size(m, n), **parts, "parametrisation": how}), device="meta")
            expected = standard_deviations(base, base.spec)
            for name, std in standard_deviations(ours, ours.spec).items():
                known = re.sub(r"layers\.\d+", "layers.0", name)
                shrunk = m**-0.5 if name.endswith("_proj.weight") else 1
                assert std == pytest.approx(shrunk * expected[known], rel=1e-12), name
            assert ours.model.embed_stages.scale.factor == base.model.embed_stages.scale.factor


def test_logits_queries_and_branches() -> None:
    wide = build(parse_model({"size": size(4, 8), "parametrisation": {**COMPLETEP, "base_heads": 8, "alpha": 0.5}}))
    assert wide.model.norm.scale == 1 / 4
    assert wide.spec.wiring(3).branch == 8**-0.5
    attention = wide.model.layers[0].self_attn
    # In 1/d, with the constant of the base: its heads have 2 features, those here 8.
    assert attention.query_factor * 8**-0.5 == pytest.approx(2**0.5 / 8)
    x = torch.randn(1, 5, 64, generator=torch.Generator().manual_seed(1))
    standard = build(parse_model({"size": size(4, 8)})).model.layers[0].self_attn
    standard.load_state_dict(attention.state_dict())
    assert torch.equal(attention.projected(x, None)[0], standard.projected(x, None)[0] * attention.query_factor)


@pytest.mark.parametrize(("base_heads", "factor"), [(0, 1), (2, 1), (1, 2**0.5), (4, 2**-0.5)])
def test_heads_of_another_width_scale_with_the_network(base_heads: int, factor: float) -> None:
    """A base of hidden 16 has, as 64 and 8 heads of 12, 24 features in all its heads."""
    how = {"like": "mup", "base_hidden": 16, "base_heads": base_heads}
    network = build(parse_model({"size": {**size(4, 2), "heads": 8, "head_dim": 12}, "parametrisation": how}))
    attention = network.model.layers[0].self_attn
    assert attention.query_factor == pytest.approx(factor)
    assert (*attention.q_proj.weight.shape, *attention.o_proj.weight.shape) == (96, 64, 64, 96)
    for matrix in (attention.q_proj, attention.o_proj):
        assert matrix.weight.std().item() == pytest.approx(network.spec.init.std / 2, rel=0.1)


@pytest.mark.parametrize(
    ("scheme", "skip", "branch"),
    [("deepnorm", (2 * BASE_LAYERS) ** 0.25, 1 / 8), ("scaled-branches", 1.0, 1 / 8 / (2 * BASE_LAYERS) ** 0.5)],
)
def test_constants_of_a_scheme_are_those_of_the_bases_depth(scheme: str, skip: float, branch: float) -> None:
    wiring = parse_model({"size": size(1, 8), "norm": scheme, "parametrisation": COMPLETEP}).wiring(32)
    assert (wiring.skip, wiring.branch) == (pytest.approx(skip), pytest.approx(branch))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_at_the_base_all_parametrisations_are_one_network_in_the_same_bits(scheme: str) -> None:
    values = {"size": size(), "norm": scheme, "gate": "gpas"}
    plain = parse_model(values)
    assert (
        parse_model({**values, "parametrisation": MUP})
        == parse_model({**values, "parametrisation": COMPLETEP})
        == plain
    )
    how = Parametrisation(kind="completep", base_hidden=BASE, base_heads=2, base_layers=BASE_LAYERS)
    networks = [build(model) for model in (plain, replace(plain, parametrisation=how))]
    for network in networks:
        optimizer = make_optimizer(network, RECIPE)
        set_learning_rate(optimizer, RECIPE.lr)
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(network(TOKENS[:, :-1]).flatten(0, 1), TOKENS[:, 1:].flatten()).backward()
            optimizer.step()
    ours, theirs = (network.state_dict() for network in networks)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert not torch.equal(ours["model.norm.weight"], torch.ones(BASE))


@pytest.mark.parametrize("site", _SITES)
def test_a_network_of_either_kind_trains_every_parameter(site: str) -> None:
    network = build(
        parse_model({"size": size(2, 2), "norm": "sandwich", "gate": {"site": site}, "parametrisation": COMPLETEP})
    )
    F.cross_entropy(network(TOKENS[:, :-1]).flatten(0, 1), TOKENS[:, 1:].flatten()).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in network.parameters())


def cell(**values: Any) -> Any:
    recipe = {"lr": 1e-3, "warmup": 1, "steps": 9, **values.pop("optim", {})}
    return cell_from({"size": {**size(2, 2), "vocab": 512}, "data": "quickstart", "optim": recipe, **values})


def test_keys_and_the_recorded_cell() -> None:
    one, two = (cell(parametrisation=how) for how in (MUP, COMPLETEP))
    assert len({cell().key, one.key, two.key, cell(parametrisation={**COMPLETEP, "alpha": 0.5}).key}) == 4
    assert cell(parametrisation="standard").key == cell().key
    assert "parametrisation" not in cell().to_mapping()
    assert all(cell_from(made.to_mapping()) == made for made in (one, two))
    # The same network in other words.
    assert cell(parametrisation={**MUP, "base_heads": 2}).key == one.key
    assert cell(parametrisation={**COMPLETEP, "base_layers": 8}).key == one.key
    assert cell(parametrisation={**MUP, "base_heads": 1}).key != one.key


@cases("model/cases.yaml")
def test_what_is_not_defined_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidExperiments, match=message):
        cell(**values)


def test_muon_keeps_the_rate_of_matrices_and_scales_adams_part() -> None:
    made = cell(parametrisation=MUP, optim={"optimizer": "muon", "matrix_scale": "original"})
    groups = make_optimizer(build(made.model), made.optim).param_groups
    assert [(group["rate_factor"], group.get("eps")) for group in groups] == [(1, None), (1, made.optim.eps / 2)]


def test_explain_prints_the_factors() -> None:
    made = cell(parametrisation=COMPLETEP)
    assert description(made.model)[-3:] == [
        "completep: width 2 x 16, depth 2 x 4",
        "matrices of layers: std x 0.7071, with Adam rate x 0.5, weight decay x 2, eps x 0.25; "
        "norms and biases: rate x 1",
        "logits x 0.5, queries x 1, branches x 0.5",
    ]
