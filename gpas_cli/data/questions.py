"""Multiple-choice questions cut from a source file: what follows a piece of code, of a few choices.

    names     which name follows, of four that occur in the lines before
    indent    how far the first word of the next line is indented, of four multiples of four blanks
    bracket   which of ) ] : follows

Questions from held-out documents are evaluation tasks, questions from training documents an instruction text. The same
document always gives the same questions: hashes of the text decide what could be random.

A context ends where a byte-level BPE ends a token, and a choice starts with the blank or line end that separates it
from the context, so that context and choice joined have the tokens that they have in the document.
"""

from __future__ import annotations

import hashlib
import keyword
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

from gpas_cli.structure import Frozen

_MOST_CODE_LINES = 8  # before a question
_CHOICES = 4
_BRACKETS = (")", "]", ":")
_SHORTEST_NAME = 3
_NAME = re.compile(r"(?<![\w'\"])[A-Za-z]\w*")
_WORD = re.compile(r"[A-Za-z]+")
# A bracket that a BPE neither joins with the character before it nor with the one after it.
_CLOSING = re.compile(r"(?<=[A-Za-z0-9])[)\]:](?=\s|$)")


class Question(Frozen):
    """One multiple-choice question."""

    context: str  # the text before a choice
    choices: tuple[str, ...]  # the texts that are compared
    answer: int  # the index of the right choice
    delimiter: str = " "  # what stands between context and choice
    contexts: tuple[str, ...] = ()  # a context for each choice, if they differ

    def context_of(self, choice: int) -> str:
        """Return the text before choice number `choice`."""
        return self.contexts[choice] if self.contexts else self.context


def questions(document_text: str, kind: str) -> Iterator[Question]:
    """Yield the questions of one `kind` that a document gives, in the order of the document.

    Raises KeyError if there is no such kind.
    """
    make = KINDS[kind]
    lines = document_text.split("\n")
    for number in range(1, len(lines)):
        before = lines[max(0, number - _MOST_CODE_LINES) : number]
        yield from make(before, lines[number])


def _names(before: Sequence[str], line: str) -> Iterator[Question]:
    """Yield a question about the first name of `line` that occurs in the lines before it, with three other names as
    choices.
    """
    seen = list(dict.fromkeys(name for earlier in before for name in _identifiers(earlier)))
    for found in _NAME.finditer(line):
        name = found.group()
        others = [other for other in seen if other != name]
        if name not in seen or len(others) < _CHOICES - 1:
            continue
        head = "\n".join([*before, line[: found.start()]])
        context = head.rstrip(" ")
        blanks = head[len(context) :]
        if len(blanks) > 1 or context.endswith("\n"):  # the name begins its line
            continue
        # Names of a similar length, as short names have few tokens and so a higher likelihood in any network.
        chosen = sorted(others, key=lambda other: (abs(len(other) - len(name)), _hash("other", head, other)))
        yield _question(context, [blanks + other for other in (name, *chosen[: _CHOICES - 1])], head)
        return


def _indent(before: Sequence[str], line: str) -> Iterator[Question]:
    """Yield a question about the indentation of the first word of `line`."""
    last = before[-1]
    blanks = len(line) - len(line.lstrip(" "))
    word = _WORD.match(line, blanks)
    if word is None or not last.strip() or last != last.rstrip() or blanks % 4 or blanks > 16:
        return
    head = "\n".join(before)
    levels = [4 * level for level in range(6) if 4 * level != blanks]
    near = sorted(levels, key=lambda level: (abs(level - blanks), _hash("level", head, str(level))))[: _CHOICES - 1]
    yield _question(head, [f"\n{' ' * level}{word.group()}" for level in (blanks, *near)], head)


def _bracket(before: Sequence[str], line: str) -> Iterator[Question]:
    """Yield a question about the first closing bracket or colon of `line`."""
    found = _CLOSING.search(line)
    if found is not None:
        context = "\n".join([*before, line[: found.start()]])
        yield Question(context, _BRACKETS, _BRACKETS.index(found.group()), delimiter="")


KINDS: dict[str, Callable[[Sequence[str], str], Iterator[Question]]] = {
    "names": _names,
    "indent": _indent,
    "bracket": _bracket,
}


def _question(context: str, choices: Sequence[str], seed: str) -> Question:
    """Return the question whose right choice is the first one, with the choices in an order that hashes decide."""
    order = sorted(choices, key=lambda choice: _hash("order", seed, choice))
    return Question(context, tuple(order), order.index(choices[0]), delimiter="")


@lru_cache(maxsize=1024)  # a line is among those before each of the next ones
def _identifiers(line: str) -> tuple[str, ...]:
    return tuple(one for one in _NAME.findall(line) if len(one) >= _SHORTEST_NAME and not keyword.iskeyword(one))


def _hash(*parts: str) -> bytes:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).digest()
