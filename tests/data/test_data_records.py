"""Records to finetune on, and questions: files, prompts, and messages with file and line."""

import json
import os
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from cases import cases

from gpas_cli.data import records
from gpas_cli.data.corpora import Document
from gpas_cli.data.instructions import InstructionRows, encode, held_out_batches, prepare_instructions
from gpas_cli.data.loader import IGNORED, MadeBatches, RowOrder
from gpas_cli.data.questions import _BRACKETS, KINDS, Question, questions
from gpas_cli.data.records import (
    FinetuneRecord,
    embedded,
    held_out_source,
    prompt,
    read_records,
    training_source,
    unreadable_reason,
)
from gpas_cli.data.stdlib import Stdlib
from gpas_cli.data.tokenizer import Tokenizer, train_bpe
from gpas_cli.errors import DataError
from gpas_cli.spec.finetune import Finetune

RECORD = {
    "instruction": "Please choose the correct answer to the question: Stars are\n\nAnswer1: cold Answer2: hot\n\n"
    "Answer format: answer1/answer2",
    "input": "",
    "output": "the correct answer is answer2",
    "answer": "answer2",
}


def quiet(message: str) -> None:
    """Ignore progress."""


@cases("data/cases.yaml", more="")
def test_the_prompt_of_a_record(instruction: str, template: str, text: str, more: str) -> None:
    assert prompt(FinetuneRecord(instruction, more, "the answer"), template) == text


@pytest.mark.parametrize("suffix", ["json", "jsonl"])
def test_records_are_read_from_lists_and_lines(tmp_path: Path, suffix: str) -> None:
    several = [RECORD, {**RECORD, "input": "an input", "output": "two\u2028lines"}, {"instruction": "a", "output": "b"}]
    text = json.dumps(several, indent=4) if suffix == "json" else "\n".join(map(json.dumps, several)) + "\n\n"
    path = tmp_path / f"records.{suffix}"
    path.write_text(f"\ufeff{text}" if suffix == "json" else text, "utf-8")
    found = list(read_records(path))
    assert [record.input for record in found] == ["", "an input", ""]
    assert [record.output for record in found] == [RECORD["output"], "two\u2028lines", "b"]


@cases("data/cases.yaml")
def test_an_invalid_record_is_named_with_file_and_number(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(DataError) as error:
        list(read_records(path))
    assert f"{tmp_path}/{message}" in str(error.value)


def test_an_invalid_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(RECORD) + "\n\n{\n")
    with pytest.raises(DataError, match=r"a\.jsonl:3: not a line of JSON"):
        list(read_records(path))


def test_a_folder_has_tasks_to_train_on_and_to_evaluate_on(tmp_path: Path) -> None:
    for task, part in (("b", "train"), ("a", "train"), ("a", "test")):
        (tmp_path / "tasks" / task).mkdir(parents=True, exist_ok=True)
        content: list[dict[str, Any]] = [{"instruction": f"{task} {part}", "output": "x"}]
        (tmp_path / "tasks" / task / f"{part}.json").write_text(json.dumps(content))
    spec = Finetune(data="tasks")
    found = training_source(spec, tmp_path, tmp_path, quiet)
    assert [record.instruction for record in found.records()] == ["a train", "b train"]
    held_out = held_out_source(spec, tmp_path, tmp_path, quiet)
    assert [record.instruction for record in held_out.records()] == ["a test"]
    before = found.fingerprint(tmp_path)
    (tmp_path / "tasks/b/train.json").write_text(json.dumps([{"instruction": "other", "output": "x"}]))
    assert training_source(spec, tmp_path, tmp_path, quiet).fingerprint(tmp_path) != before


def test_a_missing_file_is_reported_before_anything_starts(tmp_path: Path) -> None:
    assert unreadable_reason(Finetune(data="embeded"), tmp_path, tmp_path) == (
        f"finetune.data: there is no file or folder {tmp_path}/embeded; did you mean 'embedded'?"
    )
    (tmp_path / "empty").mkdir()
    assert "has no folder with a file train.json" in unreadable_reason(Finetune(data="empty"), tmp_path, tmp_path)
    (tmp_path / "a.txt").write_text("a")
    assert "neither a .json nor a .jsonl file" in unreadable_reason(Finetune(data="a.txt"), tmp_path, tmp_path)
    assert unreadable_reason(Finetune(), tmp_path, tmp_path) == ""
    missing = Finetune(data="embedded", validation="no.json")
    assert unreadable_reason(missing, tmp_path, tmp_path).startswith("finetune.validation: there is no file")
    os.mkfifo(tmp_path / "pipe.json")
    assert "pipe.json is not a file" in unreadable_reason(Finetune(data="pipe.json"), tmp_path, tmp_path)
    (tmp_path / "empty/a").mkdir()
    (tmp_path / "empty/a/train.json").symlink_to("gone.json")
    assert "is a link to gone.json, which" in unreadable_reason(Finetune(data="empty"), tmp_path, tmp_path)


