"""Generated answers: texts with and without a cache, their ends, the tasks, and scores beside a loop of its own."""

import json
import re
import string
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases import cases, file_text
from exporting import CPU, SIZE, Room, needs_harness, needs_transformers
from local_documents import write
from torch import nn

from gpas_cli.data.objective import _SpanReader
from gpas_cli.data.tokenizer import Tokenizer
from gpas_cli.errors import DataError, GpasError
from gpas_cli.evaluate import answers as answering
from gpas_cli.evaluate.answers import generate, generated_scorer
from gpas_cli.evaluate.likelihood import Request, Scorer, ScoringStopped
from gpas_cli.evaluate.tasks import TaskUnavailable
from gpas_cli.evaluate.tasks.forms import form_of
from gpas_cli.evaluate.tasks.hub import HubTask
from gpas_cli.evaluate.tasks.local import RecallTask, direct_task, import_task
from gpas_cli.extensions.networks.opening import find_model, open_model
from gpas_cli.model.attention import Visible
from gpas_cli.model.llama import Llama
from gpas_cli.spec.downstream import KNOWN_TASKS, MOST_EXAMPLES, WRITTEN, Downstream, downstream_tokens, metrics_of
from gpas_cli.spec.objective import parse_objective

PROMPTS = ["gate norm layer", "", "stream scale " * 60, "layer", "norm gate stream scale gate", "scale the"]
NONE = ("\0",)  # ends no answer


@pytest.fixture(scope="module", params=[{}, {"head_dim": 12, "kv_heads": 1}], ids=["usual heads", "wider heads"])
def ours(room: Room, request: pytest.FixtureRequest) -> tuple[Scorer, Tokenizer]:
    network, tokenizer = room.opened(room.cell(norm="pre", gate="gpas", size={**SIZE, **request.param}))
    return Scorer(network.double(), CPU, max_length=64), tokenizer


@torch.no_grad()
def alone(network: nn.Module, tokenizer: Tokenizer, prompt: str, most: int, room: int) -> list[int]:
    """Return the ids that the network writes after one prompt: every token from a pass over the whole row."""
    row = (tokenizer.encode(prompt) or [tokenizer.eos_id])[-room:]
    written: list[int] = []
    while len(written) < most and tokenizer.eos_id not in written:
        written.append(int(network(torch.tensor([row + written]))[0, -1].argmax()))
    return [token for token in written if token != tokenizer.eos_id]


def test_a_batch_has_the_texts_of_each_prompt_by_itself(ours: tuple[Scorer, Tokenizer]) -> None:
    scorer, tokenizer = ours
    expected = [
        tokenizer.decode(alone(scorer.network, tokenizer, prompt, most=9, room=55)).strip() for prompt in PROMPTS
    ]
    assert len(set(expected)) > 2
    before = scorer.truncated
    assert generate(scorer, tokenizer, PROMPTS, most=9, until=NONE) == expected
    assert scorer.truncated == before + 1  # the third prompt
    one_by_one = Scorer(scorer.network, CPU, max_length=64, tokens_at_once=1)
    assert generate(one_by_one, tokenizer, PROMPTS, most=9, until=NONE) == expected


def test_reading_again_gives_the_same_texts(ours: tuple[Scorer, Tokenizer], monkeypatch: pytest.MonkeyPatch) -> None:
    scorer, tokenizer = ours
    expected = generate(scorer, tokenizer, PROMPTS, most=7, until=NONE)
    monkeypatch.setattr(answering, "Llama", type(None))  # as if the network were not one of ours
    assert generate(scorer, tokenizer, PROMPTS, most=7, until=NONE) == expected


