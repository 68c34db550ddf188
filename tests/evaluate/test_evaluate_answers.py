"""Answers of encoders to questions about a passage, and likelihoods of continuations."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from exporting import needs_transformers
from torch import Tensor

from gpas_cli.data.tokenizer import Tokenizer, train_bpe
from gpas_cli.errors import DataError, GpasError
from gpas_cli.evaluate import answers
from gpas_cli.evaluate.answers import answers_scorer, exact_match, f1
from gpas_cli.evaluate.external import OpenedModel, find_model, open_model
from gpas_cli.evaluate.likelihood import Likelihood, Request, Scorer, ScoringStopped
from gpas_cli.evaluate.tasks.forms import SpanQuestion
from gpas_cli.evaluate.tasks.local import direct_task, import_task
from gpas_cli.evaluate.transformers_network import require_head
from gpas_cli.model.llama import Llama, build
from gpas_cli.spec.parse_cell import parse_model
from gpas_cli.train import loss
from gpas_cli.train.precision import Precision

PASSAGE = (
    "The gate of a layer is one number. Ada trained forty layers in Lausanne, and the last ten of them learned nothing "
    "until she scaled the stream. In 1843 the engine had no layers at all; it had wheels, and a mill, and a store."
)
QUESTIONS = [
    SpanQuestion("Where did Ada train?", PASSAGE, ("Lausanne", "in Lausanne")),
    SpanQuestion("When did the engine have no layers?", PASSAGE, ("1843",)),
    SpanQuestion("What is one number?", PASSAGE[:34], ("The gate of a layer", "gate")),
    SpanQuestion("What did the engine have, " + "if anything, " * 30 + "then?", PASSAGE * 4, ("wheels",)),
]
WORDS = sorted({word.strip(".,;?").lower() for one in QUESTIONS for word in f"{one.question} {one.passage}".split()})
PUNCTUATION = [".", ",", ";", "?"]


@pytest.mark.parametrize(
    ("answer", "expected", "exact", "shared"),
    [
        ("Lausanne", ["Lausanne"], 1, 1.0),
        ("the  lausanne.", ["Lausanne", "Geneva"], 1, 1.0),
        ("in Lausanne", ["Lausanne"], 0, 2 / 3),
        ("a mill and a store", ["wheels", "the mill, and the store"], 1, 1.0),
        ("the store store", ["store"], 0, 2 / 3),
        ("Geneva", ["Lausanne"], 0, 0.0),
        ("", ["the"], 1, 0.0),  # as in SQuAD's script: nothing is left of either, and they share no word
        ("theatre", ["atre"], 0, 0.0),
    ],
)
def test_answers_are_compared_as_in_squad(answer: str, expected: list[str], exact: float, shared: float) -> None:
    assert exact_match(answer, expected) == exact
    assert f1(answer, expected) == pytest.approx(shared)


def folder_of(kind: str, folder: Path) -> Path:
    from tokenizers import BertWordPieceTokenizer
    from transformers import (
        AutoConfig,
        BertForMaskedLM,
        BertForQuestionAnswering,
        BertTokenizerFast,
        DistilBertForQuestionAnswering,
        LlamaForQuestionAnswering,
    )

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join([*special, *PUNCTUATION, *WORDS]))
    words = BertTokenizerFast(tokenizer_object=BertWordPieceTokenizer(str(folder / "vocab.txt")))
    kinds: dict[str, Any] = {
        "bert": BertForQuestionAnswering,
        "distilbert": DistilBertForQuestionAnswering,
        "llama": LlamaForQuestionAnswering,
        "masked": BertForMaskedLM,
    }
    shape = {"num_hidden_layers": 3, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24}
    torch.manual_seed(3)
    config = AutoConfig.for_model(
        "bert" if kind == "masked" else kind,
        vocab_size=100,
        max_position_embeddings=128,
        num_key_value_heads=2,
        **shape,
    )
    network = kinds[kind](config)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(8 if parameter.dim() == 2 else 1)
    network.save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def opened_in(folder: Path) -> OpenedModel:
    return open_model(find_model(str(folder)))


def expected_answer(opened: OpenedModel, folder: Path, asked: SpanQuestion, window: int, stride: int) -> str:
    """The best span, found by loops over each window alone, with the tokenizer and the network of transformers."""
    from transformers import AutoModelForQuestionAnswering, AutoTokenizer

    device = opened.precision.device
    network = AutoModelForQuestionAnswering.from_pretrained(folder).eval().to(device)
    words = AutoTokenizer.from_pretrained(folder)
    tokens = words(asked.question, add_special_tokens=False).input_ids[: min(64, window // 4)]
    passage = words(asked.passage, add_special_tokens=False, return_offsets_mapping=True)
    room = window - len(tokens) - 3
    best, answer = -float("inf"), ""
    for start in range(0, len(passage.input_ids), stride):
        own = passage.input_ids[start : start + room]
        ids = [words.cls_token_id, *tokens, words.sep_token_id, *own, words.sep_token_id]
        types = [0] * (len(tokens) + 2) + [1] * (len(own) + 1)
        more = {"token_type_ids": torch.tensor([types], device=device)} if network.config.model_type == "bert" else {}
        with torch.no_grad():
            found = network(input_ids=torch.tensor([ids], device=device), **more)
        for first in range(len(own)):
            for last in range(first, min(first + 30, len(own))):
                at = len(tokens) + 2
                score = float(found.start_logits[0, at + first] + found.end_logits[0, at + last])
                if score > best:
                    spans = passage.offset_mapping
                    best, answer = score, asked.passage[spans[start + first][0] : spans[start + last][1]]
        if start + room >= len(passage.input_ids):
            break
    return answer


@needs_transformers
@pytest.mark.parametrize(("kind", "tokens_at_once"), [("bert", 400), ("distilbert", 1)])
def test_the_answer_is_the_best_span_of_all_windows(
    kind: str, tokens_at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against loops over single windows; padding in a batch changes nothing."""
    monkeypatch.setattr(answers, "_STRIDE", 16)
    folder = folder_of(kind, tmp_path / kind)
    opened = opened_in(folder)
    scorer = Scorer(opened.network, opened.precision, max_length=64, tokens_at_once=tokens_at_once)
    texts = [expected_answer(opened, folder, asked, 64, 16) for asked in QUESTIONS]
    assert len(set(texts)) == len(texts)
    expected = [
        SpanQuestion(asked.question, asked.passage, (text,)) for asked, text in zip(QUESTIONS, texts, strict=True)
    ]
    found = {score.metric: score for score in answers_scorer("squad", expected, scorer, opened.tokenizer)()}
    assert found["exact_match"].value == found["f1"].value == 1.0
    assert found["f1"].examples == len(QUESTIONS)
    wrong = {score.metric: score for score in answers_scorer("squad", QUESTIONS, scorer, opened.tokenizer)()}
    assert wrong["exact_match"].value < 1
    assert wrong["f1"].task_version != found["f1"].task_version


