"""How answers are compared, and likelihoods of continuations."""

import random
from typing import Any

import pytest
import torch
from cases import cases
from torch import Tensor

from gpas_cli.data.tokenizer import Tokenizer, train_bpe
from gpas_cli.errors import GpasError
from gpas_cli.evaluate.answers import exact_match, f1
from gpas_cli.evaluate.likelihood import Likelihood, Request, Scorer, ScoringStopped
from gpas_cli.model.llama import Llama, build
from gpas_cli.spec.parse_cell import parse_model
from gpas_cli.train import loss
from gpas_cli.train.precision import Precision


@cases("evaluate/cases.yaml")
def test_answers_are_compared_as_in_squad(answer: str, expected: list[str], exact: float, shared: float) -> None:
    assert exact_match(answer, expected) == exact
    assert f1(answer, expected) == pytest.approx(shared)


SIZE = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 2, "vocab": 61}
CPU = Precision("fp32", torch.device("cpu"))


def network(**values: object) -> Llama:
    return build(parse_model({"size": SIZE, "init": {"std": 0.4}, **values}), seed=5)


def requests(count: int = 40, seed: int = 2) -> list[Request]:
    chooser = random.Random(seed)

    def ids(fewest: int, most: int) -> tuple[int, ...]:
        return tuple(chooser.randrange(61) for _ in range(chooser.randint(fewest, most)))

    made = [Request(ids(1, 30), ids(1, 6)) for _ in range(count)]
    choices = ids(9, 9)
    return [*made, *(Request(choices, (answer,)) for answer in range(4)), Request(ids(3, 3), ()), made[0]]


def plain(model: Llama, request: Request, max_length: int = 64) -> Likelihood:
    """Return all logits of one request, without batches, packing or sharing."""
    whole = (request.context + request.continuation)[-(max_length + 1) :]
    with torch.no_grad():
        logs = torch.log_softmax(model(torch.tensor([whole[:-1]]))[0], -1)
    count = len(request.continuation)
    predicted = logs[len(whole) - 1 - count :]
    wanted = torch.tensor(request.continuation, dtype=torch.int64)[:, None]
    greedy = bool((predicted.argmax(-1, keepdim=True) == wanted).all())
    return Likelihood(float(predicted.gather(1, wanted).sum()), greedy)


def assert_equal(found: list[Likelihood], expected: list[Likelihood]) -> None:
    assert [one.total for one in found] == pytest.approx([one.total for one in expected], abs=3e-5)
    assert [one.greedy for one in found] == [one.greedy for one in expected]


@pytest.mark.parametrize("tokens_at_once", [1, 33, 200, 0])
def test_likelihoods_equal_a_plain_forward_pass_however_the_requests_are_batched(tokens_at_once: int) -> None:
    model, asked = network(gate="gpas"), requests()
    found = Scorer(model, CPU, max_length=64, tokens_at_once=tokens_at_once).score(asked)
    assert_equal(found, [plain(model, request) for request in asked])


def test_learned_positions_and_a_tied_head_are_scored_as_well() -> None:
    family = {"positions": "learned", "tied": True, "context": 64, "norm": "layernorm", "ffn": "gelu", "bias": True}
    model, asked = network(family=family), requests()
    assert_equal(Scorer(model, CPU, max_length=64).score(asked), [plain(model, request) for request in asked])


def test_the_likeliest_continuation_is_greedy_and_another_is_not() -> None:
    model = network()
    row = [4, 8, 15]
    for _ in range(3):
        with torch.no_grad():
            row.append(int(model(torch.tensor([row]))[0, -1].argmax()))
    other = (*row[3:5], (row[5] + 1) % 61)
    asked = [Request(tuple(row[:3]), tuple(row[3:])), Request(tuple(row[:3]), other)]
    assert [one.greedy for one in Scorer(model, CPU, max_length=64).score(asked)] == [True, False]


def test_logits_in_several_chunks_give_the_same_likelihoods(monkeypatch: pytest.MonkeyPatch) -> None:
    model, asked = network(), requests()
    whole = Scorer(model, CPU, max_length=64).score(asked)
    monkeypatch.setattr(loss, "_CHUNK_LOGITS", 3 * 61)
    assert_equal(Scorer(model, CPU, max_length=64).score(asked), whole)


def test_long_contexts_lose_their_start_and_are_counted() -> None:
    model, asked = network(), requests()
    scorer = Scorer(model, CPU, max_length=8)
    assert_equal(scorer.score(asked), [plain(model, request, 8) for request in asked])
    assert scorer.truncated == sum(len(r.context) + len(r.continuation) - 1 > 8 for r in asked)
    assert scorer.truncated > 10


