"""The encoder and decoder against torch.nn.Transformer; every scheme and family reads with a cache as without."""

import copy
import itertools
from itertools import cycle, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from gate_placements import FEW, two_layers
from moved_networks import moved_network
from torch import Tensor, nn

from gpas_cli.data.loader import IGNORED
from gpas_cli.model.attention import Visible
from gpas_cli.model.decoding import CachedReader
from gpas_cli.model.dropout import Dropout
from gpas_cli.model.layers import GpasGate
from gpas_cli.model.llama import Llama, build
from gpas_cli.model.seq2seq import DecoderBlock, Stacks, Translator, Writer
from gpas_cli.spec.model import FAMILIES
from gpas_cli.spec.norm import SCHEMES
from gpas_cli.spec.parse_cell import parse_model
from gpas_cli.train.loss import DeviceRows, summed_loss
from gpas_cli.train.precision import Precision

REFUSED = ("value-residual", "hybridnorm")  # with an encoder
SIZE = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 4, "vocab": 40, "eps": 1e-5}
SOURCES = [[5, 6, 7, 8, 3], [9, 3], [11, 12, 13, 3]]
TARGETS = [[20, 21], [22, 23, 24, 25], [26]]


def network(**values: Any) -> Translator:
    """Return a small network in float64 whose parameters are all random."""
    if values.get("norm") == "mix":  # so that its stacks of two layers have a Post-LN layer each
        values["norm"] = {"scheme": "mix", "post_fraction": 0.5}
    made = build(parse_model({"size": SIZE, "family": "encoder-decoder", **values}), dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return made


def padded(rows: list[list[int]]) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])


def states(made: Translator) -> Tensor:
    """Return the decoder's states for all rows, (rows, time, hidden)."""
    decoder = made.model
    memory, seen = decoder.encode(padded(SOURCES), torch.tensor([len(row) for row in SOURCES]))
    return decoder.decode(padded([[3, *row] for row in TARGETS]), memory, seen)


def of_torch(made: Translator, *, norm_first: bool) -> nn.Transformer:
    """Return torch's network with the same parameters."""
    depths = made.spec.encoder_layers, made.spec.decoder_layers
    theirs = nn.Transformer(
        SIZE["hidden"], SIZE["heads"], *depths, SIZE["ffn"], dropout=0.0, norm_first=norm_first, batch_first=True,
        dtype=torch.float64,
    )  # fmt: skip
    kind = "input_layernorm", "cross_layernorm", "post_attention_layernorm"
    if not norm_first:
        kind = "attn_out_norm", "cross_out_norm", "mlp_out_norm"

    def copy_attention(ours: nn.Module, other: nn.MultiheadAttention) -> None:
        parts = [getattr(ours, name) for name in ("q_proj", "k_proj", "v_proj")]
        other.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        other.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        other.out_proj.load_state_dict(ours.o_proj.state_dict())  # type: ignore[union-attr]

    def copy_norm(ours: nn.Module, other: nn.Module) -> None:
        other.weight.copy_(ours.weight)  # type: ignore[operator, union-attr]
        other.bias.copy_(ours.bias)  # type: ignore[operator, union-attr]

    with torch.no_grad():
        stacks = (*theirs.encoder.layers, *theirs.decoder.layers)
        for ours, other in zip(made.model.layers, stacks, strict=True):
            copy_attention(ours.self_attn, other.self_attn)
            other.linear1.load_state_dict(ours.mlp.up_proj.state_dict())
            other.linear2.load_state_dict(ours.mlp.down_proj.state_dict())
            names = kind if isinstance(ours, DecoderBlock) else (kind[0], kind[2])
            for number, name in enumerate(names, 1):
                copy_norm(getattr(ours, name), getattr(other, f"norm{number}"))
            if isinstance(ours, DecoderBlock):
                copy_attention(ours.cross_attn, other.multihead_attn)
        copy_norm(made.model.encoder_norm, theirs.encoder.norm)
        copy_norm(made.model.norm, theirs.decoder.norm)
    return theirs


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize("decoder_layers", [None, 1, 3])
@pytest.mark.parametrize(("norm", "norm_first"), [("pre", True), ("post", False)])
def test_it_equals_the_transformer_of_torch(norm: str, norm_first: bool, decoder_layers: int | None) -> None:
    made = network(norm=norm, size={**SIZE, "decoder_layers": decoder_layers})
    assert made.model.encoder_layers == 4 - (decoder_layers or 2)
    theirs = of_torch(made, norm_first=norm_first).eval()
    lengths = torch.tensor([len(row) for row in SOURCES])
    sources, targets = padded(SOURCES), padded([[3, *row] for row in TARGETS])
    embedded = [made.model.after_lookup(made.model.embed_tokens(rows), None) for rows in (sources, targets)]
    padding = torch.arange(sources.shape[1]) >= lengths[:, None]
    mask = nn.Transformer.generate_square_subsequent_mask(targets.shape[1], dtype=torch.float64)
    expected = theirs(
        *embedded, tgt_mask=mask, src_key_padding_mask=padding, memory_key_padding_mask=padding, tgt_is_causal=True
    )
    assert torch.allclose(states(made), expected, rtol=1e-10, atol=1e-12)


