"""Records to finetune on: files, prompts, questions, and messages with file and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpas_cli.data import records
from gpas_cli.data.corpora import Document
from gpas_cli.data.questions import KINDS, questions
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


def test_the_prompt_of_commonsense170k() -> None:
    record = FinetuneRecord(RECORD["instruction"], "", RECORD["output"])
    assert prompt(record, "alpaca") + record.output == (
        "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n"
        "\n"
        "### Instruction:\n"
        "Please choose the correct answer to the question: Stars are\n"
        "\n"
        "Answer1: cold Answer2: hot\n"
        "\n"
        "Answer format: answer1/answer2\n"
        "\n"
        "### Response:\n"
        "the correct answer is answer2"
    )


def test_the_prompt_of_a_record_with_input() -> None:
    assert prompt(FinetuneRecord("Add.", "1 + 1", "2"), "alpaca") == (
        "Below is an instruction that describes a task, paired with an input that provides further context. Write a "
        "response that appropriately completes the request.\n\n### Instruction:\nAdd.\n\n### Input:\n1 + 1\n\n"
        "### Response:\n"
    )
    assert prompt(FinetuneRecord("Add ", "1 + 1", "2"), "plain") == "Add 1 + 1"


@pytest.mark.parametrize("suffix", ["json", "jsonl"])
def test_records_are_read_from_lists_and_lines(tmp_path: Path, suffix: str) -> None:
    several = [RECORD, {**RECORD, "input": "an input", "output": "two\u2028lines"}, {"instruction": "a", "output": "b"}]
    text = json.dumps(several, indent=4) if suffix == "json" else "\n".join(map(json.dumps, several)) + "\n\n"
    path = tmp_path / f"records.{suffix}"
    path.write_text(f"\ufeff{text}" if suffix == "json" else text, "utf-8")
    found = list(read_records(path))
    assert [record.input for record in found] == ["", "an input", ""]
    assert [record.output for record in found] == [RECORD["output"], "two\u2028lines", "b"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a.json:1: not a list of records, [{...}, ...]"),
        ('{"instruction": "a"}', "a.json:1: not a list of records"),
        ('[\n {"instruction": "a", "output": "b"},\n {"instruction": "a"}\n]', "a.json:3: no field 'output'"),
        (
            '[\n {"instruction": "a", "output": "b"},\n\n {"instruction": 5, "output": "b"}\n]',
            "a.json:4: the field 'in",
        ),
        ('[{"instruction": "a", "output": ""}]', "a.json:1: the field 'output' is empty"),
        (
            '[{"instruction": "a", "output": "b"},\n"c"]',
            "a.json:2: a str, not a record with instruction, input, output",
        ),
        ('[\n{"instruction": "a", "output": "b"}\n{}]', "a.json:3: a comma or the end of the list is missing here"),
        ('[\n{"instruction": "a", "output: "b"}]', "a.json:2: not JSON: "),
        ('[{"instruction": "a", "output": "b"}', "a.json:1: a comma or the end of the list is missing here"),
        ('[{"instruction": "a", "output": "b"}]\n[]', "a.json:2: text after the end of the list"),
        ('[{"instruction": "a", "output": "\\ud800"}]', "a.json:1: the field 'output' is not Unicode"),
    ],
)
def test_an_invalid_record_is_named_with_file_and_line(tmp_path: Path, text: str, message: str) -> None:
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
    assert held_out is not None
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


def test_commonsense170k_is_read_from_the_cache_or_its_address_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*_: object, **__: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr(records.urllib.request, "urlopen", offline)
    path = tmp_path / "instructions" / "commonsense_170k.json"
    with pytest.raises(DataError, match=rf"cannot download https://.*: no network; copy that file to {path}"):
        training_source(Finetune(), tmp_path, tmp_path, quiet)
    path.parent.mkdir()
    path.write_text(json.dumps([RECORD]))
    assert len(training_source(Finetune(), tmp_path, tmp_path, quiet).records()) == 1


def test_embedded_records_are_questions_with_their_right_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    validation = list(Stdlib().documents("validation"))
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