class Counting(torch.nn.Module):
    """A network that counts the tokens that it computes and the states that its head is applied to."""

    def __init__(self, model: Llama):
        super().__init__()
        self.inner = model
        self.tokens = 0
        self.rows: list[int] = []

    def forward(self, tokens: Tensor, packing: Any = None, read: Any = None, visible: Any = None) -> Tensor:
        self.tokens += tokens.numel()
        self.rows.append(packing.time if packing else tokens.shape[1])
        return self.inner(tokens, packing, read, visible)  # type: ignore[no-any-return]


def test_a_context_with_several_one_token_continuations_is_computed_once_and_padding_never() -> None:
    counting = Counting(network())
    context = tuple(range(20))
    asked = [Request(context, (answer,)) for answer in range(10)] + [Request((1, 2), (3, 4, 5))]
    Scorer(counting, CPU, max_length=64).score(asked)
    assert counting.tokens == 20 + 4


def test_batches_are_scored_longest_first() -> None:
    counting = Counting(network())
    Scorer(counting, CPU, max_length=64, tokens_at_once=40).score(requests())
    assert counting.rows == sorted(counting.rows, reverse=True)
    assert len(counting.rows) > 5


def test_the_network_is_left_as_it_was() -> None:
    model = network()
    model.train()
    Scorer(model, CPU, max_length=64).score(requests())
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    model.eval()
    Scorer(model, CPU, max_length=64).score(requests())
    assert not model.training


def test_progress_reaches_the_number_of_requests_and_a_stop_ends_the_scoring() -> None:
    seen: list[tuple[int, int]] = []
    scorer = Scorer(network(), CPU, max_length=64, tokens_at_once=64)
    asked = requests()
    scorer.score(asked, progress=lambda done, whole: seen.append((done, whole)))
    assert seen[-1] == (len(asked), len(asked))
    assert seen == sorted(seen)
    assert len(seen) > 5
    polls = iter([False, False, True])
    seen.clear()
    scorer.stop = lambda: next(polls)
    with pytest.raises(ScoringStopped):
        scorer.score(asked, progress=lambda done, whole: seen.append((done, whole)))
    assert len(seen) == 2


def test_no_requests_give_no_likelihoods() -> None:
    assert Scorer(network(), CPU, max_length=64).score([]) == []


@pytest.mark.parametrize(
    ("request_", "message"),
    [(Request((), (1,)), "empty context"), (Request((1,), (2,) * 9), "9 tokens, more than the 8")],
)
def test_requests_that_cannot_be_scored_are_refused(request_: Request, message: str) -> None:
    with pytest.raises(GpasError, match=message):
        Scorer(network(), CPU, max_length=8).score([request_])


@pytest.mark.parametrize("name", ["bf16", "pure_bf16"])
def test_half_precision_is_close_and_its_probabilities_are_float32(name: str) -> None:
    precision = Precision(name, torch.device("cpu"))
    exact = network()
    model = network().to(precision.weights)
    asked = requests()
    found = Scorer(model, precision, max_length=64).score(asked)
    expected = Scorer(exact, CPU, max_length=64).score(asked)
    assert [one.total for one in found] == pytest.approx([one.total for one in expected], abs=0.5)
    # bfloat16 has 8 bits: a likelihood rounded to it would equal its own rounding.
    single = found[40].total
    assert float(torch.tensor(single, dtype=torch.bfloat16)) != single


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    text = "the cat sat on the mat and the dog sat on the log </s> "
    return Tokenizer(train_bpe([text] * 20, 300), 300, origin="test", local=True)


@pytest.mark.parametrize(
    ("context", "continuation"),
    [("the cat", " sat on"), ("the cat ", "sat on"), ("the  \n", "cat"), ("the do", "g sat"), ("the", " </s>")],
)
def test_texts_are_divided_where_the_context_ends(tokenizer: Tokenizer, context: str, continuation: str) -> None:
    request = Request.of_text(tokenizer, context, continuation)
    assert request.context == tuple(tokenizer.encode(context.rstrip()))
    assert request.continuation == tuple(tokenizer.encode(context + continuation)[len(request.context) :])
    assert tokenizer.eos_id not in request.context + request.continuation


@pytest.mark.parametrize("context", ["", "  "])
def test_the_end_token_stands_for_an_empty_context(tokenizer: Tokenizer, context: str) -> None:
    request = Request.of_text(tokenizer, context, "the cat")
    assert request == Request((tokenizer.eos_id,), tuple(tokenizer.encode(context + "the cat")))
