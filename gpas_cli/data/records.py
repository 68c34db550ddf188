"""Records to finetune on: {instruction, input, output}, from files, Commonsense170K or questions, and their prompts.

    [{"instruction": "Please choose ...", "input": "", "output": "the correct answer is answer4"}, ...]

A .json file has one list of records, as LLM-Adapters (Hu et al. 2023) publishes them, a .jsonl file one record in each
line. Other fields are ignored.
"""

from __future__ import annotations

import hashlib
import os
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from gpas_cli.data import disk
from gpas_cli.data.corpora import Notify, cached_survey
from gpas_cli.data.files import check_file, content, text_of, whole
from gpas_cli.data.questions import KINDS, questions
from gpas_cli.data.stdlib import Stdlib
from gpas_cli.data.text_usage import marks_in
from gpas_cli.data.tokenizer import bytes_per_token
from gpas_cli.errors import DataError, nearest
from gpas_cli.files import parse_json
from gpas_cli.spec.finetune import COMMONSENSE, EMBEDDED, EMBEDDED_EXAMPLES, Finetune
from gpas_cli.structure import Frozen

_COMMONSENSE_URL = (
    "https://raw.githubusercontent.com/AGI-Edgerunners/LLM-Adapters/main/ft-training_set/commonsense_170k.json"
)
_TIMEOUT_SECONDS = 60
_HELD_OUT_EXAMPLES = 600  # questions about held-out files of the embedded corpus
_EMBEDDED_RECIPE = "questions-1"  # part of the fingerprint; change it when the questions change
_JSON_BYTES = 48  # of a record in a file that are not its text: names, quotation marks, braces
_FIELDS = ("instruction", "input", "output")
# The prompts of LLM-Adapters (finetune.py). There every line but the first is indented by 16 blanks, by accident: T5's
# tokenizer drops these blanks, and a byte-level BPE would have to predict them.
_WITHOUT_INPUT = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Response:\n"
)
_WITH_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further context. Write a "
    "response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n"
)


class FinetuneRecord(NamedTuple):
    """One example: an instruction, an input that may be empty, and the output to learn."""

    instruction: str
    input: str
    output: str


def prompt(record: FinetuneRecord, template: str) -> str:
    """Return the text before the output, under the template `alpaca` or `plain`."""
    if template == "plain":
        return record.instruction + record.input
    form = _WITH_INPUT if record.input else _WITHOUT_INPUT
    return form.format(instruction=record.instruction, input=record.input)


class RecordSource(Frozen):
    """Where the records of one part (train or test) come from. `setting` names it in messages."""

    setting: str
    name: str
    part: str
    paths: tuple[Path, ...] = ()

    def fingerprint(self, cache: Path) -> str:
        """Return a digest of the records: equal ones mean equal records. Reads the files. Raises DataError."""
        if self.name == EMBEDDED:
            return disk.digest([_EMBEDDED_RECIPE, self.part, cached_survey(Stdlib(), cache).fingerprint])
        return disk.digest([hashlib.sha256(content(path)).hexdigest() for path in self.paths])

    def records(self) -> list[FinetuneRecord]:
        """Return the records. Raises DataError if one is invalid, or if there are none to train on."""
        if self.name == EMBEDDED:
            return embedded("train" if self.part == "train" else "validation")
        found = list(chain.from_iterable(read_records(path) for path in self.paths))
        if not found and self.part == "train":
            raise DataError(f"{self.setting}: {self.name} has no records")
        return found


def training_source(spec: Finetune, cache: Path, root: Path, notify: Notify) -> RecordSource:
    """Return the source of the records to train on, after downloading them if necessary. Raises DataError."""
    return _source("finetune.data", spec.data, "train", cache, root, notify)


def held_out_source(spec: Finetune, cache: Path, root: Path, notify: Notify) -> RecordSource | None:
    """Return the source of the records to evaluate on, None if the data have none. Raises DataError."""
    if spec.validation:
        return _source("finetune.validation", spec.validation, "test", cache, root, notify)
    if spec.data == EMBEDDED:
        return RecordSource("finetune.data", EMBEDDED, "test")
    folder = root / Path(spec.data).expanduser()
    found = _source("finetune.data", spec.data, "test", cache, root, notify) if folder.is_dir() else None
    return found if found is not None and found.paths else None


def unreadable_reason(spec: Finetune, cache: Path, root: Path) -> str:
    """Return why the records cannot be read, "" if no reason is found. Opens no file and uses no network."""
    try:
        for setting, name in (("finetune.data", spec.data), ("finetune.validation", spec.validation)):
            if name not in ("", EMBEDDED, COMMONSENSE):
                files(setting, name, "train" if setting == "finetune.data" else "test", root)
    except DataError as error:
        return str(error)
    return ""


def estimated_amount(spec: Finetune, vocab: int, root: Path) -> tuple[int, int] | None:
    """Return about how many records and tokens the files of `spec.data` have; None for the built-in data.

    Reads at most SAMPLE_BYTES. Raises DataError or OSError if there are no files.
    """
    if spec.data in (EMBEDDED, COMMONSENSE):
        return None
    paths = files("finetune.data", spec.data, "train", root)
    size, examples = sum(path.stat().st_size for path in paths), marks_in(paths, b'"output"')
    added = len(_WITHOUT_INPUT) if spec.template != "plain" else 0
    return examples, int((size + examples * (added - _JSON_BYTES)) / bytes_per_token(vocab))


