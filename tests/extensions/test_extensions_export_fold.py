"""Factors of parametrisations folded into the weights, and networks with an encoder folded into Pegasus."""

import json
import re
from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest
import torch
from learned_factors import open_factors
from test_model_parametrisation import COMPLETEP, TOKENS, size
from test_model_seq2seq import SIZE, SOURCES, TARGETS, network, padded, states

from gpas_cli.errors import GpasError
from gpas_cli.extensions.export.files import pegasus_files, pegasus_weights
from gpas_cli.extensions.export.fold import fold, logit_difference, obstacle, plain_llama
from gpas_cli.model.attention import Visible
from gpas_cli.model.llama import build
from gpas_cli.model.seq2seq import Translator
from gpas_cli.spec.model import FAMILIES
from gpas_cli.spec.norm import SCHEMES
from gpas_cli.spec.parametrisation import Parametrisation
from gpas_cli.spec.parse_cell import parse_model


@pytest.mark.parametrize(
    ("scheme", "family"),
    list(zip(SCHEMES, cycle(name for name, own in FAMILIES.items() if not own.encoder), strict=False)),
)
def test_the_factors_fold_into_the_weights(scheme: str, family: str) -> None:
    how = {**COMPLETEP, "base_heads": 1, "base_layers": 2}
    shape = {**size(2), "eps": 1e-30}
    values = {"size": shape, "norm": scheme, "family": family, "init": {"std": 0.2}, "parametrisation": how}
    ours = open_factors(build(parse_model(values)).double())
    standard = replace(ours.spec, parametrisation=Parametrisation())
    assert logit_difference(ours, fold(ours, standard), TOKENS) < 1e-11
    same = build(standard).double()
    same.load_state_dict(ours.state_dict())
    assert not logit_difference(ours, same, TOKENS) < 1e-3  # the factors had an effect


FOLDED = ("pre", "lns", "layerscale", "scalars", "scaled-branches")


def pegasus(made: Translator) -> Any:
    """Return the network of transformers with the folded weights."""
    transformers = pytest.importorskip("transformers")
    shared = {"max_position_embeddings": 12, "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
    files = pegasus_files(made, {**shared, "decoder_start_token_id": 3})
    theirs = transformers.PegasusForConditionalGeneration(
        transformers.PegasusConfig(**json.loads(files["config.json"]))
    )
    weights = pegasus_weights(made, 12)
    found = theirs.double().load_state_dict(weights, strict=False)
    tied = {"lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"}
    assert set(found.missing_keys) == {*tied, "final_logits_bias"}
    assert not found.unexpected_keys
    return theirs.eval()


@torch.no_grad()
@pytest.mark.parametrize(
    ("norm", "gate", "embed", "decoder_layers"),
    [(norm, "gpas", "scaled", 1) for norm in FOLDED]
    + [("pre", {"like": "gpas", "site": site, "share": "sublayer"}, "plain", 3) for site in ("home", "after-norm")]
    + [("pre", "none", "plain", None)],
)
def test_folded_into_pegasus_logits_are_equal(norm: str, gate: Any, embed: str, decoder_layers: int | None) -> None:
    size = {**SIZE, "eps": 1e-30, "decoder_layers": decoder_layers}
    made = network(norm=norm, gate=gate, embed=embed, size=size)
    assert obstacle(made.spec) == ""
    goal = plain_llama(made.spec)
    prefix = torch.tensor([4, 2])
    rows = torch.tensor([[5, 6, 7, 3, 20, 21], [9, 3, 22, 23, 24, 25]])
    folded = fold(made, replace(goal, size=made.spec.size))  # only eps does not fold
    assert logit_difference(made, folded, rows, Visible(prefix=prefix, bounds=(2, 4))) < 1e-12
    folded = fold(made, goal)
    assert isinstance(folded, Translator)
    sources, targets = padded(SOURCES), padded([[3, *row] for row in TARGETS])
    seen = torch.arange(sources.shape[1]) < torch.tensor([len(row) for row in SOURCES])[:, None]
    logits = pegasus(folded)(input_ids=sources, attention_mask=seen.long(), decoder_input_ids=targets).logits
    expected = states(folded) @ folded.model.embed_tokens.weight.t()
    assert (logits - expected).abs().max() < 1e-12


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"norm": "post"}, "layer 1 of Post-LN is not wired like Pegasus's"),
        ({"norm": "deepnorm"}, "DeepNorm is not wired"),
        ({"norm": "b2t"}, "is not wired"),
        ({"norm": "sandwich"}, "is not wired"),
        ({"norm": "pre", "family": {"like": "encoder-decoder", "ffn": "gelu"}}, "its family differs"),
        ({"norm": "pre", "embed": "rmsnorm"}, "its embedding is neither plain"),
    ],
)
def test_other_networks_are_no_pegasus(values: dict[str, Any], message: str) -> None:
    found = obstacle(parse_model({"size": SIZE, "family": "encoder-decoder", **values}))
    assert re.search(message, found)


def test_a_gate_that_stops_the_stream_does_not_fold() -> None:
    made = network(norm="pre", gate={"like": "gpas", "activation": "identity"})
    with torch.no_grad():
        made.model.layers[0].gate.alpha.fill_(1.0)
    with pytest.raises(GpasError, match="multiplies the residual stream by 0"):
        fold(made, plain_llama(made.spec))
