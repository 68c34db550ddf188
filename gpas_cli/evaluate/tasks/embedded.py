"""Tasks made from the held-out documents of the embedded corpus, the standard library (`data.questions`)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from gpas_cli.data.corpora import Document
from gpas_cli.data.questions import Question, questions
from gpas_cli.data.stdlib import Stdlib
from gpas_cli.spec.downstream import EMBEDDED_QUESTIONS, KNOWN_TASKS

RECIPE = "1"  # increased when the same text gives other questions


@dataclass(frozen=True)
class EmbeddedTask:
    """Questions of one kind (`indent` or `bracket`) about held-out source files.

    The text depends on the Python version, so `version` ends in a digest of it.
    """

    name: str

    @property
    def title(self) -> str:
        return KNOWN_TASKS[self.name].title

    @property
    def chance(self) -> float:
        """The accuracy of guessing in percent."""
        return KNOWN_TASKS[self.name].chance or 0.0

    @property
    def version(self) -> str:
        digest = hashlib.sha256("\0".join(document.text for document in held_out()).encode("utf-8", "surrogatepass"))
        return f"{RECIPE}-{digest.hexdigest()[:8]}"

    def questions(self) -> Sequence[Question]:
        """Return the questions in an order that hashes decide, equally many with each place of the answer."""
        found = []
        for document in held_out():
            for number, question in enumerate(questions(document.text, self.name)):
                found.append((_hash(f"{self.name}:{document.id}:{number}"), question))
        ordered = [question for _, question in sorted(found, key=lambda item: item[0])]
        places = range(len(ordered[0].choices))
        by_place = [[question for question in ordered if question.answer == place] for place in places]
        each = EMBEDDED_QUESTIONS // len(places)
        return [question for row in zip(*(mine[:each] for mine in by_place), strict=False) for question in row]


@cache
def held_out() -> tuple[Document, ...]:
    """Return the held-out source files. Raises DataError if this Python has no source files."""
    return tuple(document for document in Stdlib().documents("validation") if document.id.startswith("lib/"))


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