@pytest.mark.parametrize("modes", [True, False])
def test_a_network_of_corrupted_spans_reads_and_writes_as_it_was_trained(room: Room, modes: bool) -> None:
    """Both ways through mode, text and sentinel, and then the sentinel with what follows, which ends at a sentinel."""
    objective = {"like": "ul2", "sentinels": 4, "modes": modes, "denoisers": ["s 0.25"]}
    network, tokenizer = room.opened(room.cell(norm="pre", objective=objective))
    vocab = network.spec.size.vocab
    spec = parse_objective(objective, [])
    frame = spec.frame(vocab)
    scorer = Scorer(network.double(), CPU, max_length=40, frame=frame)

    def framed(context: list[int], more: list[int]) -> tuple[list[int], int]:
        text = np.array([*context, *more])
        reader = _SpanReader(spec, 40, vocab, tokenizer.eos_id)
        spans = np.array([len(context)]), np.array([len(more)])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("gpas_cli.data.objective._span_lengths", lambda *_: spans)
            seen, hidden = reader.corrupt(text, np.zeros(80, np.uint64))
        return [*seen.tolist(), *hidden.tolist()[:-1]], len(seen)

    @torch.no_grad()
    def logits(row: list[int], prefix: int) -> torch.Tensor:
        return network(torch.tensor([row]), visible=Visible.of(torch.tensor([prefix]), len(row), later=True))[0]

    words = tokenizer.encode("gate norm layer stream scale the depth of a")
    asked = [Request(tuple(words[:5]), tuple(words[5:8])), Request(tuple(words[:2]), tuple(words[3:4]))]
    for request, found in zip(asked, scorer.score(asked), strict=True):
        row, prefix = framed(list(request.context), list(request.continuation))
        assert row[0] == vocab - 6 if modes else row[0] < vocab - 4
        values = logits(row, prefix).log_softmax(-1)[prefix:]
        expected = sum(values[n, token] for n, token in enumerate(request.continuation))
        assert found.total == pytest.approx(float(expected), rel=1e-9)
    prompts = ["gate norm layer", "scale", "norm gate stream " * 40]
    for prompt, text in zip(prompts, generate(scorer, tokenizer, prompts, most=6, until=NONE), strict=True):
        context, written = tokenizer.encode(prompt)[-(40 - 6 - frame.overhead) :], list[int]()
        while len(written) < 6 and not any(token >= frame.end or token == tokenizer.eos_id for token in written):
            row, prefix = framed(context, [*written, 0])  # its last token is only a target
            written.append(int(logits(row[:-1], prefix)[-1].argmax()))
        kept = [token for token in written if token < frame.end and token != tokenizer.eos_id]
        assert text == tokenizer.decode(kept).strip()


class _Fixed(Llama):
    """Writes given tokens one after the other, whatever it reads."""

    def __init__(self, tokens: list[int], vocab: int):
        nn.Module.__init__(self)
        self.tokens, self.vocab = tokens, vocab

    def next_logits(self, _rows: Any, read: Any) -> torch.Tensor:
        token, self.tokens = self.tokens[0], self.tokens[1:]
        return read(torch.ones(1, 1), torch.eye(self.vocab)[token][:, None])


@cases("evaluate/cases.yaml")
def test_where_an_answer_ends(
    ours: tuple[Scorer, Tokenizer], monkeypatch: pytest.MonkeyPatch, written: str, until: tuple[str, ...], expected: str
) -> None:
    _, tokenizer = ours
    tokens = tokenizer.encode(written)
    for ids in (tokens, [*tokens, tokenizer.eos_id]):
        network = _Fixed(ids, tokenizer.vocab)
        monkeypatch.setattr(answering, "CachedReader", lambda *_, network=network: network)
        scorer = Scorer(network, CPU, max_length=200)
        assert generate(scorer, tokenizer, ["Where?"], most=len(ids), until=until) == [expected]
    cut = _Fixed([*tokenizer.encode(" Ada"), tokenizer.eos_id, *tokens], tokenizer.vocab)
    monkeypatch.setattr(answering, "CachedReader", lambda *_: cut)
    assert generate(Scorer(cut, CPU, max_length=200), tokenizer, ["Who?"], most=50, until=NONE) == ["Ada"]


def test_what_is_refused(ours: tuple[Scorer, Tokenizer]) -> None:
    with pytest.raises(GpasError, match="a text that ends a generated answer is empty"):
        generate(*ours, PROMPTS, most=4, until=("\n", ""))
    with pytest.raises(
        GpasError, match="given 64 tokens at once, which leaves no room for a question before an answer"
    ):
        generate(*ours, PROMPTS, most=64, until=("\n",))
    with pytest.raises(ScoringStopped):
        generate(
            Scorer(ours[0].network, CPU, max_length=64, stop=lambda: True), ours[1], PROMPTS, most=4, until=("\n",)
        )
    section = Downstream(tasks=("recall", "triviaqa"), max_length=20, shots=17)
    assert [(problem.path, problem.message) for problem in section.problems()] == [
        (("max_length",), "leaves no room for a question of triviaqa, whose answers may have 32 tokens"),
        (("shots",), "has no effect on recall, which have no examples; leave it out"),
    ]
    many = Downstream(tasks=("squadv2",), shots=17)
    assert [problem.message for problem in many.problems()] == ["is more than the 16 solved examples of squadv2"]


# The first question of the authors' files, in their form (TriviaQA: Apache 2.0; SQuAD: CC BY-SA 4.0), and what follows.
NAMES = ("drop", "coqa", "quac", "triviaqa", "squadv2", "tydiqa")
FILES = {name: json.loads(file_text(f"evaluate/authors/{name}.json")) for name in NAMES}


