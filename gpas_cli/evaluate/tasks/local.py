"""Tasks in files of the project: tasks/NAME@DIGEST.jsonl, one document a line, beside experiments.yaml.

The digest of the documents is part of the name, so that a changed file is another task with results of its own.

Tasks made from the held-out documents of the embedded corpus, the standard library (`data.questions`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from gpas_cli import words
from gpas_cli.data.corpora import Document
from gpas_cli.data.questions import Question, questions
from gpas_cli.data.records import json_values
from gpas_cli.data.stdlib import Stdlib
from gpas_cli.errors import DataError, GpasError, nearest
from gpas_cli.evaluate.tasks import TaskUnavailable
from gpas_cli.evaluate.tasks.forms import DEFAULT_FORM, FORMS, PROMPT_VERSION, FormError, Prompted, form_of
from gpas_cli.evaluate.tasks.hub import IN_FILES, HubTask, drawn_examples, rows_in
from gpas_cli.files import parse_json, replace_file
from gpas_cli.spec.downstream import (
    DIGEST_DIGITS,
    EMBEDDED_QUESTIONS,
    KNOWN_TASKS,
    LOCAL_TASK,
    RECALL,
    SQUAD,
    WRITTEN,
    base_name,
    is_local,
    local_file,
)
from gpas_cli.structure import Frozen

_MOST_PROBLEMS = 5  # of one file, in a message
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_EXAMPLE = "example"  # true in the solved examples of a file, which stand before the questions
_LETTERS = 3  # of a name that are in the prompt, and at least as many that are not
_RECIPE = "1"  # increased when the same text gives other questions


class LocalTask(Frozen):
    """The task `name`, NAME@DIGEST, in the file `path`."""

    name: str
    path: Path

    @property
    def version(self) -> str:
        """The version of the prompt, and the digest of the documents."""
        digest = self.name.partition("@")[2]
        return f"{PROMPT_VERSION}-{digest}" if base_name(self.name) in FORMS else digest

    def questions(self) -> Sequence[Any]:
        """Return the questions in the order of the file, a `Question`, a `SpanQuestion` or a `Prompted` each.

        Raises TaskUnavailable if the file is missing or has changed.
        """
        return self._read(solved=False)

    def examples(self, count: int) -> Sequence[Any]:
        """Return the first `count` of the solved examples that were imported with the questions.

        Raises TaskUnavailable if the file has not as many, is missing or has changed.
        """
        found = self._read(solved=True)
        if len(found) < count:
            raise TaskUnavailable(
                f"{self.path} has {words.count(len(found), 'solved example')}, and shots is {count}; import it again "
                f"with the training split: `gpas data import-task FILE --task {base_name(self.name)} --examples FILE`"
            )
        return found[:count]

    def _read(self, *, solved: bool) -> list[Any]:
        try:
            content = self.path.read_bytes()
        except OSError as error:
            raise TaskUnavailable(
                f"{self.path}: {error.strerror}; `gpas data import-task FILE --task {base_name(self.name)}` writes it"
            ) from error
        if digest_of(content) != self.name.partition("@")[2]:
            raise TaskUnavailable(
                f"{self.path} has changed: its digest is {digest_of(content)}; import the file that it was made from "
                f"again, or name {base_name(self.name)}@{digest_of(content)} in experiments.yaml"
            )
        form = form_of(base_name(self.name))
        found = []
        for number, line in enumerate(content.splitlines(), start=1):
            try:
                document = parse_json(line)
                if solved == (isinstance(document, dict) and document.get(_EXAMPLE) is True):
                    found.append(form.read(document))
            except ValueError as error:
                raise TaskUnavailable(f"{self.path}:{number}: {error}; import the file again") from error
        return found


def local_task(name: str, root: Path) -> LocalTask:
    """Return the local task `name`. Raises GpasError if that is not NAME@DIGEST."""
    if not LOCAL_TASK.fullmatch(name):
        raise GpasError(f"'{name}' is not NAME@DIGEST")
    return LocalTask(name, root / local_file(name))


def digest_of(content: bytes) -> str:
    """Return the digest of the file of a local task."""
    return hashlib.sha256(content).hexdigest()[:DIGEST_DIGITS]


class Imported(Frozen):
    """A task that was imported: its name NAME@DIGEST, its file, and its number of questions."""

    name: str
    path: Path
    questions: int


def import_task(source: Path, task: str, root: Path, examples: Path | None = None) -> Imported:
    """Write the documents of `source` as the local task `task` of the project at `root`.

    `source` has one JSON document a line, or a JSON list, in the form of lm-evaluation-harness; or it is the file of
    SQuAD, TriviaQA or TyDi QA. `examples`: a file of the same form, of which as many are written
    before the documents as a prompt can have.
    Raises DataError with the place of each problem; nothing is written then.
    """
    if not _NAME.fullmatch(task) or task == DEFAULT_FORM:
        hint = nearest(task.replace("-", "_"), FORMS)
        raise DataError(f"--task: '{task}' is not a name of lower-case letters, digits and _; {hint}")
    if task in KNOWN_TASKS and task not in FORMS:
        raise DataError(f"--task: {task} is not a task of questions from a file; choose another name")
    if examples is not None and task not in WRITTEN:
        raise DataError(f"--examples: {task} has no solved examples; tasks that have are {', '.join(WRITTEN)}")
    solved = drawn_examples(_documents(examples, task)) if examples is not None else []
    documents = _documents(source, task)
    lines = [*({_EXAMPLE: True, **document} for document in solved), *documents]
    content = "".join(json.dumps(document, ensure_ascii=False) + "\n" for document in lines).encode()
    made = local_task(f"{task}@{digest_of(content)}", root)
    made.path.parent.mkdir(exist_ok=True)
    replace_file(made.path, content)
    return Imported(made.name, made.path, len(documents))


def _documents(source: Path, task: str) -> list[Mapping[str, Any]]:
    """Return the documents of a file, read by the form of the task. Raises DataError with the place of each problem."""
    documents, problems = [], []
    for where, document in _records(source, task):
        try:
            form_of(task).read(document)
            documents.append(document)
        except FormError as error:
            problems.append(f"{where}: {error}")
    if problems:
        more = f"\nand {len(problems) - _MOST_PROBLEMS} more" if len(problems) > _MOST_PROBLEMS else ""
        raise DataError("\n".join(problems[:_MOST_PROBLEMS]) + more)
    if not documents:
        raise DataError(f"{source} has no document")
    return documents


def _records(source: Path, task: str) -> Iterator[tuple[str, Any]]:
    """Yield the records of a file with their places. Raises DataError for what is not JSON."""
    if task in IN_FILES and source.is_file():
        with suppress(ValueError, KeyError, TypeError):  # not the authors' file but rows of it
            rows = rows_in(parse_json(source.read_bytes()), task)
            yield from [(f"{source}, record {number}", row) for number, row in enumerate(rows, start=1)]
            return
    yield from json_values(source)


class EmbeddedTask(Frozen):
    """Questions of one kind (`indent` or `bracket`) about held-out source files.

    The text depends on the Python version, so `version` ends in a digest of it.
    """

    name: str

    @property
    def version(self) -> str:
        digest = hashlib.sha256("\0".join(document.text for document in _held_out()).encode("utf-8", "surrogatepass"))
        return f"{_RECIPE}-{digest.hexdigest()[:8]}"

    def questions(self) -> Sequence[Question]:
        """Return the questions in an order that hashes decide, equally many with each place of the answer."""
        ordered = _shuffled(self.name)
        places = range(len(ordered[0].choices))
        by_place = [[question for question in ordered if question.answer == place] for place in places]
        each = EMBEDDED_QUESTIONS // len(places)
        return [question for row in zip(*(mine[:each] for mine in by_place), strict=False) for question in row]


class RecallTask(Frozen):
    """Names in held-out source files that the network completes: the first letters are there, and the whole name
    occurs in the lines before."""

    name: str = RECALL

    def questions(self) -> Sequence[Prompted]:
        """Return the questions in an order that hashes decide. At most 1 % of them have the same answer, so that
        writing one thing each time is no use."""
        asked: Counter[str] = Counter()
        found = []
        for question in _shuffled("names"):
            choice = question.choices[question.answer]
            begun = len(choice) - len(choice.lstrip()) + _LETTERS
            rest = choice[begun:]
            asked[rest] += 1
            if len(rest) >= _LETTERS and asked[rest] <= EMBEDDED_QUESTIONS // 100:
                found.append(Prompted(question.context + choice[:begun], (rest,)))
        return found[:EMBEDDED_QUESTIONS]

    def examples(self, count: int) -> Sequence[Prompted]:
        """Return nothing: the lines before a name are example enough."""
        return ()


@cache
def _shuffled(kind: str) -> tuple[Question, ...]:
    """Return all questions of a kind; hashes decide their order, so that a few first ones need all (2 s for names)."""
    found = []
    for document in _held_out():
        for number, question in enumerate(questions(document.text, kind)):
            name = f"{kind}:{document.id}:{number}"
            found.append((hashlib.sha256(name.encode()).digest(), question))
    return tuple(question for _, question in sorted(found, key=lambda item: item[0]))


@cache
def _held_out() -> tuple[Document, ...]:
    """Return the held-out source files. Raises DataError if this Python has no source files."""
    return tuple(document for document in Stdlib().documents("validation") if document.id.startswith("lib/"))


MultipleChoice = EmbeddedTask | LocalTask
GeneratedTask = LocalTask | HubTask | RecallTask


def direct_task(name: str, root: Path) -> MultipleChoice | GeneratedTask | None:
    """Return the task called `name`, None if only lm-evaluation-harness provides it.

    `root`: the folder of experiments.yaml. Raises TaskUnavailable if the file of a local task is missing or changed.
    """
    if is_local(name):
        return local_task(name, root)
    if name in (SQUAD, *WRITTEN):
        return HubTask(name)
    if name == RECALL:
        return RecallTask()
    return EmbeddedTask(name) if KNOWN_TASKS[name].embedded else None