def test_sinusoids_are_those_of_the_paper_in_another_order() -> None:
    added = network().model.embed_positions(torch.zeros(1, 5, 16, dtype=torch.float64))  # type: ignore[misc]
    for t in range(5):
        for i in range(8):
            angle = t / 10_000 ** (2 * i / 16)
            assert added[0, t, i].item() == pytest.approx(np.sin(angle))
            assert added[0, t, 8 + i].item() == pytest.approx(np.cos(angle))


GATES = ("none", "gpas", {"share": "sublayer"})
READ = [norm for norm in SCHEMES if norm not in REFUSED]


@pytest.mark.parametrize(("norm", "gate"), list(zip(READ, cycle(GATES), strict=False)))
def test_every_scheme_and_gate_reads_packed_rows_as_it_reads_them_alone(norm: str, gate: Any) -> None:
    """The loss and the gradients are the same for a batch, for its rows, and for sources and targets apart."""
    embed = "rmsnorm" if norm == "peri" else "scaled"
    made = network(norm=norm, gate=gate, embed=embed)
    prefix = np.array([len(row) for row in SOURCES])
    width = max(len(a) + len(b) for a, b in zip(SOURCES, TARGETS, strict=True))
    inputs = np.zeros((3, width), np.int64)
    targets = np.full((3, width), IGNORED)
    for number, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        whole = [*source, *target, 1]
        inputs[number, : len(whole) - 1] = whole[:-1]
        targets[number, len(source) - 1 : len(whole) - 1] = whole[len(source) :]
    precision = Precision("fp32", torch.device("cpu"))

    def loss(rows: slice) -> Tensor:
        part = DeviceRows.of(inputs[rows], targets[rows], torch.device("cpu"), prefix[rows])
        return summed_loss(made, part, precision)

    together = loss(slice(0, 3))
    together.backward()  # type: ignore[no-untyped-call]
    gradients = {name: p.grad.clone() for name, p in made.named_parameters() if p.grad is not None}
    assert gradients.keys() == dict(made.named_parameters()).keys()
    made.zero_grad()
    alone = torch.stack([loss(slice(n, n + 1)) for n in range(3)]).sum()
    alone.backward()  # type: ignore[no-untyped-call]
    assert together.item() == pytest.approx(alone.item(), rel=1e-9)
    for name, parameter in made.named_parameters():
        assert torch.allclose(gradients[name], parameter.grad, rtol=1e-6, atol=1e-9), name
    logits = made.forward(torch.tensor([[5, 6, 7, 8, 3, 20, 21]]), visible=Visible(None, torch.tensor([5]), (5, 5)))
    expected = nn.functional.linear(states(made)[0, :3], made.model.embed_tokens.weight)
    assert torch.allclose(logits[0, 4:], expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "learned"])
def test_a_writer_equals_reading_the_targets_again(positions: str) -> None:
    made = network(norm="b2t", gate="gpas", family={"like": "encoder-decoder", "positions": positions})
    decoder = made.model
    memory, seen = decoder.encode(padded(SOURCES), torch.tensor([len(row) for row in SOURCES]))
    writer = Writer(made, memory, seen, 8)
    rows = torch.full((3, 1), 3)
    logits = writer.next_logits(rows[:, 0])
    for step in range(4):
        again = decoder.decode(rows, memory, seen)[:, -1]
        assert torch.allclose(logits, nn.functional.linear(again, decoder.embed_tokens.weight), rtol=1e-9, atol=1e-10)
        new = torch.tensor([7 + step, 8, 9])
        rows = torch.cat((rows, new[:, None]), 1)
        logits = writer.next_logits(new)


def test_a_writer_continues_other_rows() -> None:
    made = network()
    memory, seen = made.model.encode(padded(SOURCES[:1] * 2), torch.tensor([5, 5]))
    writer = Writer(made, memory, seen, 8)
    writer.next_logits(torch.tensor([3, 3]))
    writer.next_logits(torch.tensor([7, 8]))
    found = writer.next_logits(torch.tensor([9, 10]), torch.tensor([1, 1]))
    again = made.model.decode(torch.tensor([[3, 8, 9], [3, 8, 10]]), memory, seen)[:, -1]
    assert torch.allclose(found, nn.functional.linear(again, made.model.embed_tokens.weight), rtol=1e-9, atol=1e-10)