@pytest.mark.parametrize("name", FILES)
def test_the_authors_files_are_imported_with_solved_examples(
    name: str, tmp_path: Path, ours: tuple[Scorer, Tokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    for path, part in (("dev.json", "file"), ("train.json", "training")):
        (tmp_path / path).write_text(json.dumps(FILES[name][part]))
    made, answers = import_task(tmp_path / "dev.json", name, tmp_path, tmp_path / "train.json"), FILES[name]["answers"]
    assert made.questions == 2
    task = direct_task(made.name, tmp_path)
    prompts: list[str] = []

    def written(_scorer: Scorer, _tokenizer: Tokenizer, asked: list[str], **options: Any) -> list[str]:
        prompts.extend(asked)
        assert (options["most"], options["until"]) == (KNOWN_TASKS[name].generated, KNOWN_TASKS[name].until)
        return [answers[-1].upper(), "something else"]

    monkeypatch.setattr(answering, "generate", written)
    scores = generated_scorer(task, *ours, shots=1)()
    assert prompts[0] == FILES[name]["prompt"]
    assert task.questions()[0].answers == tuple(answers)
    assert [(one.metric, one.value, one.examples, one.shots) for one in scores] == [
        ("exact_match", 0.5, 2, 1),
        ("f1", 0.5, 2, 1),
    ]
    known = metrics_of({(one.task, one.metric): one.value for one in scores}, [made.name])
    assert known == {f"f1/{made.name}": 50, f"exact_match/{made.name}": 50}
    with pytest.raises(TaskUnavailable, match=r"has 1 solved example, and shots is 2; .* --examples FILE"):
        generated_scorer(task, *ours, shots=2)()
    assert generated_scorer(task, *ours)()[0].task_version != scores[0].task_version  # other prompts


def test_a_question_of_a_conversation_has_the_earlier_ones_before_it(tmp_path: Path) -> None:
    (tmp_path / "dev.json").write_text(json.dumps(FILES["coqa"]["file"]))
    asked = direct_task(import_task(tmp_path / "dev.json", "coqa", tmp_path).name, tmp_path).questions()
    assert asked[1].prompt.endswith(" a region in France.\n\nQ: Where?\n\nA: France\n\nQ: Who?\n\nA:")
    assert asked[1].answers == ("The Normans", "the Normans")


def test_rows_of_the_hub_are_imported_too(tmp_path: Path) -> None:
    row = {"question": "Who?", "answer": {"value": "Ada", "aliases": ["Ada", "Countess"]}}
    made = import_task(write(tmp_path / "rows.jsonl", [row]), "triviaqa", tmp_path)
    assert direct_task(made.name, tmp_path).questions()[0].answers == ("Ada", "Countess")


@cases("evaluate/cases.yaml")
def test_records_of_another_form_are_refused(tmp_path: Path, task: str, row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        import_task(write(tmp_path / "rows.jsonl", [row]), task, tmp_path)


def test_examples_are_only_of_generated_tasks(tmp_path: Path) -> None:
    rows = write(tmp_path / "rows.jsonl", [{"goal": "a", "sol1": "b", "sol2": "c", "label": 0}])
    with pytest.raises(DataError, match="--examples: piqa has no solved examples; tasks that have are triviaqa, webqs"):
        import_task(rows, "piqa", tmp_path, rows)


@pytest.mark.parametrize("name", WRITTEN)
def test_the_hub_is_read_at_its_revision(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from datasets import Dataset

    rows = json.loads(file_text("evaluate/authors/hub.json"))[name]
    asked: list[dict[str, Any]] = []

    def load(**where: Any) -> Any:
        asked.append(where)
        more = [{**rows, "id": "finnish-1"}] if name == "tydiqa" else []
        texts = [f"{where['split']} {n}" for n in range(20)]
        turns = {"coqa": lambda text: {"questions": {"input_text": [text]}}, "quac": lambda text: {"questions": [text]}}
        own = turns.get(name, lambda text: {"question": text})
        return Dataset.from_list([*[{**rows, **own(text)} for text in texts], *more])

    monkeypatch.setattr("datasets.load_dataset", load)
    task = HubTask(name)
    assert [one.answers for one in task.questions()] == [("Ada",)] * 20
    examples = task.examples(MOST_EXAMPLES)
    assert len(set(examples)) == MOST_EXAMPLES
    assert all("train" in one.prompt for one in examples)
    assert task.examples(2) == examples[:2]
    assert {where["split"] for where in asked} == {"train", "test" if name == "webqs" else "validation"}
    assert all(re.fullmatch("[0-9a-f]{40}", where["revision"]) for where in asked if name in ("triviaqa", "squadv2"))


def test_without_the_data_one_message_says_what_to_import() -> None:
    with pytest.raises(TaskUnavailable, match=r"documents of squadv2.* import the file dev-v2.0.json: `gpas data"):
        HubTask("squadv2").questions()


@pytest.fixture(scope="module")
def recall() -> Any:
    return RecallTask().questions()


def test_recall_is_a_plain_loop(ours: tuple[Scorer, Tokenizer], recall: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecallTask, "questions", lambda _: recall)
    scorer, tokenizer = ours
    known = KNOWN_TASKS["recall"]
    questions = recall[:8]
    right = 0.0
    shared = 0.0
    for question in questions:
        (name,) = question.answers
        ids = alone(scorer.network, tokenizer, question.prompt, known.generated, 64 - known.generated)
        text = tokenizer.decode(ids).lstrip(" ")
        text = re.split("[" + re.escape("".join(known.until)) + "]", text)[0]
        plain = ["".join(c for c in one.lower() if c not in string.punctuation) for one in (text, name)]
        right += plain[0] == plain[1]
        words = Counter(plain[0].split()) & Counter(plain[1].split())
        shared += 2 * words.total() / max(1, len(plain[0].split()) + len(plain[1].split()))
    scores = {one.metric: one for one in generated_scorer(RecallTask(), *ours, limit=8)()}
    assert scores["exact_match"].value == pytest.approx(right / 8)
    assert (scores["f1"].value, scores["exact_match"].examples) == (pytest.approx(shared / 8), 8)


def test_recall_asks_for_the_rest_of_names_that_occur_before(recall: Any) -> None:
    answers = Counter(question.answers[0] for question in recall)
    assert len(recall) == 1200
    assert max(answers.values()) == 12  # no constant answer is right more often
    for question in recall:
        name = question.prompt[-3:] + question.answers[0]
        assert len(name) >= 6
        assert re.search(rf"\b{name}\b", question.prompt)


@needs_transformers
def test_a_network_of_transformers_writes_what_it_writes_by_itself(room: Room) -> None:
    pytest.importorskip("transformers")
    room.export(room.cell(norm="pre"), "plain")
    opened = open_model(find_model(str(room.folder / "out" / "plain")))
    scorer = Scorer(opened.network, opened.precision, max_length=64)
    found = generate(scorer, opened.tokenizer, PROMPTS[3:], most=6, until=NONE)
    for prompt, text in zip(PROMPTS[3:], found, strict=True):
        row = torch.tensor([opened.tokenizer.encode(prompt)], device=opened.precision.device)
        whole = opened.network.inner.generate(row, max_new_tokens=6, do_sample=False, attention_mask=row * 0 + 1)
        assert opened.tokenizer.decode(whole[0, row.shape[1] :].tolist()).strip() == text


def test_the_cost_counts_examples_and_answers() -> None:
    squad = Downstream(tasks=("squadv2",), shots=1, limit=10)
    assert downstream_tokens(squad) == 10 * (2 * 190 + 64)
    assert downstream_tokens(squad, cached=False) == 10 * (2 * 190 + 32) * 64
    assert downstream_tokens(Downstream(tasks=("recall",), max_length=64), cached=False) == 1200 * 64 * 16


@needs_harness
def test_prompts_and_examples_are_those_of_the_harness() -> None:
    import jinja2
    import lm_eval.tasks
    import yaml
    from lm_eval.tasks.squadv2.task import SQuAD2

    answered = {"text": ["France", "a region"]}
    document = {"id": "english-1", "title": "Older", "context": "In France.", "question": "Where?", "answers": answered}
    trivia = {"question": "Who?", "answer": {"value": "Ada", "aliases": ["Countess"]}}
    definitions = Path(lm_eval.tasks.__file__).parent
    for name, file, doc in (
        ("triviaqa", "triviaqa/default.yaml", trivia),
        ("tydiqa", "tydiqa/tydiqa_goldp_en.yaml", document),
    ):
        text = re.sub(r"!function \S+", "''", (definitions / file).read_text())
        template = yaml.safe_load(text)["doc_to_text"]
        assert form_of(name).read(doc).prompt == jinja2.Template(template).render(**doc)
    for doc in (document, {**document, "answers": {"text": []}}):
        ours = form_of("squadv2").read(doc)
        assert ours.prompt == SQuAD2.doc_to_text(None, doc)
        assert ours.solved == f"{ours.prompt}{SQuAD2.doc_to_target(None, doc)}\n\n"
    triviaqa = yaml.safe_load((definitions / "triviaqa/default.yaml").read_text())
    assert KNOWN_TASKS["triviaqa"].until[:3] == tuple(triviaqa["generation_kwargs"]["until"])