def _source(setting: str, name: str, part: str, cache: Path, root: Path, notify: Notify) -> RecordSource:
    if name == EMBEDDED:
        return RecordSource(setting, name, part)
    paths = [_commonsense(cache, notify)] if name == COMMONSENSE else files(setting, name, part, root)
    return RecordSource(setting, name, part, tuple(paths))


def files(setting: str, name: str, part: str, root: Path) -> list[Path]:
    """Return the files of a path: itself, or of a folder every <task>/<part>.json, `part` being train or test.

    Raises DataError, beginning with the name of the `setting`, if there is no file to train on.
    """
    path = root / Path(name).expanduser()
    found = [path]
    if path.is_dir():
        files_of = (folder / f"{part}.json" for folder in path.iterdir())
        found = sorted(file for file in files_of if os.path.lexists(file))  # `glob` leaves out links to nothing
        if not found and part == "train":
            raise DataError(f"{setting}: {path} has no folder with a file {part}.json")
    elif not path.exists():
        hint = nearest(name, (COMMONSENSE, EMBEDDED))
        raise DataError(f"{setting}: there is no file or folder {path}; {hint}")
    elif path.suffix not in (".json", ".jsonl"):
        raise DataError(f"{setting}: {path} is neither a .json nor a .jsonl file")
    for file in found:
        check_file(file, f"{setting}: ")
    return found


# Files


def read_records(path: Path) -> Iterator[FinetuneRecord]:
    """Yield the records of a .json or .jsonl file. Raises DataError with the place of an invalid one."""
    for where, value in json_values(path, listed=path.suffix != ".jsonl"):
        yield _record(where, value)


def json_values(path: Path, *, listed: bool | None = None) -> Iterator[tuple[str, Any]]:
    """Yield the items of a JSON list (`listed`), or the values of JSON lines, each with its place: file and number.

    Without `listed` a file that begins with [ is a list. Raises DataError with the place of what is not JSON.
    """
    text = whole(path)
    if listed is None:
        listed = text.lstrip().startswith("[")
    yield from _items(path, text) if listed else _lines(path, text)


def _lines(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield f"{path}:{number}", _parsed(line, f"{path}:{number}: not a line of JSON")


def _items(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    found = _parsed(text, f"{path}: not JSON")
    if not isinstance(found, list):
        raise DataError(f"{path}: not a list of records, [{{...}}, ...]")
    yield from ((f"{path}, record {number}", value) for number, value in enumerate(found, start=1))


def _parsed(text: str, fault: str) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        raise DataError(f"{fault}: {error}") from error


def _record(where: str, value: object) -> FinetuneRecord:
    if not isinstance(value, Mapping):
        raise DataError(f"{where}: a {type(value).__name__}, not a record with {', '.join(_FIELDS)}")
    texts = ["" if name == "input" and name not in value else text_of(value, name, where) for name in _FIELDS]
    found = FinetuneRecord(*texts)
    for name in ("instruction", "output"):
        if not getattr(found, name):
            raise DataError(f"{where}: the field '{name}' is empty")
    return found


# Commonsense170K


def _commonsense(cache: Path, notify: Notify) -> Path:
    """Return the path of Commonsense170K in the cache, after downloading it if necessary. Raises DataError."""
    path = cache / "instructions" / "commonsense_170k.json"
    if path.is_file():
        return path
    notify(f"downloading {_COMMONSENSE_URL}")
    try:
        with urllib.request.urlopen(_COMMONSENSE_URL, timeout=_TIMEOUT_SECONDS) as answer:
            content = answer.read()
    except (OSError, urllib.error.URLError) as error:
        raise DataError(
            f"finetune.data: {COMMONSENSE}: cannot download {_COMMONSENSE_URL}: {error}; copy that file to {path}, or "
            "set finetune.data to a file or folder of records"
        ) from error
    disk.write(path, content)
    return path


# The embedded corpus


def embedded(split: str) -> list[FinetuneRecord]:
    """Return questions about source files of the standard library with their right choices, all kinds in turn."""
    documents = [document.text for document in Stdlib().documents(split) if document.id.startswith("lib/")]
    share = (EMBEDDED_EXAMPLES if split == "train" else _HELD_OUT_EXAMPLES) // len(KINDS)
    # Each kind takes its questions from different documents.
    texts = [documents[number :: len(KINDS)] for number in range(len(KINDS))]
    by_kind = [_spread([_asked(text, kind) for text in own], share) for kind, own in zip(KINDS, texts, strict=True)]
    return [record for group in zip(*by_kind, strict=False) for record in group]


def _asked(text: str, kind: str) -> list[FinetuneRecord]:
    return [
        FinetuneRecord(question.context, "", question.delimiter + question.choices[question.answer])
        for question in questions(text, kind)
    ]


def _spread(by_document: Sequence[Sequence[FinetuneRecord]], count: int) -> list[FinetuneRecord]:
    """Return `count` of the records at equal distances, so that all documents have their share."""
    found = list(chain.from_iterable(by_document))
    return [found[number * len(found) // count] for number in range(min(count, len(found)))]
