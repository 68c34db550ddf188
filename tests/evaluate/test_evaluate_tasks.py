"""Files of questions: forms of documents, records of LLM-Adapters, the file of a project."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpas_cli.errors import DataError
from gpas_cli.evaluate.task_score import TaskUnavailable
from gpas_cli.evaluate.tasks import direct_task
from gpas_cli.evaluate.tasks.adapters import document_of
from gpas_cli.evaluate.tasks.embedded import EmbeddedTask
from gpas_cli.evaluate.tasks.forms import FormError, form_of
from gpas_cli.evaluate.tasks.local import import_task, read_records
from gpas_cli.spec.downstream import GROUPS

ARC = {"question": "Why is the sky blue?", "choices": {"text": ["sea", "air"], "label": ["A", "B"]}, "answerKey": "B"}


def record(body: str, answer: str, head: str = "Please choose the correct answer to the question: ") -> dict[str, str]:
    return {"instruction": f"{head}{body}", "input": "", "output": f"the correct answer is {answer}", "answer": answer}


def write(path: Path, documents: list[Any]) -> Path:
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))
    return path


def test_an_imported_file_gives_its_questions(tmp_path: Path) -> None:
    made = import_task(write(tmp_path / "own.jsonl", [ARC, ARC]), "arc_easy", tmp_path)
    assert made.questions == 2
    assert made.path == tmp_path / "tasks" / f"{made.name}.jsonl"
    task = direct_task(made.name, tmp_path)
    assert task is not None
    question = task.questions()[0]
    assert question.context == "Question: Why is the sky blue?\nAnswer:"
    assert (question.choices, question.answer) == (("sea", "air"), 1)
    assert task.chance == 25


def test_the_digest_is_that_of_the_documents_however_they_are_written(tmp_path: Path) -> None:
    lines = write(tmp_path / "own.jsonl", [ARC, ARC])
    indented = tmp_path / "own.json"
    indented.write_text(json.dumps([ARC, ARC], indent=3))
    assert import_task(lines, "arc_easy", tmp_path) == import_task(indented, "arc_easy", tmp_path)
    changed = write(tmp_path / "own.jsonl", [ARC, {**ARC, "answerKey": "A"}])
    assert import_task(changed, "arc_easy", tmp_path).name != import_task(indented, "arc_easy", tmp_path).name


def test_a_task_of_a_new_name_has_context_choices_and_answer(tmp_path: Path) -> None:
    document = {"context": "2 + 2 =", "choices": ["3", "4", "5"], "answer": 1}
    made = import_task(write(tmp_path / "sums.jsonl", [document]), "sums", tmp_path)
    task = direct_task(made.name, tmp_path)
    assert task is not None
    assert task.chance == pytest.approx(100 / 3)
    assert task.questions()[0].context == "2 + 2 ="


def test_a_missing_and_a_changed_file_are_unavailable(tmp_path: Path) -> None:
    made = import_task(write(tmp_path / "own.jsonl", [ARC]), "arc_easy", tmp_path)
    task = direct_task(made.name, tmp_path)
    assert task is not None
    write(made.path, [ARC, ARC])
    with pytest.raises(TaskUnavailable, match="has changed: its digest is"):
        task.questions()
    made.path.unlink()
    with pytest.raises(TaskUnavailable, match="gpas data import-task FILE --task arc_easy"):
        task.questions()


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "no field 'answerKey'|no field 'choices'"),
        ({**ARC, "answerKey": "C"}, "answerKey 'C' is not one of the labels A, B"),
        ({**ARC, "choices": {"text": ["one"], "label": ["A"]}, "answerKey": "A"}, "fewer than two choices"),
        ({**ARC, "choices": {"text": ["a", "b"], "label": ["B"]}}, "1 labels for 2 choices"),
        ({**ARC, "question": 3}, "'question' is not text"),
        (["a"], "a list, not a JSON object with question"),
    ],
)
def test_a_wrong_document_is_refused_with_its_place(tmp_path: Path, document: Any, message: str) -> None:
    path = write(tmp_path / "own.jsonl", [ARC, document])
    with pytest.raises(DataError, match=rf"own\.jsonl:2: .*({message})"):
        import_task(path, "arc_easy", tmp_path)
    assert not (tmp_path / "tasks").exists()


def test_the_place_in_a_list_is_the_line_where_the_document_begins(tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    path.write_text(json.dumps([ARC, {}], indent=2))
    line = path.read_text().splitlines().index("  {}") + 1
    with pytest.raises(DataError, match=rf"own\.json:{line}: no field"):
        import_task(path, "arc_easy", tmp_path)


def test_a_torn_file_is_refused_with_the_line(tmp_path: Path) -> None:
    path = write(tmp_path / "own.jsonl", [ARC])
    path.write_text(path.read_text() + '{"question": "Wh')
    with pytest.raises(DataError, match=r"own\.jsonl:2: not JSON"):
        list(read_records(path))


@pytest.mark.parametrize("name", ["Arc", "arc easy", "../arc", "choices", "wikitext", "indent"])
def test_a_name_that_cannot_be_a_task_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="--task"):
        import_task(write(tmp_path / "own.jsonl", [ARC]), name, tmp_path)


MARKS = "Who? Answer2: nobody\n\nAnswer1: a (Answer1) Answer2: b Answer3: c\n\nAnswer format: answer1/answer2/answer3"


@pytest.mark.parametrize(
    ("task", "source", "context", "choices", "answer"),
    [
        (
            "arc_easy",
            record("Who?\n\nAnswer1: a Answer2: b\n\nAnswer format: answer1/answer2", "answer2"),
            "Question: Who?\nAnswer:",
            ("a", "b"),
            1,
        ),
        ("openbookqa", record(MARKS, "answer3"), "Who? Answer2: nobody", ("a (Answer1)", "b", "c"), 2),
        (
            "social_iqa",
            record("Ann left. What next?\n\nAnswer1: a Answer2: b Answer3: c\n\nAnswer format: x", "answer1"),
            "Q: Ann left. What next?\nA:",
            ("a", "b", "c"),
            0,
        ),
        (
            "piqa",
            record(
                "Cut bread\n\nSolution1: knife\n\nSolution2: spoon\n\nAnswer format: solution1/solution2",
                "solution1",
                "Please choose the correct solution to the question: ",
            ),
            "Question: Cut bread\nAnswer:",
            ("knife", "spoon"),
            0,
        ),
        (
            "boolq_closed_book",
            {
                "instruction": "Please answer the following question with true or false, question: is it so?\n\n"
                "Answer format: true/false",
                "answer": "true",
            },
            "Question: is it so?\nAnswer:",
            ("no", "yes"),
            1,
        ),
    ],
)
def test_records_of_llm_adapters(
    task: str, source: dict[str, str], context: str, choices: tuple[str, ...], answer: int
) -> None:
    question = form_of(task).read(document_of(source, task))
    assert (question.context, question.choices, question.answer) == (context, choices, answer)


def test_a_winogrande_record_has_a_context_for_each_choice() -> None:
    head = "Please choose the correct answer to fill in the blank to complete the given sentence: "
    source = record("The _ fell.\n\nOption1: cup Option2: cat\n\nAnswer format: option1/option2", "option2", head)
    question = form_of("winogrande").read(document_of(source, "winogrande"))
    assert [question.context_of(choice) for choice in (0, 1)] == ["The cup", "The cat"]
    assert (question.choices, question.answer) == (("fell.", "fell."), 1)


def test_boolq_without_passages_is_only_the_closed_book_task() -> None:
    with pytest.raises(FormError, match="import it as --task boolq_closed_book"):
        document_of({"instruction": "question: is it so?", "answer": "true"}, "boolq")


@pytest.mark.parametrize("name", GROUPS["embedded"])
def test_embedded_tasks_are_balanced_and_always_the_same(name: str) -> None:
    task = EmbeddedTask(name)
    found = task.questions()
    assert found == task.questions()
    assert len(found) >= 900
    places = [question.answer for question in found]
    assert len({places.count(place) for place in set(places)}) == 1
    assert task.chance == pytest.approx(100 / len(set(places)))
    # The first questions are balanced too: `limit` takes them.
    assert sorted(places[: len(set(places))]) == sorted(set(places))
    assert task.version.startswith("1-")
