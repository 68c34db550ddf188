"""Questions that are cut from source files."""

from __future__ import annotations

from collections import Counter

import pytest

from gpas_cli.data.questions import _BRACKETS, KINDS, Question, questions

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
def test_the_right_choice_continues_the_document(kind: str) -> None:
    text = document()
    found = list(questions(text, kind))
    assert found
    assert all(answered(question) in text for question in found)


@pytest.mark.parametrize("kind", KINDS)
def test_choices_differ_and_the_answer_is_one_of_them(kind: str) -> None:
    for question in questions(document(), kind):
        assert len(set(question.choices)) == len(question.choices)
        assert 0 <= question.answer < len(question.choices)


@pytest.mark.parametrize("kind", KINDS)
def test_a_document_always_gives_the_same_questions(kind: str) -> None:
    assert list(questions(document(), kind)) == list(questions(document(), kind))


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
