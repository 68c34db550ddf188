"""The network of BERT beside that of transformers, attention both ways included."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gpas_cli.model.attention import Visible
from gpas_cli.model.llama import Llama, build
from gpas_cli.spec.cost import parameters
from gpas_cli.spec.equation import description
from gpas_cli.spec.parse_cell import cell_from, parse_model

SIZE = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 3, "vocab": 30, "eps": 1e-12}
TOKENS = torch.arange(24).reshape(3, 8)
LENGTHS = torch.tensor([8, 3, 5])


def bert() -> Llama:
    """Return a float64 BERT whose last norm and final norm start as usual: one after the other is the same as one."""
    ours = build(parse_model({"size": SIZE, "family": "bert", "norm": "post"}), dtype=torch.float64)
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
    names = {
        "bert.embeddings.word_embeddings": ours.model.embed_tokens,
        "bert.embeddings.position_embeddings": ours.model.embed_positions,
        "bert.embeddings.token_type_embeddings": ours.model.embed_types,
        "bert.embeddings.LayerNorm": ours.model.embed_norm,
        "cls.predictions.transform.dense": ours.head_transform.dense_proj,
        "cls.predictions.transform.LayerNorm": ours.head_transform.norm,
    }
    for number, block in enumerate(ours.model.blocks()):
        layer = f"bert.encoder.layer.{number}"
        names |= {
            f"{layer}.attention.self.query": block.self_attn.q_proj,
            f"{layer}.attention.self.key": block.self_attn.k_proj,
            f"{layer}.attention.self.value": block.self_attn.v_proj,
            f"{layer}.attention.output.dense": block.self_attn.o_proj,
            f"{layer}.attention.output.LayerNorm": block.attn_out_norm,
            f"{layer}.intermediate.dense": block.mlp.up_proj,
            f"{layer}.output.dense": block.mlp.down_proj,
            f"{layer}.output.LayerNorm": block.mlp_out_norm,
        }
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
    expected: Tensor = theirs(TOKENS, attention_mask=real.long()).logits
    found = ours(TOKENS, visible=Visible.of(LENGTHS, 8, later=False))
    torch.testing.assert_close(found[real], expected[real], rtol=1e-7, atol=1e-8)
    whole = ours(TOKENS, visible=Visible())
    torch.testing.assert_close(whole, theirs(TOKENS).logits, rtol=1e-7, atol=1e-8)
    assert not torch.allclose(ours(TOKENS)[:, 0], whole[:, 0])


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
    lines = description(parse_model({"size": SIZE, "family": "bert", "norm": "post"}))
    assert lines[0].split(" x ")[1] == "<- N(E[t] + P + T)"
    assert any("the head reads N(gelu(W x)) of the final states" in line for line in lines)