def test_constants_of_deepnet() -> None:
    """Table 1 of Wang et al. 2022 for 18 and 18 layers, worked out by hand."""
    model = parse_model({"size": {**SIZE, "layers": 36}, "family": "encoder-decoder", "norm": "deepnorm"})
    assert model.wiring(1).skip == pytest.approx(1.99864, rel=1e-4)
    assert model.wiring(18).skip == model.wiring(1).skip
    assert model.wiring(19).skip == pytest.approx(2.71081, rel=1e-4)
    small = parse_model({"size": SIZE, "family": "encoder-decoder", "norm": "deepnorm"})
    made = build(small).model.layers
    encoder, decoder = made[0], made[3]
    bound = (2 / (16 + 16)) ** 0.5
    stds = [float(module.weight.detach().std()) for module in (encoder.self_attn.v_proj, decoder.cross_attn.v_proj)]  # type: ignore[union-attr]
    assert stds[0] == pytest.approx(0.87 * 2 ** (-5 / 16) * bound, rel=0.15)
    assert stds[1] == pytest.approx(24**-0.25 * bound, rel=0.15)


def test_constants_of_deepnet_for_stacks_of_different_depth() -> None:
    """Table 1 of Wang et al. 2022 for N = 12 and M = 6, worked out by hand; N = 6 and M = 6 is another network."""
    size = {**SIZE, "hidden": 64, "layers": 18, "decoder_layers": 6}
    model = parse_model({"size": size, "family": "encoder-decoder", "norm": "deepnorm"})
    assert [model.wiring(layer).skip for layer in (1, 12)] == [pytest.approx(0.81 * 124_416 ** (1 / 16))] * 2
    assert [model.wiring(layer).skip for layer in (13, 18)] == [pytest.approx(18**0.25)] * 2
    made = build(model).model.layers
    assert [isinstance(layer, DecoderBlock) for layer in made] == [False] * 12 + [True] * 6
    bound = (2 / (64 + 64)) ** 0.5
    encoder, decoder = made[11].self_attn.v_proj.weight, made[12].self_attn.v_proj.weight
    assert float(encoder.detach().std()) == pytest.approx(0.87 * 124_416 ** (-1 / 16) * bound, rel=0.05)
    assert float(decoder.detach().std()) == pytest.approx(72**-0.25 * bound, rel=0.05)


def test_outputs_are_scaled_by_the_depth_of_their_own_stack() -> None:
    size = {**SIZE, "hidden": 64, "layers": 10, "decoder_layers": 2}
    made = build(parse_model({"size": size, "family": "encoder-decoder", "norm": "pre", "init": "small"})).model.layers
    stds = [float(made[place].self_attn.o_proj.weight.detach().std()) for place in (7, 8)]
    assert stds == [pytest.approx((2 / (5 * 64)) ** 0.5 / (2 * depth) ** 0.5, rel=0.05) for depth in (8, 2)]


def test_dropout_keeps_the_same_elements_whatever_is_beside_them() -> None:
    """Masks follow the token's own place, so that rows apart have those of the rows together."""
    from gpas_cli.data.loader import Draw

    made = network(norm="pre")
    inputs = np.array([[5, 6, 3, 20, 21], [9, 3, 22, 23, 24]])
    targets = np.array([[IGNORED, IGNORED, 20, 21, 1], [IGNORED, 22, 23, 24, 1]])
    prefix = np.array([3, 2])
    precision, cpu, draw = Precision("fp32", torch.device("cpu")), torch.device("cpu"), Draw.dropout(1, 0)

    def loss(rows: slice) -> float:
        part = DeviceRows.of(inputs[rows], targets[rows], cpu, prefix[rows])
        return summed_loss(made, part.with_dropout(0.3, draw, range(2)[rows], 5), precision).item()

    assert loss(slice(0, 2)) == pytest.approx(loss(slice(0, 1)) + loss(slice(1, 2)), rel=1e-6)
    whole = summed_loss(made, DeviceRows.of(inputs, targets, cpu, prefix), precision)
    assert loss(slice(0, 2)) != pytest.approx(whole.item(), rel=1e-3)


def test_a_dropped_word_is_the_zero_vector_with_its_position() -> None:
    made = network(embed="scaled")
    tokens = torch.arange(38).reshape(2, 19)
    keys = torch.randint(-(2**31), 2**31 - 1, (2, 19), dtype=torch.int32, generator=torch.Generator().manual_seed(0))
    found = made.model._embedded(tokens, Dropout(0.0, keys, 0.4))
    whole = made.model._embedded(tokens, None)
    places = made.model.after_lookup(torch.zeros_like(whole), None)
    gone = (found == places).all(-1)
    assert 8 <= int(gone.sum()) <= 22
    assert torch.equal(found[~gone], whole[~gone])


