"""What is read off the streams of a training's forward pass: against NumPy, token by token, and without a trace."""

import numpy as np
import pytest
import torch

from gpas_cli.model import stream
from gpas_cli.model.attention import Attention, Visible
from gpas_cli.model.llama import build
from gpas_cli.model.stream import RANK, effective_rank, stream_statistics
from gpas_cli.spec.parse_cell import parse_model

SIZE = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 3, "vocab": 40}
ROWS = torch.arange(60).reshape(4, 15) % 39


@pytest.mark.parametrize("gate", [None, "gpas"])
@pytest.mark.parametrize("scheme", ["pre", "post", "sandwich"])
def test_means_are_of_first_tokens(scheme: str, gate: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_MEASURED_TOKENS", 40)
    monkeypatch.setattr(stream, "_SORTED_TOKENS", 12)
    network = build(parse_model({"size": SIZE, "norm": scheme, "gate": gate}))
    streams: list[np.ndarray] = []
    for module in (*network.model.layers, network.model.norm):
        module.register_forward_pre_hook(
            lambda _, args: streams.append(args[0].detach().double().flatten(0, 1).numpy())
        )
    with stream_statistics(network) as seen:
        network(ROWS)
    assert len(seen) == len(streams) == 4
    for found, x, after in zip(seen, streams, [*streams[1:], None], strict=True):
        few = x[:40]
        centred = few - few.mean(1, keepdims=True)
        expected = {
            "activation_variance": x.var(1).mean(),
            "kurtosis": ((centred**4).mean(1) / few.var(1) ** 2).mean(),
            "max_to_rms": (abs(few).max(1) / np.sqrt((few**2).mean(1))).mean(),
            "max_to_median": (abs(x[:12]).max(1) / np.sort(abs(x[:12]), 1)[:, 7]).mean(),
        }
        if after is not None:
            y = after[:40]
            lengths = np.linalg.norm(few, axis=1)
            expected["block_cosine"] = ((few * y).sum(1) / lengths / np.linalg.norm(y, axis=1)).mean()
            expected["block_update"] = (np.linalg.norm(y - few, axis=1) / lengths).mean()
        sigma = np.linalg.svd(x[:12], compute_uv=False)
        p = sigma / sigma.sum()
        assert effective_rank(found.pop(RANK)) == pytest.approx(np.exp(-(p * np.log(p)).sum()), rel=1e-4)
        assert ("first_token_share" in found) == (after is not None)
        found.pop("first_token_share", None)
        assert {name: value.item() for name, value in found.items()} == pytest.approx(expected, rel=1e-4)
    streams.clear()
    with stream_statistics(network, wanted=False) as seen:
        network(ROWS)
    assert seen == []


@pytest.mark.parametrize(("scheme", "gate"), [("pre", "gpas"), ("post", None)])
@pytest.mark.parametrize("causal", [True, False])
def test_the_share_of_the_first_token_by_explicit_attention(scheme: str, gate: str | None, causal: bool) -> None:
    network = build(parse_model({"size": SIZE, "norm": scheme, "gate": gate, "family": "gpt"})).double()
    expected = []

    def attend(attention: Attention, given: tuple[torch.Tensor, ...]) -> None:
        q, k = (own(given[0]).view(4, 15, 2, 8).transpose(1, 2) for own in (attention.q_proj, attention.k_proj))
        hidden = torch.ones(15, 15).triu(1).bool() if causal else torch.zeros(15, 15).bool()
        weights = (q @ k.mT / 8**0.5).masked_fill(hidden, -torch.inf).softmax(-1)
        expected.append(weights[:, :, 1:, 0].mean().item())

    for block in network.model.blocks():
        block.self_attn.register_forward_pre_hook(attend)
    with stream_statistics(network) as seen:
        network(ROWS, visible=None if causal else Visible())
    assert [stream["first_token_share"].item() for stream in seen[:-1]] == pytest.approx(expected, rel=1e-6)


def test_bfloat16_streams_are_measured_in_float32_at_least() -> None:
    network = build(parse_model({"size": SIZE}), dtype=torch.bfloat16)
    with stream_statistics(network) as seen:
        network(ROWS)
    assert {value.dtype for stream in seen for value in stream.values()} == {torch.float32, torch.float64}


def test_a_zero_token_is_left_out_of_means() -> None:
    network = build(parse_model({"size": SIZE}))
    network.model.embed_tokens.weight.data[39] = 0
    with stream_statistics(network) as seen:
        network(torch.tensor([[5, 39, 7]]))
        network(torch.tensor([[5]]))
        network(torch.tensor([[7]]))
    whole, first, last = (seen[i] for i in (0, 4, 8))
    for name in ("kurtosis", "max_to_rms"):
        assert whole[name].item() == pytest.approx((first[name].item() + last[name].item()) / 2)
    finite = {name: value.isfinite().all() for stream in seen[:4] for name, value in stream.items()}
    assert all(finite.values())
    assert first["first_token_share"].isnan()  # a row of one token has no other one