def test_commonsense170k_is_in_the_cache_or_has_its_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records.urllib.request, "urlopen", Mock(side_effect=OSError("no network")))
    path = tmp_path / "instructions" / "commonsense_170k.json"
    with pytest.raises(DataError, match=rf"cannot download https://.*: no network; copy that file to {path}"):
        training_source(Finetune(), tmp_path, tmp_path, quiet)
    path.parent.mkdir()
    path.write_text(json.dumps([RECORD]))
    assert len(training_source(Finetune(), tmp_path, tmp_path, quiet).records()) == 1


def test_embedded_records_are_questions_with_their_right_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    validation = list(islice(Stdlib().documents("validation"), 30))
    monkeypatch.setattr(records, "_HELD_OUT_EXAMPLES", 30)
    monkeypatch.setattr(Stdlib, "documents", lambda self, split: iter(validation if split == "validation" else []))
    found = embedded("validation")
    assert len(found) == records._HELD_OUT_EXAMPLES
    assert found == embedded("validation")
    right = {
        (question.context, question.delimiter + question.choices[question.answer])
        for document in validation
        if document.id.startswith("lib/")
        for kind in KINDS
        for question in questions(document.text, kind)
    }
    assert {(record.instruction, record.output) for record in found} <= right
    assert all(record.input == "" for record in found)


def test_the_recipe_of_embedded_records_is_new_when_they_change() -> None:
    """If this fails, the questions have changed: change records._EMBEDDED_RECIPE, then the digest here."""
    text = (
        "def total(values, start):\n    result = start\n    for value in values:\n        result = result + value\n" * 9
    )
    found = [records._asked(Document("lib/a.py", text).text, kind) for kind in KINDS]
    digest = records.disk.digest(found)
    assert (records._EMBEDDED_RECIPE, digest) == ("questions-1", "ebbbd6d308b11d98")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Return a byte-level BPE whose only merge is "ab"."""
    return Tokenizer(train_bpe(["ab", "ab"], 260), 260, origin="a test", local=True)


def spec(**values: Any) -> Finetune:
    return Finetune(**{"data": "a.json", "template": "plain", "length": 8, "seed": 0, "precision": "fp32", **values})


def words(tokenizer: Tokenizer, ids: Any) -> list[str]:
    return [tokenizer.backend.id_to_token(int(identity)) for identity in ids]


def test_only_answers_and_end_tokens_are_targets(tokenizer: Tokenizer) -> None:
    examples = encode([FinetuneRecord("xy", "", "z"), FinetuneRecord("p", "", "qr")], "plain", tokenizer, "f")
    assert words(tokenizer, examples.ids) == ["x", "y", "z", "</s>", "p", "q", "r", "</s>"]
    assert examples.answers.tolist() == [False, False, True, True, False, True, True, True]
    assert len(examples) == 2
    batch = InstructionRows(examples, spec(length=7), pad_id=0).batch(np.array([0]))
    assert words(tokenizer, batch.inputs[0]) == ["x", "y", "z", "</s>", "p", "q", "r"]
    assert [t if t == IGNORED else words(tokenizer, [t])[0] for t in batch.targets[0].tolist()] == [
        IGNORED, "z", "</s>", IGNORED, "q", "r", "</s>",
    ]  # fmt: skip
    everything = InstructionRows(examples, spec(length=7, loss_on="all"), pad_id=0).batch(np.array([0]))
    assert words(tokenizer, everything.targets[0]) == ["y", "z", "</s>", "p", "q", "r", "</s>"]


def test_a_token_across_the_end_of_the_prompt_is_a_target(tokenizer: Tokenizer) -> None:
    """Alone, the prompt ends in the token "a"; in the example "ab" is one token, of which the answer is a part."""
    assert words(tokenizer, tokenizer.encode("xa")) == ["x", "a"]
    examples = encode([FinetuneRecord("xa", "", "by")], "plain", tokenizer, "f")
    assert words(tokenizer, examples.ids) == ["x", "ab", "y", "</s>"]
    assert examples.answers.tolist() == [False, True, True, True]


def test_padded_rows_have_one_example_each(tokenizer: Tokenizer) -> None:
    several = [FinetuneRecord("x", "", "y"), FinetuneRecord("pqrstu", "", "v"), FinetuneRecord("pqr", "", "stuvw")]
    rows = InstructionRows(encode(several, "plain", tokenizer, "f"), spec(layout="pad", length=5), pad_id=0)
    batch = rows.batch(np.array([2, 0, 1]))
    assert (len(rows), rows.cut_examples, batch.inputs.shape) == (3, 2, (3, 4))
    assert words(tokenizer, batch.inputs[1]) == ["x", "y", "</s>", "<pad>"]
    wanted = [[IGNORED, IGNORED, "s", "t"], ["y", "</s>", IGNORED, IGNORED], [IGNORED] * 4]
    found = [[t if t == IGNORED else words(tokenizer, [t])[0] for t in row] for row in batch.targets.tolist()]
    assert found == wanted


def test_every_row_is_read_once_in_each_epoch_in_an_order_of_the_seed(tokenizer: Tokenizer) -> None:
    several = [FinetuneRecord(chr(97 + number), "", "z") for number in range(12)]
    rows = InstructionRows(encode(several, "plain", tokenizer, "f"), spec(layout="pad"), pad_id=0)

    def epoch(seed: int, number: int) -> list[int]:
        batches = MadeBatches(RowOrder(len(rows), 5, seed), rows.batch)
        ids = np.concatenate([batches.at(step).inputs[:, 0] for step in range(13)])
        return ids[12 * number : 12 * number + 12].tolist()

    assert len(set(epoch(1, 0))) == len(set(epoch(1, 4))) == 12
    assert epoch(1, 0) == epoch(1, 0) != epoch(1, 1) != epoch(2, 1)
    batches = MadeBatches(RowOrder(len(rows), 5, 1), rows.batch)
    assert (
        batches.at(7).digest()
        == MadeBatches(RowOrder(len(rows), 5, 1), rows.batch).at(7).digest()
        != batches.at(6).digest()
    )


def test_held_out_rows_are_the_same_ones_up_to_the_budget(tokenizer: Tokenizer) -> None:
    several = [FinetuneRecord(chr(97 + number), "", "z") for number in range(12)]
    rows = InstructionRows(encode(several, "plain", tokenizer, "f"), spec(layout="pad"), pad_id=0)
    assert sum(len(batch.inputs) for batch in held_out_batches(rows, 5, 10**6)) == 12
    first = [batch.digest() for batch in held_out_batches(rows, 4, 10)]
    assert len(first) == 2  # 8 targets a batch: a token and an end token for each of 4 rows
    assert first == [batch.digest() for batch in held_out_batches(rows, 4, 10**6)][:2]
    assert list(held_out_batches(None, 4, 10)) == []


def test_rows_are_of_the_records_of_now(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"instruction": "xy", "input": "", "output": "z"}] * 20))
    done: list[str] = []

    def rows(**values: Any) -> str:
        found = prepare_instructions(spec(**values), tokenizer, tmp_path / "cache", root=tmp_path, notify=done.append)
        return found.train.batch(np.arange(3)).digest()

    first = rows()
    assert done == ["tokenising the train records of a.json"]
    assert rows() == first
    assert rows(length=4, loss_on="all") != first
    path.write_text(json.dumps([{"instruction": "xy", "input": "", "output": "w"}] * 20))
    assert rows() != first


def test_too_few_records_for_a_row_are_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "a.json").write_text(json.dumps([{"instruction": "xy", "output": "z"}]))
    with pytest.raises(DataError, match="1 examples with 4 tokens, too few for one row of length: 8"):
        prepare_instructions(spec(), tokenizer, tmp_path / "cache", root=tmp_path)
    (tmp_path / "a.json").write_text("[]")
    with pytest.raises(DataError, match=r"finetune\.data: a\.json has no records"):
        prepare_instructions(spec(), tokenizer, tmp_path / "cache", root=tmp_path)


CODE = """\
def spend(budget, price, amount):
    total = price * amount
    if total > budget:
        raise ValueError(budget)
    rest = budget - total
    return {"rest": rest, "total": [total]
    }
