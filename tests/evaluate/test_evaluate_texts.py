"""Perplexities on texts: every token is predicted once, and the numbers are those of the network's own loss."""

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gpas_cli.data.text_documents import ScoredText, TextDocument, read_text
from gpas_cli.data.tokenizer import Tokenizer, train_bpe
from gpas_cli.evaluate import downstream
from gpas_cli.evaluate.downstream import requests, score_texts, windows
from gpas_cli.evaluate.likelihood import Scorer
from gpas_cli.evaluate.task_score import MissingTask
from gpas_cli.model.llama import Llama, build
from gpas_cli.spec.downstream import Texts
from gpas_cli.spec.parse_cell import parse_model
from gpas_cli.train.precision import Precision

VOCAB = 300
TEXT = "the stream of a layer is scaled by its depth and the gate of the layer opens"
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(train_bpe([TEXT] * 4, VOCAB), VOCAB, origin="test")


@pytest.fixture(scope="module")
def network() -> Llama:
    size = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 2, "vocab": VOCAB}
    return build(parse_model({"size": size, "norm": "pre", "init": {"std": 0.3}}), seed=1, dtype=torch.float64)


def scorer(network: Llama, length: int) -> Scorer:
    return Scorer(network, Precision("fp32", CPU), max_length=length)


@pytest.mark.parametrize("count", [2, 5, 6, 7, 11, 12])
def test_windows_predict_every_token_once_with_all_the_context_that_fits(count: int) -> None:
    tokens = list(range(100, 100 + count))
    found = list(windows(tokens, 5))
    assert [token for request in found for token in request.continuation] == tokens[1:]
    for request in found:
        inputs = len(request.context) + len(request.continuation) - 1
        assert inputs <= 5
        whole = tokens.index(request.continuation[0])
        assert list(request.context) == tokens[whole - len(request.context) : whole]
        assert len(request.context) == 1 or inputs == 5


def test_windows_are_those_of_the_harness() -> None:
    utils = pytest.importorskip("lm_eval.utils", reason="lm_eval is not installed")
    tokens = list(range(1, 30))
    theirs = utils.get_rolling_token_windows(tokens, prefix_token=0, max_seq_len=8, context_len=1)
    pairs = [tuple(map(list, utils.make_disjoint_window(window))) for window in theirs]
    assert [(list(one.context), list(one.continuation)) for one in windows([0, *tokens], 8)] == pairs


def test_a_word_that_does_not_fit_is_a_missing_text_and_the_others_are_scored(
    tmp_path: Path, network: Llama, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = ScoredText((TextDocument("the gate", " " + "x" * 99, 1, 100),), "d")
    monkeypatch.setattr(
        downstream, "read_text", lambda name, *_: long if name == "lambada_openai" else read_text(name, *_)
    )
    (tmp_path / "own.txt").write_text(TEXT)
    section = Texts(texts=("lambada_openai", "own.txt"))
    missing, found = score_texts(section, scorer(network, 8), tokenizer, tmp_path)
    assert isinstance(missing, MissingTask)
    assert "more than the 8 tokens" in missing.reason
    assert isinstance(found, list)


def loss_of(network: Llama, ids: list[int]) -> Tensor:
    with torch.no_grad():
        logits = network(torch.tensor([ids[:-1]]))
    return F.cross_entropy(logits[0], torch.tensor(ids[1:]), reduction="sum")


def test_scores_are_the_networks_loss_by_token_byte_and_word(
    tmp_path: Path, network: Llama, tokenizer: Tokenizer
) -> None:
    (tmp_path / "own.txt").write_text(TEXT)
    ids = [tokenizer.eos_id, *tokenizer.encode(TEXT)]
    nats = loss_of(network, ids).item()
    section = Texts(texts=("own=own.txt", "gone/*.txt"))
    found, missing = score_texts(section, scorer(network, 4096), tokenizer, tmp_path)
    assert {score.metric: score.value for score in found} == pytest.approx(
        {
            "text_loss": nats / (len(ids) - 1),
            "text_bits_per_byte": nats / math.log(2) / len(TEXT),
            "text_perplexity": math.exp(nats / len(TEXT.split())),
        },
        rel=1e-6,
    )
    assert found[-1].metric == "text_perplexity"
    assert {(score.task, score.examples, len(score.task_version)) for score in found} == {("own", 1, 12)}
    assert isinstance(missing, MissingTask)
    assert missing.task == "gone/*.txt"
    assert "no file" in missing.reason
    (again,) = score_texts(section, scorer(network, 4096), tokenizer, tmp_path, skip=["own"])
    assert again == missing


def test_short_rows_predict_the_same_tokens_with_less_context(network: Llama, tokenizer: Tokenizer) -> None:
    document = TextDocument("", TEXT, 16, len(TEXT))
    asked = list(requests(document, tokenizer, 8))
    assert sum(len(one.continuation) for one in asked) == len(tokenizer.encode(TEXT))
    expected = sum(
        loss_of(network, [*one.context, *one.continuation])[()]
        - (loss_of(network, list(one.context)) if len(one.context) > 1 else 0)
        for one in asked
    )
    total = -sum(one.total for one in scorer(network, 8).score(asked))
    assert total == pytest.approx(float(expected), rel=1e-6)


def test_a_last_word_follows_its_context(tokenizer: Tokenizer) -> None:
    (one,) = requests(TextDocument("the gate of", " layer", 1, 6), tokenizer, 8)
    assert tokenizer.decode(one.context) == "the gate of"
    assert tokenizer.decode(one.continuation) == " layer"
