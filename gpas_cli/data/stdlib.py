"""A corpus that every machine has: the standard library's source files and the texts of `help()`.

The text depends on the Python version; its fingerprint distinguishes versions. Modules that distributions omit or add,
generated files and tables are skipped, so that one version has (almost) the same text whoever packaged it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sysconfig
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from gpas_cli.data.corpora import Document, Source, Survey, file_stamp, side, skip_to, survey_of
from gpas_cli.errors import DataError
from gpas_cli.files import replace_file
from gpas_cli.words import byte_size

_MIN_DOCUMENTS = 200
_MIN_BYTES = 4_000_000
_SHORTEST_BYTES = 400  # of a document
_LONGEST_BYTES = 400_000

_SKIPPED_FOLDERS = frozenset(
    # not in every distribution
    "test tests idlelib idle_test tkinter turtledemo lib2to3 distutils ensurepip venv curses dbm sqlite3 _pyrepl "
    "macholib site-packages dist-packages lib-dynload "
    # tables; and the help topics, which are read one by one
    "encodings pydoc_data __pycache__".split()
)
_SKIPPED_FILES = re.compile(
    r"(.*/)?(turtle\w*|_sysconfigdata.*|_distutils_system_mod|sitecustomize|usercustomize)\.py"
    r"|html/entities\.py|(token|keyword|opcode)\.py"
)

TRAINING_TEXT = "train.jsonl"
VALIDATION_TEXT = "validation.jsonl"
FINETUNING_RECORDS = "records.jsonl"

_TRAINING_DOCUMENTS = 96
_VALIDATION_DOCUMENTS = 24
_DOCUMENT_CHARACTERS = 1200  # at most
_RECORDS = 12
_RECORD_CHARACTERS = 60  # of an instruction, and of its answer


class Stdlib(Source):
    """The .py files (`lib/json/decoder.py`) and longer help topics (`topic/for`), in ascending order of id."""

    name = "stdlib"
    normalisation = "newlines-blanks-1"

    def __init__(self, folder: Path | None = None, topics: dict[str, str] | None = None):
        """`folder` and `topics`: by default the running Python's."""
        self.folder = folder or Path(sysconfig.get_path("stdlib"))
        self._topics = topics

    def documents(self, split: str, after: str = "") -> Iterator[Document]:
        return skip_to((d for d in self._all if side(d.id) == split), after)

    def survey(self) -> Survey:
        return survey_of(self, ((side(d.id), d) for d in self._all))

    def stamp(self) -> Any:
        """Return facts of the files, or None if the topics are not read from a file."""
        topics = self.folder / "pydoc_data" / "topics.py"
        if self._topics is not None or not topics.is_file():
            return None
        return file_stamp([*self._paths(), topics])

    @cached_property
    def _all(self) -> list[Document]:
        raw = [(f"lib/{p.relative_to(self.folder).as_posix()}", _text(p)) for p in self._paths()]
        raw += [(f"topic/{name}", text) for name, text in self._topic_texts().items()]
        documents = list(_distinct(Document(identity, _normalise(text)) for identity, text in sorted(raw)))
        size = sum(len(d.text.encode()) for d in documents)
        if len(documents) < _MIN_DOCUMENTS or size < _MIN_BYTES:
            raise DataError(
                f"data.source: stdlib needs the source files of Python's standard library, and {self.folder} has only "
                f"{len(documents)} documents with {byte_size(size)} (at least {_MIN_DOCUMENTS} and "
                f"{byte_size(_MIN_BYTES)} are needed); "
                "use data.source: files with data.path: a glob of your own .txt or .jsonl files"
            )
        return documents

    def _paths(self) -> list[Path]:
        found = []
        for folder, subfolders, names in os.walk(self.folder):
            subfolders[:] = [s for s in subfolders if s not in _SKIPPED_FOLDERS and not s.startswith("config-")]
            found += [Path(folder, name) for name in names if name.endswith(".py")]
        kept = [p for p in found if not _SKIPPED_FILES.fullmatch(p.relative_to(self.folder).as_posix())]
        return sorted(kept)

    def _topic_texts(self) -> dict[str, str]:
        if self._topics is not None:
            return self._topics
        try:
            from pydoc_data.topics import topics
        except ImportError:
            return {}
        return dict(topics)


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", "replace")
    except OSError as error:
        raise DataError(f"data.source: stdlib: cannot read {path}: {error.strerror}") from error


def _normalise(text: str) -> str:
    text = text.replace("\r\n", "\n").replace("\t", "    ")
    return text.strip("\n") + "\n"


def _distinct(documents: Iterator[Document]) -> Iterator[Document]:
    """Yield the documents of a useful size that differ from all earlier ones in more than white space."""
    seen = set()
    for document in documents:
        bare = hashlib.sha256("".join(document.text.split()).encode()).digest()
        if _SHORTEST_BYTES <= len(document.text.encode()) <= _LONGEST_BYTES and bare not in seen:
            seen.add(bare)
            yield document


def write_sample(folder: Path) -> None:
    """Write the text and the records to `folder`, unless they are there.

    Raises DataError if the source of the standard library is not installed.
    """
    if (folder / FINETUNING_RECORDS).is_file():
        return
    source = Stdlib()
    training = [document.text for document in islice(source.documents("train"), _TRAINING_DOCUMENTS)]
    validation = [document.text for document in islice(source.documents("validation"), _VALIDATION_DOCUMENTS)]
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / TRAINING_TEXT, ({"text": text[:_DOCUMENT_CHARACTERS]} for text in training))
    _write(folder / VALIDATION_TEXT, ({"text": text[:_DOCUMENT_CHARACTERS]} for text in validation))
    _write(folder / FINETUNING_RECORDS, map(_record, training[:_RECORDS]))


def _write(path: Path, records: Iterable[dict[str, str]]) -> None:
    replace_file(path, "".join(f"{json.dumps(record)}\n" for record in records))


def _record(text: str) -> dict[str, str]:
    """Return a record whose answer continues its instruction, a piece of code."""
    words = " ".join(text.split())
    half, whole = _RECORD_CHARACTERS, 2 * _RECORD_CHARACTERS
    return {"instruction": words[:half], "input": "", "output": words[half:whole]}
