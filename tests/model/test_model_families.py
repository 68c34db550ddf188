"""The parts of GPT and BERT and the further schemes, each against a second way to compute it."""

import itertools
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from canonical_names import canonical_parameters
from cases import tables
from gate_placements import two_layers
from saving import save
from torch import Tensor, nn

from gpas_cli.errors import InvalidExperiments
from gpas_cli.extensions.layers.blocks import Removed, own_blocks
from gpas_cli.model.attention import Visible
from gpas_cli.model.layers import RMSNorm
from gpas_cli.model.llama import Block, Llama, build
from gpas_cli.model.rope import rotate
from gpas_cli.spec.cost import parameters
from gpas_cli.spec.equation import description
from gpas_cli.spec.model import FAMILIES, FFNS, SIZES
from gpas_cli.spec.norm import SCHEMES
from gpas_cli.spec.optim import Optim
from gpas_cli.spec.parse_cell import cell_from, parse_model
from gpas_cli.train.checkpoint import Position, load
from gpas_cli.train.optim import make_adam

SIZE = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 4, "vocab": 19}
TOKENS = torch.arange(14).reshape(2, 7)


def network(**values: object) -> Llama:
    """Return a float64 network with matrices and biases large enough for every part to matter."""
    model = build(parse_model({"size": SIZE, "init": {"std": 0.3}, **values}), dtype=torch.float64)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "bias" in name or "norm" in name or "factor" in name:
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return model


def torch_layer(block: Block, *, pre: bool) -> nn.TransformerEncoderLayer:
    """PyTorch's own layer with the parameters of ours."""
    theirs = nn.TransformerEncoderLayer(
        16, 2, 24, dropout=0.0, activation=lambda x: F.gelu(x, approximate="tanh"), norm_first=pre, batch_first=True,
        layer_norm_eps=1e-6, dtype=torch.float64,
    )  # fmt: skip
    attention, mlp = block.self_attn, block.mlp
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    norms = (
        (block.input_layernorm, block.post_attention_layernorm) if pre else (block.attn_out_norm, block.mlp_out_norm)
    )
    state = {
        "self_attn.in_proj_weight": torch.cat([p.weight for p in projections]),
        "self_attn.in_proj_bias": torch.cat([p.bias for p in projections]),
    }
    parts = {"self_attn.out_proj": attention.o_proj, "linear1": mlp.up_proj, "linear2": mlp.down_proj}
    for name, part in {**parts, "norm1": norms[0], "norm2": norms[1]}.items():
        state |= {f"{name}.weight": part.weight, f"{name}.bias": part.bias}
    theirs.load_state_dict(state)
    return theirs