@needs_transformers
def test_a_head_that_a_task_needs_must_be_there(tmp_path: Path) -> None:
    answering = opened_in(folder_of("bert", tmp_path / "bert")).network
    masked = opened_in(folder_of("masked", tmp_path / "masked")).network
    require_head(answering, ["squad", "squad@0123456789ab"])
    with pytest.raises(GpasError, match=r"bracket needs a head that predicts the next token.*it can be asked squad"):
        require_head(answering, ["bracket"])
    with pytest.raises(GpasError, match=r"squad needs a head for answers.*ForQuestionAnswering.*has none"):
        require_head(masked, ["squad"])
    with pytest.raises(GpasError, match=r"bracket needs a head that predicts the next token.*has none$"):
        require_head(masked, ["bracket"])


@needs_transformers
def test_a_network_that_sees_later_tokens_is_no_language_model(tmp_path: Path) -> None:
    """BertLMHeadModel without is_decoder: transformers loads it, and its log-likelihoods would mean nothing."""
    folder = folder_of("masked", tmp_path / "masked")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["BertLMHeadModel"]}))
    with pytest.raises(GpasError, match="its states depend on later tokens, so it does not predict the next token"):
        opened_in(folder)
    (folder / "config.json").write_text(
        json.dumps({**config, "architectures": ["BertLMHeadModel"], "is_decoder": True})
    )
    opened_in(folder)


def squad_file(folder: Path, **more: Any) -> Path:
    """A file in the form in which the authors of SQuAD publish it."""
    qas = [
        {
            "answers": [{"answer_start": PASSAGE.index(text), "text": text} for text in asked.answers],
            "question": asked.question,
            "id": str(place),
            **more,
        }
        for place, asked in enumerate(QUESTIONS[:2])
    ]
    path = folder / "dev-v1.1.json"
    data = [{"title": "Layers", "paragraphs": [{"context": PASSAGE, "qas": qas}]}]
    path.write_text(json.dumps({"data": data, "version": "1.1"}, indent=1))
    return path


def test_the_file_of_the_authors_and_rows_of_the_hub_are_the_same_task(tmp_path: Path) -> None:
    made = import_task(squad_file(tmp_path), "squad", tmp_path)
    task = direct_task(made.name, tmp_path)
    assert task is not None
    assert list(task.questions()) == QUESTIONS[:2]
    rows = tmp_path / "rows.jsonl"
    lines = [
        {"question": one.question, "context": one.passage, "answers": {"text": list(one.answers)}}
        for one in QUESTIONS[:2]
    ]
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert import_task(rows, "squad", tmp_path).name == made.name


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"answers": {"text": []}}, "no answer: this is not version 1.1"),
        ({"answers": {"text": ["Geneva"]}}, "the answer 'Geneva' is not a part of the context"),
        ({"context": 3}, "'context' is not text; the fields are question, context and answers"),
    ],
)
def test_rows_that_are_not_of_squad_are_refused(row: dict[str, Any], message: str, tmp_path: Path) -> None:
    good = {"question": "Where?", "context": PASSAGE, "answers": {"text": ["Lausanne"]}}
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({**good, **row}))
    with pytest.raises(DataError, match=message):
        import_task(path, "squad", tmp_path)
    assert not (tmp_path / "tasks").exists()


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


@pytest.mark.parametrize("tokens_at_once", [1, 33, 200, None])
def test_likelihoods_equal_a_plain_forward_pass_however_the_requests_are_batched(tokens_at_once: int | None) -> None:
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
