"""Reading with a cache gives the logits of reading whole rows: every scheme, gate position and family. In float64."""

import itertools

import pytest
import torch
from gate_placements import FEW, two_layers
from moved_networks import moved_network

from gpas_cli.model.attention import Visible
from gpas_cli.model.decoding import CachedReader
from gpas_cli.model.llama import Llama
from gpas_cli.spec.model import FAMILIES

SIZE = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 2, "vocab": 50}
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
        network = moved_network({"size": SIZE, "norm": norm})
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
    check(moved_network({"size": SIZE, "norm": two_layers(norm), "gate": gate}))


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
        check(moved_network({"size": SIZE, "norm": norm, "family": family, "embed": embed}))


@pytest.mark.parametrize("kind", ["mup", "completep"])
def test_every_parametrisation(kind: str) -> None:
    how = {"kind": kind, "base_hidden": 8, **({"base_layers": 2} if kind == "completep" else {})}
    check(moved_network({"size": SIZE, "parametrisation": how, "init": {"std": 0.2}}))


def test_a_row_has_no_more_tokens_than_learned_positions() -> None:
    network = moved_network({"size": SIZE, "family": {"positions": "learned", "context": 5}})
    with pytest.raises(ValueError, match="6 tokens in a row, but the network has 5 learned positions"):
        CachedReader(network, 1, 6).next_logits([[1, 2]])
