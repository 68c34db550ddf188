"""Tasks from files, the embedded tasks, and scores of a trained cell at them.

Perplexities on texts: every token is predicted once, and the numbers are those of the network's own loss.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cases import cases
from exporting import CPU, Room, needs_harness
from local_documents import score_local, write
from test_extensions_harness import DOCUMENTS, filled
from torch import Tensor

from gpas_cli import __version__
from gpas_cli.data.questions import Question
from gpas_cli.data.text_documents import ScoredText, TextDocument, read_text
from gpas_cli.data.tokenizer import Tokenizer, train_bpe
from gpas_cli.errors import DataError, GpasError
from gpas_cli.evaluate import downstream
from gpas_cli.evaluate.downstream import choices_scorer, requests, score_task, score_text, standard_error, windows
from gpas_cli.evaluate.likelihood import Scorer
from gpas_cli.evaluate.tasks import TaskUnavailable
from gpas_cli.evaluate.tasks.forms import FORMS
from gpas_cli.evaluate.tasks.local import EmbeddedTask, digest_of, direct_task, import_task
from gpas_cli.model.llama import Llama, build
from gpas_cli.spec.downstream import GROUPS, Downstream, Texts
from gpas_cli.spec.parse_cell import parse_model


@pytest.fixture(scope="module")
def ours(room: Room) -> tuple[Scorer, Tokenizer]:
    network, tokenizer = room.opened(room.cell(norm="pre", gate="gpas"))
    return Scorer(network, CPU, max_length=64), tokenizer


@needs_harness
@pytest.mark.parametrize("name", sorted(DOCUMENTS.keys() & FORMS.keys()))
def test_the_scores_are_those_of_the_harness_on_the_same_documents(
    ours: tuple[Scorer, Tokenizer], tmp_path: Path, name: str
) -> None:
    source = write(tmp_path / f"{name}.jsonl", [filled(DOCUMENTS[name]["document"]) for _ in range(12)])
    task = direct_task(import_task(source, name, tmp_path).name, tmp_path)
    direct = {score.metric: score for score in choices_scorer(task, *ours)()}
    for theirs in score_local(name, *ours, tmp_path):
        mine = direct[theirs.metric]
        assert (mine.value, mine.examples, mine.shots) == (theirs.value, theirs.examples, theirs.shots)
        assert mine.stderr == pytest.approx(theirs.stderr)


class Fixed(EmbeddedTask):
    """A task of given questions."""

    def questions(self) -> Sequence[Question]:
        return [Question("gate norm", ("layer", "stream scale"), answer) for answer in (0, 1, 1, 0)]


def test_the_limit_takes_the_first_questions(ours: tuple[Scorer, Tokenizer]) -> None:
    whole = {score.metric: score for score in choices_scorer(Fixed("indent"), *ours)()}
    assert (whole["acc"].examples, whole["acc"].value) == (4, 0.5)
    assert {score.examples for score in choices_scorer(Fixed("indent"), *ours, limit=3)()} == {3}


def test_the_standard_error_is_that_of_a_mean() -> None:
    assert standard_error([True, False, True, True]) == pytest.approx(math.sqrt(0.75 * 0.25 / 3))
    assert standard_error([True]) is None


LONG = {"goal": "cut", "sol1": "gate " * 100, "sol2": "norm", "label": 0}


@needs_harness
@pytest.mark.parametrize("limit", [None, 6])
def test_a_question_with_a_choice_that_is_too_long_is_skipped_and_counted(
    ours: tuple[Scorer, Tokenizer], tmp_path: Path, limit: int | None
) -> None:
    documents = [filled(DOCUMENTS["piqa"]["document"]) for _ in range(9)]
    fitting, whole = tmp_path / "fitting", tmp_path / "whole"
    for folder, lines in ((fitting, documents), (whole, [documents[0], LONG, *documents[1:8], LONG, documents[8]])):
        folder.mkdir()
        write(folder / "piqa.jsonl", lines)
    scored = 9 if limit is None else 5
    expected = {s.metric: s for s in score_local("piqa", *ours, fitting, limit=scored)}
    task = direct_task(import_task(whole / "piqa.jsonl", "piqa", whole).name, whole)
    for found in (choices_scorer(task, *ours, limit=limit)(), score_local("piqa", *ours, whole, limit=limit)):
        scores = {score.metric: score for score in found}
        assert scores.keys() == {"acc", "acc_norm", "skipped"}
        assert scores["skipped"].value == (2 if limit is None else 1)
        assert {score.examples for score in found} == {scored}
        for metric, one in expected.items():
            assert scores[metric].value == one.value
            assert scores[metric].stderr == pytest.approx(one.stderr)


@needs_harness
def test_a_task_without_a_question_that_fits_has_their_number_and_the_others_are_scored(
    ours: tuple[Scorer, Tokenizer], tmp_path: Path
) -> None:
    source = write(tmp_path / "piqa.jsonl", [LONG, LONG])
    with pytest.raises(TaskUnavailable, match="every question has a choice of more than max_length, 64 tokens"):
        score_local("piqa", *ours, tmp_path)
    name = import_task(source, "piqa", tmp_path).name
    other = import_task(
        write(tmp_path / "own.jsonl", [{"context": "a", "choices": ["b", "c"], "answer": 0}]), "own", tmp_path
    ).name
    skipped, found = (score_task(one, Downstream(), *ours, tmp_path) for one in (name, other))
    assert [(one.task, one.metric, one.value, one.examples) for one in skipped] == [(name, "skipped", 2, 0)]
    assert found[0].task == other


REAL = Path(__file__).parents[1] / "real"
ARC = {"question": "Why is the sky blue?", "choices": {"text": ["sea", "air"], "label": ["A", "B"]}, "answerKey": "B"}


def test_an_imported_file_gives_its_questions(tmp_path: Path) -> None:
    made = import_task(write(tmp_path / "own.jsonl", [ARC, ARC]), "arc_easy", tmp_path)
    assert (made.questions, made.path) == (2, tmp_path / "tasks" / f"{made.name}.jsonl")
    question = direct_task(made.name, tmp_path).questions()[0]
    assert question.context == "Question: Why is the sky blue?\nAnswer:"
    assert (question.choices, question.answer) == (("sea", "air"), 1)


def test_the_digest_is_that_of_the_documents_however_they_are_written(tmp_path: Path) -> None:
    lines = write(tmp_path / "own.jsonl", [ARC, ARC])
    indented = tmp_path / "own.json"
    indented.write_text(json.dumps([ARC, ARC], indent=3))
    assert import_task(lines, "arc_easy", tmp_path) == import_task(indented, "arc_easy", tmp_path)
    changed = write(tmp_path / "own.jsonl", [ARC, {**ARC, "answerKey": "A"}])
    assert import_task(changed, "arc_easy", tmp_path).name != import_task(indented, "arc_easy", tmp_path).name


def test_a_missing_and_a_changed_file_are_unavailable(tmp_path: Path) -> None:
    made = import_task(write(tmp_path / "own.jsonl", [ARC]), "arc_easy", tmp_path)
    task = direct_task(made.name, tmp_path)
    write(made.path, [ARC, ARC])
    with pytest.raises(TaskUnavailable, match="has changed: its digest is"):
        task.questions()
    made.path.unlink()
    with pytest.raises(TaskUnavailable, match="gpas data import-task FILE --task arc_easy"):
        task.questions()


@cases("evaluate/cases.yaml")
def test_a_wrong_document_is_refused_with_its_place(tmp_path: Path, document: Any, message: str) -> None:
    path = write(tmp_path / "own.jsonl", [ARC, document])
    with pytest.raises(DataError, match=rf"own\.jsonl:2: .*({message})"):
        import_task(path, "arc_easy", tmp_path)
    assert not (tmp_path / "tasks").exists()


@pytest.mark.parametrize("name", ["Arc", "arc easy", "../arc", "choices", "wikitext", "indent"])
def test_a_name_that_cannot_be_a_task_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="--task"):
        import_task(write(tmp_path / "own.jsonl", [ARC]), name, tmp_path)


LINE = json.dumps(ARC) + "\n"
# name of the file, its content, the task, words of the message
REFUSED = [
    ("a.json", json.dumps([ARC, {}], indent=2), "arc_easy", r"a\.json, record 2: no field"),
    ("a.jsonl", LINE + '{"question": "Wh', "arc_easy", r"a\.jsonl:2: not a line of JSON"),
    ("a.jsonl", LINE + "{}{}", "arc_easy", r"a\.jsonl:2: not a line of JSON"),
    ("a.jsonl", LINE + "[" * 200_000, "arc_easy", r"a\.jsonl:2: not a line of JSON: it is nested too deeply"),
    ("a.json", json.dumps([ARC], indent=2).rstrip("]\n"), "arc_easy", r"a\.json: not JSON: Expecting ',' delimiter"),
    ("a.json", (REAL / "llm_adapters/boolq.json").read_text(), "boolq", r"a\.json, record 1: no field 'passage'"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "task", "message"), REFUSED, ids=[message for *_, message in REFUSED])
def test_a_file_that_is_not_of_the_task_is_refused(
    tmp_path: Path, name: str, content: str, task: str, message: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=message):
        import_task(tmp_path / name, task, tmp_path)


def test_a_task_that_an_earlier_version_imported_wrongly_is_unavailable(tmp_path: Path) -> None:
    option2 = "Maria Answer format: option1/option2"
    document = {"sentence": "Ann so _ left.", "option1": "Sarah", "option2": option2, "answer": "1"}
    content = (json.dumps(document) + "\n").encode()
    task = direct_task(f"winogrande@{digest_of(content)}", tmp_path)
    task.path.parent.mkdir()
    task.path.write_bytes(content)
    with pytest.raises(TaskUnavailable, match=r"jsonl:1: a choice contains 'Answer format:'.*import the file again"):
        task.questions()


@pytest.mark.parametrize("name", GROUPS["embedded"])
def test_embedded_tasks_are_balanced_and_always_the_same(name: str) -> None:
    task = EmbeddedTask(name)
    found = task.questions()
    assert found == task.questions()
    assert len(found) >= 900
    places = [question.answer for question in found]
    assert len({places.count(place) for place in set(places)}) == 1
    # The first questions are balanced too: `limit` takes them.
    assert sorted(places[: len(set(places))]) == sorted(set(places))
    assert task.version.startswith("1-")


VOCAB = 300
TEXT = "the stream of a layer is scaled by its depth and the gate of the layer opens"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(train_bpe([TEXT] * 4, VOCAB), VOCAB, origin="test")


@pytest.fixture(scope="module")
def network() -> Llama:
    size = {"hidden": 16, "ffn": 24, "heads": 2, "layers": 2, "vocab": VOCAB}
    return build(parse_model({"size": size, "norm": "pre", "init": {"std": 0.3}}), seed=1, dtype=torch.float64)


def scorer(network: Llama, length: int) -> Scorer:
    return Scorer(network, CPU, max_length=length)


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
    with pytest.raises(GpasError, match="more than the 8 tokens"):
        score_text("lambada_openai", section, scorer(network, 8), tokenizer, tmp_path)
    assert score_text("own.txt", section, scorer(network, 8), tokenizer, tmp_path)


def loss_of(network: Llama, ids: list[int]) -> Tensor:
    with torch.no_grad():
        logits = network(torch.tensor([ids[:-1]]))
    return F.cross_entropy(logits[0], torch.tensor(ids[1:]), reduction="sum")


def test_scores_are_the_loss_by_token_byte_and_word(tmp_path: Path, network: Llama, tokenizer: Tokenizer) -> None:
    (tmp_path / "own.txt").write_text(TEXT)
    ids = [tokenizer.eos_id, *tokenizer.encode(TEXT)]
    nats = loss_of(network, ids).item()
    section = Texts(texts=("own=own.txt", "gone/*.txt"))
    found = score_text("own", section, scorer(network, 4096), tokenizer, tmp_path)
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
    with pytest.raises(DataError, match="no file"):
        score_text("gone/*.txt", section, scorer(network, 4096), tokenizer, tmp_path)


def test_a_text_file_is_one_document_whatever_its_size_and_beside_others(
    tmp_path: Path, network: Llama, tokenizer: Tokenizer
) -> None:
    """As a training corpus a file of this size is divided at blank lines, so that a part can be held out."""
    text = "\n\n".join([TEXT] * 600)
    (tmp_path / "own.txt").write_text(text)
    section = Texts(texts=("own=*.txt",))
    alone = score_text("own", section, scorer(network, 64), tokenizer, tmp_path)
    ids = [tokenizer.eos_id, *tokenizer.encode(text)]
    nats = 0.0
    for window in windows(ids, 64):
        row = torch.tensor([[*window.context, *window.continuation]])
        count = len(window.continuation)
        with torch.no_grad():
            logs = torch.log_softmax(network(row[:, :-1])[0, -count:], -1)
        nats -= float(logs.gather(1, row[0, -count:, None]).sum())
    assert alone[-1].value == pytest.approx(math.exp(nats / len(text.split())), rel=1e-9)
    assert {(one.examples, one.harness) for one in alone} == {
        (1, f"gpas_cli {__version__} in windows of 64 tokens, the first of a document after </s> (1), "
            "later ones after the token before them")
    }  # fmt: skip
    (tmp_path / "second.txt").write_text(text)
    both = score_text("own", section, scorer(network, 64), tokenizer, tmp_path)
    assert [one.value for one in both] == pytest.approx([one.value for one in alone], rel=1e-12)
    assert both[0].examples == 2
    assert read_text("own.txt", tmp_path).digest == read_text("./own.txt", tmp_path).digest


def test_a_last_word_follows_its_context(tokenizer: Tokenizer) -> None:
    (one,) = requests(TextDocument("the gate of", " layer", 1, 6), tokenizer, 8)
    assert tokenizer.decode(one.context) == "the gate of"
    assert tokenizer.decode(one.continuation) == " layer"
