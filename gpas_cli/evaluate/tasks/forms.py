"""Documents of known tasks as questions, with the prompts and answers of lm-evaluation-harness 0.4.13.

A document has the fields of the data set that the harness reads: a line of `arc_easy` is
{"question": ..., "choices": {"text": [...], "label": [...]}, "answerKey": "A"}.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from gpas_cli.data.questions import Question
from gpas_cli.spec.downstream import SQUAD
from gpas_cli.structure import Frozen

Doc = Mapping[str, Any]
PROMPT_VERSION = "0.4.13"
_ANSWER = ("number", "spans", "date")  # the fields of an answer of DROP
_DATE = ("day", "month", "year")
DEFAULT_FORM = "choices"  # of tasks that are not known
_ANSWER_FORMAT = "Answer format:"  # was in choices that an earlier version imported from LLM-Adapters


class FormError(ValueError):
    """A document does not have the form of its task."""


class SpanQuestion(Frozen):
    """A question about a passage, and the answers that people gave, which are parts of it."""

    question: str
    passage: str
    answers: tuple[str, ...]


class Prompted(Frozen):
    """A question whose answer the network generates: the text before the answer, and the answers that count as right.

    The first answer is the one that a solved example shows.
    """

    prompt: str
    answers: tuple[str, ...]

    @property
    def solved(self) -> str:
        """The question with its answer, as an example in the prompt of another."""
        return f"{self.prompt} {self.answers[0]}\n\n"


class _Form(Frozen):
    """How a document becomes a question. `fields` describes the document in messages."""

    fields: str
    question: Callable[[Doc], Question | SpanQuestion | Prompted]

    def read(self, document: object) -> Any:
        """Return the question of a document. Raises FormError with what is wrong."""
        if not isinstance(document, Mapping):
            raise FormError(f"a {type(document).__name__}, not a JSON object with {self.fields}")
        try:
            question = self.question(document)
        except KeyError as error:
            raise FormError(f"no field {error}; the fields are {self.fields}") from error
        except (TypeError, ValueError, IndexError, AttributeError) as error:
            raise FormError(f"{error}; the fields are {self.fields}") from error
        if isinstance(question, SpanQuestion | Prompted):
            return question
        if len(question.choices) < 2:
            raise FormError("fewer than two choices")
        for text in (*question.choices, *question.contexts):
            if _ANSWER_FORMAT in text:
                raise FormError(f"a choice contains '{_ANSWER_FORMAT}', which is not part of it: '{text}'")
        if not 0 <= question.answer < len(question.choices):
            raise FormError(f"the answer is choice {question.answer + 1} of {len(question.choices)}")
        return question


def _text(document: Doc, field: str) -> str:
    value = document[field]
    if not isinstance(value, str):
        raise TypeError(f"'{field}' is not text")
    return value


def _texts(values: Any, field: str) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(value, str) and value for value in values):
        raise TypeError(f"'{field}' is not a list of texts")
    return tuple(values)


def _labelled(document: Doc) -> tuple[tuple[str, ...], int]:
    """Return the choices and the answer of {"choices": {"text": [...], "label": [...]}, "answerKey": ...}."""
    choices = _texts(document["choices"]["text"], "choices.text")
    labels = _texts(document["choices"]["label"], "choices.label")
    key = _text(document, "answerKey").strip()
    if len(labels) != len(choices):
        raise ValueError(f"{len(labels)} labels for {len(choices)} choices")
    if key not in labels:
        raise ValueError(f"answerKey '{key}' is not one of the labels {', '.join(labels)}")
    return choices, labels.index(key)


def _number(document: Doc, field: str, first: int) -> int:
    value = document[field]
    if isinstance(value, bool) or not re.fullmatch(r"\d+", str(value)):
        raise ValueError(f"'{field}' is not the number of a choice")
    return int(value) - first


def _arc(document: Doc) -> Question:
    choices, answer = _labelled(document)
    return Question(f"Question: {_text(document, 'question')}\nAnswer:", choices, answer)


def _openbookqa(document: Doc) -> Question:
    choices, answer = _labelled(document)
    return Question(_text(document, "question_stem"), choices, answer)


def _piqa(document: Doc) -> Question:
    choices = (_text(document, "sol1"), _text(document, "sol2"))
    return Question(f"Question: {_text(document, 'goal')}\nAnswer:", choices, _number(document, "label", 0))


def _social_iqa(document: Doc) -> Question:
    choices = tuple(_text(document, f"answer{letter}") for letter in "ABC")
    context = f"Q: {_text(document, 'context')} {_text(document, 'question')}\nA:"
    return Question(context, choices, _number(document, "label", 1))


def _winogrande(document: Doc) -> Question:
    before, blank, after = _text(document, "sentence").partition("_")
    if not blank:
        raise ValueError("'sentence' has no blank _")
    contexts = tuple(before + _text(document, f"option{number}") for number in (1, 2))
    return Question("", (after.strip(),) * 2, _number(document, "answer", 1), contexts=contexts)


def _hellaswag(document: Doc) -> Question:
    context = f"{_text(document, 'ctx_a')} {_text(document, 'ctx_b').capitalize()}"
    endings = tuple(_without_markup(ending) for ending in _texts(document["endings"], "endings"))
    prompt = _without_markup(f"{_text(document, 'activity_label')}: {context}")
    return Question(prompt, endings, _number(document, "label", 0))


def _without_markup(text: str) -> str:
    """Return a text without the markup of WikiHow."""
    text = text.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ")


def _boolq(document: Doc) -> Question:
    context = f"{_text(document, 'passage')}\nQuestion: {_text(document, 'question')}?\nAnswer:"
    return Question(context, ("no", "yes"), _number(document, "label", 0))


def _boolq_closed_book(document: Doc) -> Question:
    return Question(f"Question: {_text(document, 'question')}?\nAnswer:", ("no", "yes"), _number(document, "label", 0))


def _mmlu(document: Doc) -> Question:
    subject = _text(document, "subject").replace("_", " ")
    choices = _texts(document["choices"], "choices")
    listed = "".join(f"\n{letter}. {choice}" for letter, choice in zip("ABCD", choices, strict=True))
    head = f"The following are multiple choice questions (with answers) about {subject}.\n\n"
    context = f"{head}{_text(document, 'question').strip()}{listed}\nAnswer:"
    return Question(context, ("A", "B", "C", "D"), _number(document, "answer", 0))


def _squad(document: Doc) -> SpanQuestion:
    answers = _texts(document["answers"]["text"], "answers.text")
    passage = _text(document, "context")
    if not answers:
        raise ValueError("no answer: this is not version 1.1")
    if strange := [answer for answer in answers if answer not in passage]:
        raise ValueError(f"the answer '{strange[0]}' is not a part of the context")
    return SpanQuestion(_text(document, "question"), passage, answers)


def _triviaqa(document: Doc) -> Prompted:
    answer = document["answer"]
    answers = (_text(answer, "value"), *_texts(list(answer["aliases"]), "answer.aliases"))
    return Prompted(f"Question: {_text(document, 'question')}?\nAnswer:", tuple(dict.fromkeys(answers)))


def _tydiqa(document: Doc) -> Prompted:
    if not _text(document, "id").startswith("english-"):
        raise ValueError("'id' does not begin with 'english-': the question is in another language")
    context, question = _text(document, "context").strip(), _text(document, "question").strip()
    answers = _texts(list(document["answers"]["text"]), "answers.text")
    if not answers:
        raise ValueError("no answer: this is not the gold passage task")
    return Prompted(f"Context: {context}\n\nQuestion: {question}\n\nAnswer:", answers)


def _squadv2(document: Doc) -> Prompted:
    answers = _texts(list(document["answers"]["text"]), "answers.text")
    parts = {"Title": "title", "Background": "context", "Question": "question"}
    prompt = "\n\n".join(f"{word}: {_text(document, field)}" for word, field in parts.items())
    return Prompted(f"{prompt}\n\nAnswer:", answers or ("unanswerable",))


def _web_question(document: Doc) -> Prompted:
    return Prompted(f"Question: {_text(document, 'question')}\nAnswer:", _texts(document["answers"], "answers"))


def _nq_open(document: Doc) -> Prompted:
    return Prompted(f"Q: {_text(document, 'question')}?\nA:", _texts(document["answer"], "answer"))


def _drop(document: Doc) -> Prompted:
    others = document.get("validated_answers", ())
    if isinstance(others, Mapping):  # on the hub
        others = [dict(zip(_ANSWER, one, strict=True)) for one in zip(*map(others.get, _ANSWER), strict=True)]
    answers = [_spelled(one) for one in (document["answer"], *others)]
    prompt = f"Passage: {_text(document, 'passage')}\nQuestion: {_text(document, 'question')}\nAnswer:"
    return Prompted(prompt, _texts([answer for answer in dict.fromkeys(answers) if answer], "answer"))


def _spelled(answer: Doc) -> str:
    """Return an answer of DROP, a number, spans or a date, as text."""
    date = answer["date"]
    return str(answer["number"]) or ", ".join(answer["spans"]) or " ".join(filter(None, map(date.get, _DATE)))


def _conversation(document: Doc) -> Prompted:
    before = "".join(f"Q: {question}\n\nA: {answer}\n\n" for question, answer in document["before"])
    prompt = f"{_text(document, 'context')}\n\n{before}Q: {_text(document, 'question')}\n\nA:"
    return Prompted(prompt, tuple(dict.fromkeys(_texts(document["answers"], "answers"))))


def _own(document: Doc) -> Question:
    choices = _texts(document["choices"], "choices")
    return Question(_text(document, "context"), choices, _number(document, "answer", 0))


_TURN = _Form("context, before (earlier questions with answers), question and answers (texts)", _conversation)
FORMS: dict[str, _Form] = {
    "mmlu": _Form("question, choices (four), answer (0 to 3) and subject", _mmlu),
    "winogrande": _Form("sentence (with a blank _), option1, option2 and answer (1 or 2)", _winogrande),
    "piqa": _Form("goal, sol1, sol2 and label (0 or 1)", _piqa),
    "openbookqa": _Form("question_stem, choices {text, label} and answerKey", _openbookqa),
    "hellaswag": _Form("activity_label, ctx_a, ctx_b, endings and label (0 to 3)", _hellaswag),
    "boolq": _Form("passage, question and label (0 no, 1 yes)", _boolq),
    "boolq_closed_book": _Form("question and label (0 no, 1 yes)", _boolq_closed_book),
    "arc_easy": _Form("question, choices {text, label} and answerKey", _arc),
    "arc_challenge": _Form("question, choices {text, label} and answerKey", _arc),
    "social_iqa": _Form("context, question, answerA, answerB, answerC and label (1 to 3)", _social_iqa),
    SQUAD: _Form("question, context and answers {text: [...]}", _squad),
    "triviaqa": _Form("question and answer {value, aliases: [...]}", _triviaqa),
    "tydiqa": _Form("id (english-...), question, context and answers {text: [...]}", _tydiqa),
    "squadv2": _Form("title, context, question and answers {text: [...]}, empty if there is none", _squadv2),
    "webqs": _Form("question and answers (texts)", _web_question),
    "nq_open": _Form("question and answer (texts)", _nq_open),
    "drop": _Form("passage, question and answer {number, spans, date: {day, month, year}}", _drop),
    "coqa": _TURN,
    "quac": _TURN,
    DEFAULT_FORM: _Form("context, choices and answer (the index of the right choice, from 0)", _own),
}


def form_of(task: str) -> _Form:
    """Return the form of the documents of a task: its own if it is known, otherwise context, choices, answer."""
    return FORMS.get(task, FORMS[DEFAULT_FORM])