@pytest.mark.parametrize("scheme", ["pre", "post"])
def test_gpt_is_pytorchs_transformer(scheme: str) -> None:
    ours = network(norm=scheme, family="gpt")
    table = ours.model.embed_tokens.weight
    x = table[TOKENS] + ours.model.embed_positions.weight[:7]
    mask = nn.Transformer.generate_square_subsequent_mask(7, dtype=torch.float64)
    for block in ours.model.layers:
        x = torch_layer(block, pre=scheme == "pre")(x, src_mask=mask, is_causal=True)
    logits = ours.model.norm(x) @ table.T
    torch.testing.assert_close(ours(TOKENS), logits, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(("family", "gate"), [*((family, None) for family in FAMILIES), ("llama", {"init": 0.4})])
def test_b2t_adds_the_layers_input_before_its_last_norm(family: str, gate: object) -> None:
    """Takase et al. (2023): LN(x_in + x_ffn + FFN(x_ffn)), x_ffn = LN(x_in + Attn(x_in)); no gate is on x_in."""
    ours = network(norm="b2t", family=family, gate=gate)
    block = ours.model.layers[1]
    x = torch.randn(2, 7, 16, dtype=torch.float64)
    positions = ours.model.positions(x)
    kept = 1 - block.gate.value() if gate else 1
    middle = block.attn_out_norm(kept * x + block.self_attn(x, positions))
    expected = block.mlp_out_norm(x + kept * middle + block.mlp(middle))
    torch.testing.assert_close(block(x, positions), expected, rtol=1e-12, atol=1e-14)


def test_peri_is_sandwich_behind_an_embedding_norm_with_one_key() -> None:
    recipe = {"data": "quickstart", "optim": {"lr": 1e-3, "warmup": 1, "steps": 9}, "size": "quickstart"}
    peri, sandwich = (cell_from({**recipe, **v}) for v in ({"norm": "peri"}, {"norm": "sandwich", "embed": "rmsnorm"}))
    assert (peri.key, peri.model.norm.title) == (sandwich.key, "Peri-LN")
    assert peri.key != cell_from({**recipe, "norm": "sandwich"}).key
    assert torch.equal(build(peri.model)(TOKENS), build(sandwich.model)(TOKENS))
    with pytest.raises(InvalidExperiments, match="write norm: sandwich"):
        cell_from({**recipe, "norm": "peri", "embed": "plain"})


@pytest.mark.parametrize("family", ["llama", "gpt"])
@pytest.mark.parametrize("width", [8, 16])
def test_qk_norm_is_that_of_vit_22b(family: str, width: int) -> None:
    """Dehghani et al. (2023), section 3.2: softmax(LN(x W_q) LN(x W_k)^T / sqrt(h)); one head at a time, by hand."""
    ours = network(family={"like": family, "qk_norm": "head" if width == 8 else "width"})
    attention = ours.model.layers[1].self_attn
    x = torch.randn(2, 7, 16, dtype=torch.float64)
    positions = ours.model.positions(x)

    def normed(norm: nn.Module, part: torch.Tensor) -> torch.Tensor:
        centre = part.mean(-1, keepdim=True) if family == "gpt" else 0
        unit = (part - centre) / ((part - centre).square().mean(-1, keepdim=True) + 1e-6).sqrt()
        return unit * norm.weight + (norm.bias if family == "gpt" else 0)

    q, k, v = (part(x) for part in (attention.q_proj, attention.k_proj, attention.v_proj))
    if width == 16:
        q, k = normed(attention.q_norm, q), normed(attention.k_norm, k)
    heads = []
    for head in (slice(0, 8), slice(8, 16)):
        own_q, own_k = q[..., head], k[..., head]
        if width == 8:
            own_q, own_k = normed(attention.q_norm, own_q), normed(attention.k_norm, own_k)
        if positions.tables is not None:
            own_q, own_k = rotate(own_q, positions.tables), rotate(own_k, positions.tables)
        scores = own_q @ own_k.mT / 8**0.5
        causal = torch.ones(7, 7, dtype=torch.bool).tril()
        heads.append(scores.masked_fill(~causal, -torch.inf).softmax(-1) @ v[..., head])
    expected = attention.o_proj(torch.cat(heads, -1))
    torch.testing.assert_close(attention(x, positions), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("ffn", [ffn for ffn in FFNS if ffn != "swiglu"])
def test_two_matrix_feed_forward_networks(ffn: str) -> None:
    mlp = network(family={"ffn": ffn}).model.layers[0].mlp
    x = torch.randn(3, 16, dtype=torch.float64)
    act = {"gelu": lambda v: F.gelu(v, approximate="tanh"), "relu": torch.relu, "silu": F.silu}[ffn]
    torch.testing.assert_close(mlp(x), act(x @ mlp.up_proj.weight.T) @ mlp.down_proj.weight.T)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_norm_returns_the_dtype_of_its_input(dtype: torch.dtype) -> None:
    """As in mixed precision, where the stream may be bfloat16 and the weight float32."""
    assert RMSNorm(8, 1e-6)(torch.ones(2, 8, dtype=dtype)).dtype == dtype


def test_layernorm_in_lns_as_a_constant_scales_weight_and_bias() -> None:
    ours = network(norm={"scheme": "lns", "apply": "scale"}, family={"norm": "layernorm"})
    norm = ours.model.layers[3].input_layernorm
    x = torch.randn(3, 16, dtype=torch.float64)
    plain = F.layer_norm(x, (16,), norm.weight, norm.bias, 1e-6)
    torch.testing.assert_close(norm(x), plain / 2)


def test_dyt_in_place_of_every_norm() -> None:
    ours = network(norm={"scheme": "lns", "apply": "scale"}, family={"norm": "dyt"})
    first = build(parse_model({"size": SIZE, "family": {"norm": "dyt"}})).model.norm
    assert [first.slope.item(), first.weight.min().item(), first.bias.abs().max().item()] == [0.5, 1.0, 0.0]
    norm = ours.model.layers[3].input_layernorm
    x = 3 * torch.randn(3, 16, dtype=torch.float64)
    torch.testing.assert_close(norm(x), (norm.weight * torch.tanh(norm.slope * x) + norm.bias) / 2)
    assert "N(x) = w tanh(s x) + b" in " ".join(description(ours.spec))
    count = sum(p.numel() for p in ours.parameters())
    plain = sum(p.numel() for p in network(norm="lns").parameters())
    assert count - plain == (2 * 4 + 1) * (16 + 1)


def test_a_gate_that_a_norm_would_undo_has_an_effect_before_dyt() -> None:
    where = {"size": SIZE, "norm": "post", "gate": {"site": "after-sublayer"}}
    with pytest.raises(InvalidExperiments, match="removes any scale"):
        parse_model(where)
    assert parse_model({**where, "family": {"norm": "dyt"}})


NORMS = [{"norm": "layernorm"}, {"norm": "dyt"}]  # parts of the wiring of a scheme, unlike the others
PARTS = [
    *(name for name, family in FAMILIES.items() if not family.encoder), {"ffn": "gelu"},
    {"positions": "learned", "context": 7}, {"bias": True}, {"tied": True}, {"qk_norm": "head"}, {"qk_norm": "width"},
]  # fmt: skip


@pytest.mark.parametrize(("number", "scheme"), list(enumerate(SCHEMES)))
def test_every_scheme_and_family_trains_every_parameter(number: int, scheme: str) -> None:
    for family, gate in zip([*NORMS, *PARTS[number % 4 :: 4]], itertools.cycle(("gpas", None)), strict=False):
        if scheme == "hybridnorm" and "qk_norm" in family:  # refused
            continue
        ours = network(size={**SIZE, "layers": 2}, norm=two_layers(scheme), family=family, gate=gate)
        F.cross_entropy(ours(TOKENS)[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten()).backward()
        named = canonical_parameters(ours)
        assert len(named) == len(list(ours.parameters()))
        # Softmax ignores what is added to all its inputs: the gradient of a key's bias is 0 but for rounding.
        dead = {name for name, p in named.items() if p.grad.abs().max() < 1e-12}
        assert {name for name in dead if not name.endswith(("attn.k_bias", "attn.k_norm_bias"))} == set(), family
        whole = ours(TOKENS)
        if ours.spec.joined_layers:
            continue
        with own_blocks(ours).without(Removed(2)):
            assert not torch.equal(ours(TOKENS), whole)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_initialisation_of_gpt(scheme: str) -> None:
    size = {**SIZE, "hidden": 64, "ffn": 256, "vocab": 500}
    model = parse_model({"size": size, "norm": scheme, "family": "gpt", "init": "small"})
    named = canonical_parameters(build(model))
    small = (2 / 320) ** 0.5
    for name, parameter in named.items():
        slot = name.rpartition(".")[2]
        if slot.endswith("_bias"):
            assert parameter.abs().max() == 0, name
        elif slot in ("embed", "positions", "q", "k", "v", "o", "up", "down"):
            std = small / 8**0.5 if slot in ("o", "down") else small
            assert parameter.std().item() == pytest.approx(std, rel=0.06), name
    assert "lm_head" not in named
    assert named["embed"][-1].abs().max() > 0


def test_parameter_counts_of_gpt() -> None:
    """V d + C d + L (4 d^2 + 2 d f + (4 d + f + d) + 4 d) + 2 d: Spike No More's 350M is one with a tied head."""
    shape = {"hidden": 1024, "ffn": 4096, "heads": 16, "layers": 24, "vocab": 50257}
    d, f = 1024, 4096
    expected = (50257 + 2048) * d + 24 * (4 * d * d + 2 * d * f + 5 * d + f + 4 * d) + 2 * d
    count = sum(p.numel() for p in build(parse_model({"size": shape, "family": "gpt"}), device="meta").parameters())
    assert count == expected == 355_871_744
    parts = {"norm": 24 * 2 * d + d, "bias": 24 * (5 * d + 2 * f), "tied": -50257 * d, "qk_norm": 24 * 2 * 64}
    for part, added in parts.items():
        family = {part: "head" if part == "qk_norm" else getattr(FAMILIES["gpt"], part)}
        llama = build(parse_model({"size": shape, "family": family}), device="meta")
        plain = build(parse_model({"size": shape}), device="meta")
        extra = sum(p.numel() for p in llama.parameters()) - sum(p.numel() for p in plain.parameters())
        assert extra == added, part


def test_a_tied_network_is_saved_in_a_checkpoint(tmp_path: Path) -> None:
    model = parse_model({"size": SIZE, "family": "gpt", "gate": "gpas"})
    one, other = build(model, seed=1), build(model, seed=2)
    optimizer = make_adam(one, Optim(lr=1e-3, warmup=0, steps=2))
    optimizer.param_groups[0]["lr"] = 1e-2
    one(TOKENS).sum().backward()
    optimizer.step()
    path = save(tmp_path, "k", one, optimizer, Position(step=1))
    load(path, "k", other, None)
    assert torch.equal(one(TOKENS), other(TOKENS))


def test_learned_positions_allow_any_head_dimension_and_no_longer_row() -> None:
    assert parse_model({"size": {"like": "quickstart", "heads": 32}, "family": {"positions": "learned"}})
    with pytest.raises(ValueError, match="but the network has 6 learned positions"):
        network(family={"positions": "learned", "context": 6})(TOKENS)


def test_families_do_not_change_the_published_sizes() -> None:
    for size in SIZES:
        assert parse_model({"size": size}).to_mapping(for_key=True).keys() == {"size", "norm", "gate", "embed", "init"}


BERT = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 3, "vocab": 30, "eps": 1e-12}
BERT_TOKENS = torch.arange(24).reshape(3, 8)
LENGTHS = torch.tensor([8, 3, 5])


def bert() -> Llama:
    """Return a float64 BERT whose last norm and final norm start as usual: one after the other is the same as one."""
    ours = build(parse_model({"size": BERT, "family": "bert", "norm": "post"}), dtype=torch.float64)
    generator = torch.Generator().manual_seed(3)
    usual = {id(own) for module in (ours.model.norm, ours.model.layers[-1].mlp_out_norm) for own in module.parameters()}
    with torch.no_grad():
        for parameter in ours.parameters():
            if id(parameter) not in usual:
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return ours


def copied(ours: Llama) -> nn.Module:
    """Return the network of transformers with the same parameters."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=24,
        hidden_act="gelu_new", max_position_embeddings=512, type_vocab_size=2, layer_norm_eps=1e-12,
        attn_implementation="eager",
    )  # fmt: skip
    theirs = BertForMaskedLM(config).double().eval()
    known = tables("model/bert.yaml")
    names = {name: ours.get_submodule(own) for name, own in known["network"].items()}
    for number, block in enumerate(ours.model.blocks()):
        layer = f"bert.encoder.layer.{number}"
        names |= {f"{layer}.{name}": block.get_submodule(own) for name, own in known["layer"].items()}
    state = {f"{name}.{part}": own for name, module in names.items() for part, own in module.state_dict().items()}
    missing, unexpected = theirs.load_state_dict(state, strict=False)
    assert not unexpected
    assert {name.partition(".")[0] for name in missing} <= {"cls"}  # its head is tied, and has a bias of 0
    return theirs


@torch.no_grad()
def test_bert_is_that_of_transformers() -> None:
    ours = bert()
    theirs = copied(ours)
    real = torch.arange(8) < LENGTHS[:, None]
    expected: Tensor = theirs(BERT_TOKENS, attention_mask=real.long()).logits
    found = ours(BERT_TOKENS, visible=Visible.of(LENGTHS, 8, later=False))
    torch.testing.assert_close(found[real], expected[real], rtol=1e-7, atol=1e-8)
    whole = ours(BERT_TOKENS, visible=Visible())
    torch.testing.assert_close(whole, theirs(BERT_TOKENS).logits, rtol=1e-7, atol=1e-8)
    assert not torch.allclose(ours(BERT_TOKENS)[:, 0], whole[:, 0])


def test_the_published_sizes_have_the_published_number_of_parameters() -> None:
    """110M and 340M (Devlin et al. 2018), 1.6B (RaPTr)."""
    optim = {"lr": 1e-4, "warmup": 1, "steps": 10}
    data = {"like": "c4", "tokenizer": "bert.json"}
    for size, family, most, least in (
        ("bert-base", "bert", 111e6, 107e6),
        ("bert-large", "bert", 340e6, 332e6),
        ("ul2", "llama", 1.61e9, 1.58e9),
    ):
        cell = cell_from({"size": size, "family": family, "data": data, "optim": optim})
        assert least < parameters(cell) < most


def test_the_equation_shows_the_parts_of_bert() -> None:
    lines = description(parse_model({"size": BERT, "family": "bert", "norm": "post"}))
    assert lines[0].split(" x ")[1] == "<- N(E[t] + P + T)"
    assert any("the head reads N(gelu(W x)) of the final states" in line for line in lines)
