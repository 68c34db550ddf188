"""Records of the LLM-Adapters project as documents of lm-evaluation-harness.

A record has everything in its instruction, and names the answer:

    {"instruction": "Please choose the correct answer to the question: ...\\n\\nAnswer1: ... Answer2: ...\\n\\n
     Answer format: answer1/answer2", "input": "", "output": "the correct answer is answer2", "answer": "answer2"}

Its BoolQ has no passages, so that only the closed-book task can be made of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpas_cli.evaluate.tasks.forms import Doc, FormError

_NUMBERED = re.compile(r"(Answer|Solution|Option|Ending)(\d+): ?")
_LETTERS = "ABCDEFGH"
_TASK = re.compile(r"Please [^:]*(?:question|sentence): ?", re.IGNORECASE)


def is_adapter_record(record: object) -> bool:
    """Return whether a record has the form of LLM-Adapters."""
    return isinstance(record, Mapping) and {"instruction", "answer"} <= record.keys()


def document_of(record: Mapping[str, Any], task: str) -> Doc:
    """Return the document of `task` that a record is. Raises FormError with what is wrong."""
    instruction, answer = record["instruction"], record["answer"]
    if not isinstance(instruction, str) or not isinstance(answer, str):
        raise FormError("'instruction' or 'answer' is not text")
    if answer in ("true", "false"):
        return _true_or_false(instruction, answer, task)
    make = _MAKERS.get(task, _own)
    question, choices = _parts(instruction)
    found = re.fullmatch(r"[a-z]+(\d+)", answer)
    if found is None or not 1 <= int(found.group(1)) <= len(choices):
        raise FormError(f"the answer '{answer}' is not one of its {len(choices)} choices")
    return make(question, choices, int(found.group(1)) - 1)


def _true_or_false(instruction: str, answer: str, task: str) -> Doc:
    if task == "boolq":
        raise FormError("there is no passage; import it as --task boolq_closed_book")
    _, marker, rest = instruction.partition("question: ")
    if not marker:
        raise FormError("the instruction has no 'question: '")
    question = rest.split("\n\nAnswer format:")[0].strip().removesuffix("?")
    return {"question": question, "label": int(answer == "true")}


def _parts(instruction: str) -> tuple[str, list[str]]:
    """Return the question and the choices. They are numbered from 1, and a text may contain other such marks."""
    body = instruction.rpartition("\n\nAnswer format:")[0] or instruction
    marks: list[re.Match[str]] = []
    for found in _NUMBERED.finditer(body):
        if int(found.group(2)) == len(marks) + 1 and (not marks or found.group(1) == marks[0].group(1)):
            marks.append(found)
    if len(marks) < 2:
        raise FormError("the instruction has no numbered choices")
    ends = [mark.start() for mark in marks[1:]] + [len(body)]
    choices = [body[mark.end() : end].strip() for mark, end in zip(marks, ends, strict=True)]
    return _TASK.sub("", body[: marks[0].start()], count=1).strip(), choices


def _labelled(choices: Sequence[str], answer: int) -> dict[str, Any]:
    labels = list(_LETTERS[: len(choices)])
    return {"choices": {"text": list(choices), "label": labels}, "answerKey": labels[answer]}


def _arc(question: str, choices: Sequence[str], answer: int) -> Doc:
    return {"question": question, **_labelled(choices, answer)}


def _openbookqa(question: str, choices: Sequence[str], answer: int) -> Doc:
    return {"question_stem": question, **_labelled(choices, answer)}


def _piqa(question: str, choices: Sequence[str], answer: int) -> Doc:
    sol1, sol2 = choices
    return {"goal": question, "sol1": sol1, "sol2": sol2, "label": answer}


def _winogrande(question: str, choices: Sequence[str], answer: int) -> Doc:
    option1, option2 = choices
    return {"sentence": question, "option1": option1, "option2": option2, "answer": str(answer + 1)}


def _social_iqa(question: str, choices: Sequence[str], answer: int) -> Doc:
    """Return the document with the situation and the question divided: the prompt joins them with a blank again."""
    sentences = re.split(r"(?<=[.!?]) +", question)
    context, asked = (" ".join(sentences[:-1]), sentences[-1]) if len(sentences) > 1 else question.split(" ", 1)
    answers = {f"answer{letter}": choice for letter, choice in zip("ABC", choices, strict=True)}
    return {"context": context, "question": asked, **answers, "label": str(answer + 1)}


def _hellaswag(question: str, choices: Sequence[str], answer: int) -> Doc:
    activity, _, context = question.partition(": ")
    return {"activity_label": activity, "ctx_a": context, "ctx_b": "", "endings": list(choices), "label": str(answer)}


def _own(question: str, choices: Sequence[str], answer: int) -> Doc:
    return {"context": f"Question: {question}\nAnswer:", "choices": list(choices), "answer": answer}


_MAKERS: dict[str, Callable[[str, Sequence[str], int], Doc]] = {
    "arc_easy": _arc,
    "arc_challenge": _arc,
    "openbookqa": _openbookqa,
    "piqa": _piqa,
    "winogrande": _winogrande,
    "social_iqa": _social_iqa,
    "hellaswag": _hellaswag,
}