def test_layers_of_both_stacks_share_nothing_and_have_a_gate_each() -> None:
    made = network(gate="gpas")
    assert isinstance(made.model, Stacks)
    assert sum(isinstance(module, GpasGate) for module in made.modules()) == 4
    assert [isinstance(layer, DecoderBlock) for layer in made.model.layers] == [False, False, True, True]
    assert all(a is not b for a, b in pairwise(made.model.layers))
    assert len(dict(copy.deepcopy(made).named_parameters())) == len(dict(made.named_parameters()))


DECODED = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 2, "vocab": 50}
PROMPTS = ((7, 3, 11, 29, 5, 41), (9,), (17, 2, 8), (1, 1, 30, 22))
NEXT = ((4, 12, 33, 20), (49, 0, 6, 18), (25, 5, 5, 31))  # tokens after the prompts, one step after another
CAPACITY = max(map(len, PROMPTS)) + len(NEXT)


@torch.no_grad()
def check(network: Llama) -> None:
    """Compare the logits after each row's last token, step by step, with those of each whole row by itself."""
    reader = CachedReader(network, len(PROMPTS), CAPACITY)
    rows = [[*prompt, *tokens] for prompt, *tokens in zip(PROMPTS, *NEXT, strict=True)]
    whole = [network(torch.tensor([row]))[0] for row in rows]
    for step, tokens in enumerate([PROMPTS, *([[token] for token in tokens] for tokens in NEXT)]):
        expected = torch.stack([row[len(prompt) - 1 + step] for row, prompt in zip(whole, PROMPTS, strict=True)])
        assert expected.std() > 1e-3  # not all the same
        torch.testing.assert_close(reader.next_logits(tokens), expected, rtol=1e-10, atol=1e-12)


@torch.no_grad()
def test_prompts_that_see_both_ways_before_a_continuation_that_does_not() -> None:
    """Prefixes of different lengths, some shorter than the prompt, as of a network trained on corrupted spans."""
    for norm in ("pre", "value-residual"):
        network = moved_network({"size": DECODED, "norm": norm})
        prefix = [5, 1, 3, 3]
        reader = CachedReader(network, len(PROMPTS), CAPACITY, prefix)
        rows = [list(prompt) for prompt in PROMPTS]
        found = reader.next_logits(PROMPTS)
        for tokens in NEXT:
            seen = [Visible.of(torch.tensor([n]), len(row), later=True) for n, row in zip(prefix, rows, strict=True)]
            expected = [network(torch.tensor([row]), visible=own)[0, -1] for row, own in zip(rows, seen, strict=True)]
            torch.testing.assert_close(found, torch.stack(expected), rtol=1e-10, atol=1e-12)
            assert not torch.allclose(found[0], network(torch.tensor([rows[0]]))[0, -1], rtol=1e-3)
            found = reader.next_logits([[token] for token in tokens])
            rows = [[*row, token] for row, token in zip(rows, tokens, strict=True)]


SHARED = [(*place, share) for place, share in zip(FEW, itertools.cycle(["layer", "sublayer"]), strict=False)]


@pytest.mark.parametrize(("norm", "site", "share"), SHARED)
def test_every_scheme_and_every_position_of_the_gate(norm: str, site: str, share: str) -> None:
    gate = {"init": [0.3, -0.2], "site": site, "share": share}
    check(moved_network({"size": DECODED, "norm": two_layers(norm), "gate": gate}))


PARTS = [
    *(name for name, family in FAMILIES.items() if not family.encoder),
    {"positions": "learned", "context": CAPACITY},
    {"qk_norm": "head"},
    {"qk_norm": "width"},
    {"bias": True, "tied": True},
    {"norm": "layernorm", "ffn": "relu", "qk_norm": "head"},
]


@pytest.mark.parametrize("family", PARTS, ids=str)
def test_every_family(family: object) -> None:
    for norm, embed in itertools.product(("pre", "post", "b2t"), ({}, {"stages": ["scale", "layernorm"]})):
        check(moved_network({"size": DECODED, "norm": norm, "family": family, "embed": embed}))


@pytest.mark.parametrize("kind", ["mup", "completep"])
def test_every_parametrisation(kind: str) -> None:
    how = {"kind": kind, "base_hidden": 8, **({"base_layers": 2} if kind == "completep" else {})}
    check(moved_network({"size": DECODED, "parametrisation": how, "init": {"std": 0.2}}))


def test_a_row_has_no_more_tokens_than_learned_positions() -> None:
    network = moved_network({"size": DECODED, "family": {"positions": "learned", "context": 5}})
    with pytest.raises(ValueError, match="6 tokens in a row, but the network has 5 learned positions"):
        CachedReader(network, 1, 6).next_logits([[1, 2]])