"""


def document(functions: int = 40) -> str:
    """Return a document of functions that differ in their names."""
    return "\n".join(
        CODE.replace("spend", f"spend{i}").replace("price", f"price{i}").replace("amount", f"amount{i}")
        for i in range(functions)
    )


def answered(question: Question) -> str:
    """Return the context with the right choice."""
    return question.context_of(question.answer) + question.delimiter + question.choices[question.answer]


@pytest.mark.parametrize("kind", KINDS)
def test_a_document_always_gives_the_same_questions_and_the_right_choice_continues_it(kind: str) -> None:
    text = document()
    found = list(questions(text, kind))
    assert found == list(questions(text, kind)) != []
    for question in found:
        assert len(set(question.choices)) == len(question.choices)
        assert question.answer >= 0
        assert answered(question) in text


@pytest.mark.parametrize("kind", ["names", "indent"])
def test_the_place_of_the_answer_is_balanced(kind: str) -> None:
    places = Counter(question.answer for question in questions(document(200), kind))
    assert set(places) == {0, 1, 2, 3}
    assert max(places.values()) < 1.5 * min(places.values())


def test_names_are_those_of_the_lines_before() -> None:
    text = "first = second + third\nfourth = 1\nresult = third\n"
    (question,) = questions(text, "names")
    assert question.context == "first = second + third\nfourth = 1\nresult ="
    assert set(question.choices) == {" first", " second", " third", " fourth"}
    assert question.choices[question.answer] == " third"


def test_a_bracket_stands_between_a_letter_and_white_space() -> None:
    found = [
        _BRACKETS[question.answer] for question in questions("x\ncall(one)\ncall(one).more\nd[two]\nif x:\n", "bracket")
    ]
    assert found == [")", "]", ":"]


def test_blank_lines_and_odd_indentation_give_no_question_about_indentation() -> None:
    assert list(questions("if x:\n\n    y\n   z\n", "indent")) == []
