"""Sessions: tests as steps in a YAML file, each of which calls a method of an object with the words of the step."""

import shlex
from dataclasses import dataclass
from typing import Any

import pytest
from cases import tables
from face import Face


def sessions(file: str) -> pytest.MarkDecorator:
    """Return the mark of a test that takes each `session` of a file, whose path is in the tests' folder."""
    return pytest.mark.parametrize("session", [pytest.param(steps, id=name) for name, steps in tables(file).items()])


def play(actor: object, session: list[Any]) -> None:
    """Take the steps of a session in their order.

    A step is the name of a method, or a mapping: the name with its first argument, then other arguments by their names.
    """
    for step in session:
        (name, first), *more = step.items() if isinstance(step, dict) else [(step, None)]
        try:
            getattr(actor, name)(*([] if first is None else [first]), **dict(more))
        except AssertionError as error:
            error.add_note(f"in the step {step}")
            raise


@dataclass
class Commands:
    """Steps that every project has."""

    face: Face

    def gpas(self, words: str, says: str | list[str] = (), lacks: str = "\0", code: int | None = 0) -> None:
        """Run a command; in its output, blanks and ends of lines are alike."""
        done = self.face(*shlex.split(words), expect=code)
        said = " ".join((done.out + done.err).split())
        for text in [says] if isinstance(says, str) else says:
            assert text in said, said
        assert lacks not in said

    def edit(self, old: str, to: str) -> None:
        self.face.edit(old, to)


def agrees(found: object, wanted: object) -> bool:
    """Return whether a value is the one that is wanted, or has the text between dots: "...text..."."""
    if isinstance(wanted, str) and "..." in wanted:
        return wanted.strip(".") in str(found)
    return found == wanted
