"""Sessions: tests as steps in a YAML file, each of which calls a method of an object with the words of the step."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from cases import tables
from face import Face

from gpas_cli.errors import Exit


def sessions(*files: str) -> pytest.MarkDecorator:
    """Return the mark of a test that takes each `session` of these files, whose paths are in the tests' folder.

    A session may begin with the step `marks`, which names its marks.
    """
    found = []
    for name, steps in (item for file in files for item in tables(file).items()):
        marks = steps[0].get("marks", "").split() if isinstance(steps[0], dict) else []
        own = steps[1:] if marks else steps
        found.append(pytest.param(own, id=name, marks=[getattr(pytest.mark, mark) for mark in marks]))
    return pytest.mark.parametrize("session", found)


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


def _texts(of: str | Sequence[str]) -> Sequence[str]:
    return [of] if isinstance(of, str) else of


def _at(value: Any, parts: Sequence[str]) -> Any:
    """Return what is at this place in a JSON document; behind `*`, a list of what each item has there."""
    for place, part in enumerate(parts):
        if part == "*":
            return [_at(one, parts[place + 1 :]) for one in value]
        value = value[int(part) if isinstance(value, list) else part]
    return value


@dataclass
class Commands:
    """Steps that every project has."""

    face: Face
    key: str = ""  # for which KEY stands in the words of a command, and in texts that it says

    def gpas(
        self,
        words: str,
        says: str | Sequence[str] = (),
        lacks: str | Sequence[str] = (),
        warns: str | Sequence[str] = (),
        prints: str | None = None,
        code: int | None = 0,
    ) -> None:
        """Run a command and check its output, in which blanks and ends of lines are alike.

        What a command that exits with 2 says is on standard error, what any other says on standard output; `warns`: on
        standard error too. `prints`: all that it says.
        """
        done = self.face(*self._words(words), expect=code)
        out, err = (" ".join(text.split()) for text in (done.out, done.err))
        said = err if done.code == Exit.USAGE else out
        assert prints in (None, said), (out, err)
        assert [text for text in _texts(says) if text.replace("KEY", self.key) not in said] == [], (out, err)
        assert [text for text in _texts(lacks) if text in out + err] == [], (out, err)
        assert [text for text in _texts(warns) if text not in err] == [], (out, err)

    def json(self, words: str, code: int | None = 0, **wanted: object) -> None:
        """Check values in the JSON that a command prints, by their places, such as `cells.*.name`."""
        document = self.face(*self._words(words), "--json", expect=code).json
        found = {place: _at(document, place.split(".")) for place in wanted}
        values = {place: v.replace("KEY", self.key) if isinstance(v, str) else v for place, v in wanted.items()}
        assert all(agrees(found[place], value) for place, value in values.items()), found

    def _words(self, words: str) -> list[str]:
        return shlex.split(words.replace("KEY", self.key))

    def edit(self, old: str, to: str) -> None:
        self.face.edit(old, to)

    def remember(self, cell: str, letters: int = 16, grid: str = "small") -> None:
        """Remember the first letters of the key of a cell."""
        self.key = self.face.entry(cell, grid).key[:letters]


def agrees(found: object, wanted: object) -> bool:
    """Return whether a value is the one that is wanted, or has the text between dots: "...text..."."""
    if isinstance(wanted, str) and "..." in wanted:
        return wanted.strip(".") in str(found)
    return found == wanted
