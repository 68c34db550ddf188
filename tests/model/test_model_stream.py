"""What is read off the streams of a training's forward pass: against NumPy, token by token, and without a trace."""

import numpy as np
import pytest
import torch

from gpas_cli.model import llama
from gpas_cli.model.llama import build, stream_statistics
from gpas_cli.spec.parse_cell import parse_model

SIZE = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 3, "vocab": 40}
ROWS = torch.arange(60).reshape(4, 15) % 39


@pytest.mark.parametrize("gate", [None, "gpas"])
@pytest.mark.parametrize("scheme", ["pre", "post", "sandwich"])
def test_every_mean_is_that_of_the_first_tokens_but_the_variance_that_of_all(
    scheme: str, gate: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama, "_MEASURED_TOKENS", 40)
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
        }
        if after is not None:
            y = after[:40]
            lengths = np.linalg.norm(few, axis=1)
            expected["block_cosine"] = ((few * y).sum(1) / lengths / np.linalg.norm(y, axis=1)).mean()
            expected["block_update"] = (np.linalg.norm(y - few, axis=1) / lengths).mean()
        assert {name: value.item() for name, value in found.items()} == pytest.approx(expected, rel=1e-4)
    streams.clear()
    with stream_statistics(network, wanted=False) as seen:
        network(ROWS)
    assert seen == []


def test_bfloat16_streams_are_measured_in_float32() -> None:
    network = build(parse_model({"size": SIZE}), dtype=torch.bfloat16)
    with stream_statistics(network) as seen:
        network(ROWS)
    assert {value.dtype for stream in seen for value in stream.values()} == {torch.float32}


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
    assert all(value.isfinite() for stream in seen for value in stream.values())
