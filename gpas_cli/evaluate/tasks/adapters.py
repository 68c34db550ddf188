"""Records of the LLM-Adapters project as documents of lm-evaluation-harness.

A record has everything in its instruction, and names the answer:

    {"instruction": "Please choose the correct answer to the question: ...\\n\\nAnswer1: ... Answer2: ...\\n\\n
     Answer format: answer1/answer2", "input": "", "output": "the correct answer is answer2", "answer": "answer2"}

WinoGrande has a blank instead of a blank line before "Answer format:". BoolQ has no passages, so that only the
closed-book task can be made of it. Anything else is refused, since a guess would change scores unnoticed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpas_cli.evaluate.tasks.forms import ANSWER_FORMAT, Doc, FormError

_NUMBERED = re.compile(r"(Answer|Solution|Option|Ending)(\d+): ?")
_LETTERS = "ABCDEFGH"
_TASK = re.compile(r"Please [^:]*(?:question|sentence): ?", re.IGNORECASE)
# The last sentence of a context is unfinished in ActivityNet (3,243 questions) and complete in WikiHow (6,799).
_CONTINUED = re.compile(r"(.*[.!?]) +([^.!?]+)", re.DOTALL)
_FORMAT = re.compile(rf"\s+{ANSWER_FORMAT}\s*")


def is_adapter_record(record: object) -> bool:
    """Return whether a record has the form of LLM-Adapters."""
    return isinstance(record, Mapping) and {"instruction", "answer"} <= record.keys()


def document_of(record: Mapping[str, Any], task: str) -> Doc:
    """Return a record as a document of `task`. Raises FormError with what is wrong."""
    instruction, answer = record["instruction"], record["answer"]
    if not isinstance(instruction, str) or not isinstance(answer, str):
        raise FormError("'instruction' or 'answer' is not text")
    body, *formats = _FORMAT.split(instruction)
    if len(formats) != 1:
        raise FormError(f"the instruction has '{ANSWER_FORMAT}' {len(formats)} times, not once")
    expected = formats[0].strip().split("/")
    if answer not in expected:
        raise FormError(f"the answer '{answer}' is not one of {', '.join(expected)}")
    if expected == ["true", "false"]:
        return _true_or_false(body, answer, task)
    word, make = _MAKERS.get(task, ("", _own_document))
    question, choices = _parts(body, expected, word)
    try:
        return make(question, choices, expected.index(answer))
    except ValueError as error:
        raise FormError(f"{len(choices)} choices and the question '{question}' are not of {task}: {error}") from error


def _true_or_false(body: str, answer: str, task: str) -> Doc:
    if task == "boolq":
        raise FormError("there is no passage; import it as --task boolq_closed_book")
    _, marker, question = body.partition("question: ")
    if not marker:
        raise FormError("the instruction has no 'question: '")
    return {"question": question.strip().removesuffix("?"), "label": int(answer == "true")}


def _parts(body: str, expected: Sequence[str], word: str) -> tuple[str, list[str]]:
    """Return the question and the choices, which `expected` names: answer1, answer2, ... or solution1, solution2, ...

    They are numbered from 1, and a text may contain other such marks. `word`: the mark of the task, "" for any.
    """
    marks: list[re.Match[str]] = []
    for found in _NUMBERED.finditer(body):
        if int(found.group(2)) == len(marks) + 1 and (not marks or found.group(1) == marks[0].group(1)):
            marks.append(found)
    names = [f"{mark.group(1)}{mark.group(2)}".lower() for mark in marks]
    if len(names) < 2 or names != list(expected):
        raise FormError(f"the numbered choices are {', '.join(names) or 'none'}, not {', '.join(expected)}")
    if word and marks[0].group(1) != word:
        raise FormError(
            f"the choices are {', '.join(names)}; those of this task are {word.lower()}1, {word.lower()}2, ..."
        )
    asked = _TASK.match(body, endpos=marks[0].start())
    if asked is None:
        raise FormError("the instruction does not begin with 'Please ... question:' or 'Please ... sentence:'")
    ends = [mark.start() for mark in marks[1:]] + [len(body)]
    choices = [body[mark.end() : end].strip() for mark, end in zip(marks, ends, strict=True)]
    return body[asked.end() : marks[0].start()].strip(), choices


def _labelled_document(choices: Sequence[str], answer: int) -> dict[str, Any]:
    labels = list(_LETTERS[: len(choices)])
    return {"choices": {"text": list(choices), "label": labels}, "answerKey": labels[answer]}


def _arc_document(question: str, choices: Sequence[str], answer: int) -> Doc:
    return {"question": question, **_labelled_document(choices, answer)}


def _openbookqa_document(question: str, choices: Sequence[str], answer: int) -> Doc:
    return {"question_stem": question, **_labelled_document(choices, answer)}


def _piqa_document(question: str, choices: Sequence[str], answer: int) -> Doc:
    sol1, sol2 = choices
    return {"goal": question, "sol1": sol1, "sol2": sol2, "label": answer}


def _winogrande_document(question: str, choices: Sequence[str], answer: int) -> Doc:
    option1, option2 = choices
    return {"sentence": question, "option1": option1, "option2": option2, "answer": str(answer + 1)}


def _social_iqa_document(question: str, choices: Sequence[str], answer: int) -> Doc:
    """Return the document with the situation and the question divided: the prompt joins them with a blank again."""
    sentences = re.split(r"(?<=[.!?]) +", question)
    context, asked = (" ".join(sentences[:-1]), sentences[-1]) if len(sentences) > 1 else question.split(" ", 1)
    answers = {f"answer{letter}": choice for letter, choice in zip("ABC", choices, strict=True)}
    return {"context": context, "question": asked, **answers, "label": str(answer + 1)}


def _hellaswag_document(question: str, choices: Sequence[str], answer: int) -> Doc:
    """Return the document with the sentence that the endings continue as ctx_b: the prompt begins it with a capital."""
    activity, _, context = question.partition(": ")
    continued = _CONTINUED.fullmatch(context)
    first, last = continued.groups() if continued else (context, "")
    return {"activity_label": activity, "ctx_a": first, "ctx_b": last, "endings": list(choices), "label": str(answer)}


def _own_document(question: str, choices: Sequence[str], answer: int) -> Doc:
    return {"context": f"Question: {question}\nAnswer:", "choices": list(choices), "answer": answer}


_Maker = Callable[[str, Sequence[str], int], Doc]
_MAKERS: dict[str, tuple[str, _Maker]] = {  # task -> the word before the numbers of its choices
    "arc_easy": ("Answer", _arc_document),
    "arc_challenge": ("Answer", _arc_document),
    "openbookqa": ("Answer", _openbookqa_document),
    "piqa": ("Solution", _piqa_document),
    "winogrande": ("Option", _winogrande_document),
    "social_iqa": ("Answer", _social_iqa_document),
    "hellaswag": ("Ending", _hellaswag_document),
}
