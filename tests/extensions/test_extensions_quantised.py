"""Weights rounded to integers: against numpy, with the network unchanged afterwards, and with gates folded or not."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from importance_ranks import cell_of, save_network, write_texts
from recorder import Recorder
from torch import nn

from gpas_cli.data.loader import validation_batches
from gpas_cli.data.objective import reader_of
from gpas_cli.events import Score
from gpas_cli.extensions.export.fold import fold
from gpas_cli.extensions.layers.removal import own_subject
from gpas_cli.extensions.quantised.rounding import measure_quantised, quantised, rounded
from gpas_cli.extensions.quantised.stage import PERPLEXITY, QUANTISED, RISE
from gpas_cli.model.llama import Llama, build
from gpas_cli.train.assemble import load_trained
from gpas_cli.train.evaluate import evaluate
from gpas_cli.train.training import prepare_text

SECTION = {"bits": [8, 3], "eval_tokens": 250}
NAMES = ("unquantised", "int8", "int3")


def by_hand(weight: torch.Tensor, bits: int) -> np.ndarray:
    """Return the rounded matrix row by row, in float64."""
    largest = 2 ** (bits - 1) - 1
    rows = []
    for row in weight.double().numpy():
        scale = max(abs(row)) / largest
        rows.append(row if scale == 0 else np.rint(row / scale) * scale)
    return np.array(rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bits", range(2, 9))
def test_each_row_is_rounded_to_multiples_of_its_own_scale(bits: int, dtype: torch.dtype) -> None:
    weight = torch.randn(5, 64, generator=torch.Generator().manual_seed(bits)).mul(torch.logspace(-3, 3, 5)[:, None])
    weight[1] = 0
    weight = weight.to(dtype)
    found = rounded(weight, bits)
    assert found.dtype == dtype
    precision = 1e-6 if dtype == torch.float32 else 2.0**-8
    # Just between two integers, float32 may round to the other one than float64.
    steps = weight.double().abs().amax(1, keepdim=True).clamp(min=1e-30) / (2 ** (bits - 1) - 1)
    clear = ((weight.double() / steps).frac().abs() - 0.5).abs() > 1e-4
    assert clear.double().mean() > 0.98
    expected = torch.from_numpy(by_hand(weight, bits))
    torch.testing.assert_close(found.double()[clear], expected[clear], rtol=precision, atol=0)
    error = (found.double() - weight.double()).abs()
    assert (error <= 0.5001 * steps + precision * weight.double().abs()).all()
    for row, own in zip(found, weight, strict=True):
        assert len(row.abs().unique()) <= 2 ** (bits - 1)
        torch.testing.assert_close(row.abs().max(), own.abs().max(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("norm", ["pre", "sandwich", "post"])
@pytest.mark.parametrize("family", ["llama", "gpt"])
def test_only_matrices_inside_layers_are_rounded_and_come_back_bit_by_bit(norm: str, family: str) -> None:
    network = build(cell_of(norm=norm, gate="gpas", family=family).model, seed=3)
    before = {name: (weight, weight.detach().clone()) for name, weight in network.named_parameters()}
    tokens = torch.arange(30).reshape(2, 15)
    logits = network(tokens)
    with quantised(network.model.blocks(), 3):
        changed = network(tokens)
        linear = [name for name, module in network.named_modules() if isinstance(module, nn.Linear)]
        used = {f"{name}.weight": network.get_submodule(name).weight.detach() for name in linear}
    assert not torch.allclose(logits, changed)
    for name, weight in used.items():
        expected = before[name][1]
        if name != "lm_head.weight":
            expected = torch.from_numpy(by_hand(expected, 3)).float()
        torch.testing.assert_close(weight, expected, rtol=1e-5, atol=0)
    after = dict(network.named_parameters())
    assert after.keys() == before.keys()
    assert all(after[name] is weight and torch.equal(weight, copy) for name, (weight, copy) in before.items())
    assert torch.equal(network(tokens), logits)
    # The same matrices, rounded once and put into another network, give the same logits.
    other = build(network.spec)
    other.load_state_dict({**network.state_dict(), **used})
    assert torch.equal(other(tokens), changed)


def test_the_network_comes_back_when_an_evaluation_fails() -> None:
    network = build(cell_of(norm="pre").model, seed=3)
    before = {name: weight.clone() for name, weight in network.state_dict().items()}
    with pytest.raises(RuntimeError, match="out of memory"), quantised(network.model.blocks(), 4):
        raise RuntimeError("out of memory")
    assert {type(module) for module in network.modules() if isinstance(module, nn.Linear)} == {nn.Linear}
    assert all(torch.equal(weight, before[name]) for name, weight in network.state_dict().items())


@pytest.mark.parametrize("norm", ["pre", "post", "sandwich", "deepnorm", "mix"])
def test_the_network_with_its_gates_folded_loses_the_same(norm: str) -> None:
    size = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 4, "vocab": 280, "eps": 1e-30}
    network = build(cell_of(norm=norm, gate="gpas", size=size).model, seed=3).double()
    for gate, alpha in zip(network.gates(), (0.4, -0.7, 1.6, 0.2), strict=True):
        gate.alpha.data.fill_(alpha)
    folded = fold(network, replace(network.spec, gate=None))
    tokens = torch.arange(30).reshape(2, 15)

    def loss(of: Llama) -> torch.Tensor:
        with quantised(of.model.blocks(), 3):
            return of(tokens)

    assert not torch.allclose(loss(network), network(tokens), rtol=1e-3)
    # A weight just between two integers may be rounded to either.
    torch.testing.assert_close(loss(folded), loss(network), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("objective", ["causal", "mlm"])
def test_the_perplexity_at_each_number_of_bits(tmp_path: Path, objective: str) -> None:
    vocab = {} if objective == "causal" else {"size": {**cell_of().model.to_mapping()["size"], "vocab": 281}}
    cell = cell_of(norm="pre", gate="gpas", objective=objective, quantised=SECTION, **vocab)
    trained, network = save_network(cell, tmp_path / "checkpoints")
    corpus = prepare_text(cell, tmp_path / "cache", write_texts(tmp_path), lambda _: None)
    loaded = load_trained(cell, trained)
    recorder = Recorder()
    subject = own_subject(cell, loaded, corpus, "run/step-7", SECTION["eval_tokens"])
    section = cell.parameters("quantised")
    outcome = measure_quantised(subject, section, recorder, lambda: None, [])
    assert outcome.outcome == "done"
    assert [event["split"] for event in recorder.of("verified")] == ["validation"]
    scores = [Score(**one) for one in recorder.of("score")]
    assert [(one.task, one.metric) for one in scores] == [(name, "quantised_perplexity") for name in NAMES]
    batches = list(validation_batches(corpus.validation, 5, 250, reader_of(cell, corpus.tokenizer)))
    whole = 0.0
    for name, bits in zip(NAMES, (0, 8, 3), strict=True):
        copy = build(cell.model)
        weights = {
            name: torch.from_numpy(by_hand(weight, bits)).float() if bits and "proj" in name else weight
            for name, weight in network.state_dict().items()
        }
        copy.load_state_dict(weights)
        loss = evaluate(copy.to(loaded.precision.device), batches, loaded.precision, 1.0)["loss"]
        whole = whole or loss
        assert outcome.metrics[f"quantised_perplexity/{name}"] == pytest.approx(math.exp(loss), rel=1e-4)
        if bits:
            assert outcome.metrics[f"quantised_rise/{name}"] == pytest.approx(loss - whole, abs=1e-4)
    assert abs(outcome.metrics["quantised_rise/int3"]) > 10 * abs(outcome.metrics["quantised_rise/int8"])
    known = [replace(one, value=7.0) for one in scores[:2]] + [replace(scores[2], checkpoint="another")]
    again = Recorder()
    resumed = measure_quantised(subject, section, again, lambda: None, known)
    assert [Score(**one) for one in again.of("score")] == [scores[2]]
    assert resumed.metrics["quantised_perplexity/int8"] == 7.0
    assert resumed.metrics["quantised_rise/int8"] == 0.0


def test_the_order_of_the_bits_does_not_count() -> None:
    keys = {cell_of(quantised={"bits": bits}).key for bits in ([4, 8], [8, 4])}
    assert keys == {cell_of(quantised={}).key}
    assert cell_of(quantised={"bits": [3, 8]}).key not in keys


def test_the_metrics_by_bits_are_those_of_the_stage() -> None:
    assert [metric.name for metric in QUANTISED.metrics] == [PERPLEXITY, RISE]
