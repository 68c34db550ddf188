"""Where documents come from: one interface for every kind of text, and the split between training and validation.

    Source            records(split, after) in a fixed order, parser(record) -> Document(id, text); survey()
    ├── Stdlib        the running Python's standard library                                 stdlib.py
    ├── Files         .txt, .jsonl and .parquet files under a glob                          files.py
    ├── HfDataset     a `datasets` data set, by name or local                               hub.py
    └── C4            allenai/c4, one shard file at a time                                  hub.py

A record is a document as it lies in its file: reading records is cheap and goes in order, making documents of them is
what many processes share.

A document's id decides its side: the same file or line is validation text on every machine and in every version.
"""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from gpas_cli.data import disk
from gpas_cli.errors import DataError

Notify = Callable[[str], None]

SPLITS = ("train", "validation")
VALIDATION_PERCENT = 8
SALT = "gpas-split-1:"
# A file changed this shortly before it was listed may change again without its time stamp showing it.
UNSETTLED_SECONDS = 2.0


class Document(NamedTuple):
    """One text and its name, unique in its source and independent of the machine."""

    id: str
    text: str


class Record(NamedTuple):
    """A document before its text is taken out of the bytes it lies in. `where` names it in messages."""

    id: str
    raw: str | bytes
    where: str = ""


# Picklable: it travels to other processes. None is a record without text.
Parser = Callable[[Record], Document | None]


def as_it_is(record: Record) -> Document | None:
    """The parser of records that are text already."""
    assert isinstance(record.raw, str)
    return Document(record.id, record.raw)


@dataclass(frozen=True)
class Survey:
    """What a source's text is. Equal fingerprints mean equal documents in both splits, resp. in validation alone."""

    fingerprint: str
    validation_fingerprint: str


class SurveyUnknown(Exception):
    """Whether a text is the one that was surveyed cannot be told without reading it."""


class Source(ABC):
    """A corpus. Text leaves a source as the tokenizer will see it."""

    name: ClassVar[str]
    # How text was changed on the way; part of the cache key. Change the word when the rule changes.
    normalisation: ClassVar[str] = "none"
    # Too large to be tokenised whole: only as many documents are read as a run needs.
    endless: ClassVar[bool] = False

    @abstractmethod
    def records(self, split: str, after: str = "") -> Iterator[Record]:
        """The records of `split` in their fixed order; with `after`, those that follow the document of that id.

        Raises DataError when the text cannot be had.
        """

    @property
    def parser(self) -> Parser:
        """What makes documents of this source's records. Raises DataError for a record that is none."""
        return as_it_is

    def documents(self, split: str, after: str = "") -> Iterator[Document]:
        """The documents of `split`, or those behind `after`. Raises DataError when the text cannot be had."""
        return parsed(self.records(split, after), self.parser)

    @abstractmethod
    def survey(self) -> Survey:
        """The fingerprints, from the text itself: may read all of it. Raises DataError."""

    def stamp(self) -> Any:
        """What shows cheaply that the text has not changed since it was surveyed (JSON), or None if nothing does."""
        return None

    def known(self, cache: Path) -> Survey | None:
        """The survey that `cache` has of the text as it is now, None where it has none. Reads and fetches no text.

        Raises SurveyUnknown where only that would tell, DataError when there is no text.
        """
        stamp = self.stamp()
        if stamp is None:
            raise SurveyUnknown
        return _known(_survey_path(self, stamp, cache))


def side(identity: str) -> str:
    """The split a document belongs to, from its id alone: about 8 % are validation."""
    number = int.from_bytes(hashlib.sha256((SALT + identity).encode()).digest())
    return "validation" if number % 100 < VALIDATION_PERCENT else "train"


def parsed(records: Iterable[Record], parser: Parser) -> Iterator[Document]:
    """The documents among the records."""
    return (document for record in records if (document := parser(record)) is not None)


def skip_to(records: Iterator[Record], after: str) -> Iterator[Record]:
    """The records behind the one with id `after`; all of them where `after` is empty."""
    if after and not any(record.id == after for record in records):
        raise DataError(f"document '{after}' is no longer in the corpus; the text changed while it was being tokenised")
    return records


def survey_of(documents: Iterator[tuple[str, Document]]) -> Survey:
    """Fingerprints of (split, document) pairs: over ids, sides and the hash of each text, in order.

    Raises DataError when a split is empty.
    """
    digests = {"": hashlib.sha256(), "validation": hashlib.sha256()}
    counts = dict.fromkeys(SPLITS, 0)
    for split, document in documents:
        counts[split] += 1
        text = hashlib.sha256(document.text.encode("utf-8", "surrogatepass")).hexdigest()
        line = f"{split}\0{document.id}\0{text}\n".encode("utf-8", "surrogatepass")
        digests[""].update(line)
        if split == "validation":
            digests[split].update(line)
    check_counts(counts)
    return Survey(digests[""].hexdigest()[:16], digests["validation"].hexdigest()[:16])


def check_counts(counts: dict[str, int]) -> None:
    """Raises DataError when either split has no document."""
    for split in SPLITS:
        if not counts[split]:
            raise DataError(
                f"the corpus has {sum(counts.values())} documents and none of them falls on the {split} side of the "
                f"split (about {VALIDATION_PERCENT} in 100 are validation, chosen by a hash of the id); give more, "
                "smaller documents, for example one per line of a .jsonl file, or validation text of its own with "
                "data.validation"
            )


def file_stamp(paths: Iterator[Path]) -> list[list[Any]] | None:
    """Path, size and times of each file; None while a file is so young that it may still change unseen."""
    stamp, newest = [], 0.0
    for path in paths:
        facts = path.stat()
        stamp.append([str(path), facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino])
        newest = max(newest, facts.st_mtime, facts.st_ctime)
    return stamp if newest < time.time() - UNSETTLED_SECONDS else None


def cached_survey(source: Source, cache: Path) -> Survey:
    """The source's survey, read from `cache` when the stamp of the files shows that nothing changed."""
    stamp = source.stamp()
    if stamp is None:
        return source.survey()
    path = _survey_path(source, stamp, cache)
    known = _known(path)
    if known is None:
        known = source.survey()
        disk.write_json(path, asdict(known))
    return known


def _survey_path(source: Source, stamp: Any, cache: Path) -> Path:
    key = disk.digest([source.name, source.normalisation, SALT, VALIDATION_PERCENT, stamp])
    return cache / "sources" / f"{source.name}-{key}.json"


def _known(path: Path) -> Survey | None:
    known = disk.read_json(path)
    return Survey(**known) if known and known.keys() == {"fingerprint", "validation_fingerprint"} else None
