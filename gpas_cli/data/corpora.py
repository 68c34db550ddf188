"""Sources of documents: one interface for every kind of text, and the split into training and validation text.

    Source            records(split, after) in a fixed order, parser(record) -> Document(id, text); survey()
    ├── Stdlib        the running Python's standard library                                 stdlib.py
    ├── Files         .txt, .jsonl and .parquet files under a glob                          files.py
    ├── HfDataset     a `datasets` data set, by name or local                               hub.py
    ├── C4, HubFiles  allenai/c4, or files of any repository, one file at a time            hub.py
    └── FilePairs, HubPairs, Languages   texts with their translations                      pairs.py

A record is a document as it is stored in its file. Reading records is cheap and sequential; parsing them into documents
is shared by many processes.

A document's id alone decides its split: the same file or line is validation text on every machine and in every version.
"""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from gpas_cli.data import disk
from gpas_cli.errors import DataError
from gpas_cli.words import count

Notify = Callable[[str], None]

SPLITS = ("train", "validation")
VALIDATION_PERCENT = 8
_SALT = "gpas-split-1:"
# Two changes of a file that are closer than this may have the same time: of a file system that counts in fractions of a
# second, and of one that counts in whole seconds.
_FINE_TICK = 0.05
_COARSE_TICK = 2.0
_MOST_WAITS = 5  # while a file is being written, or its server's clock is ahead


class Document(NamedTuple):
    """One text and its id, unique in its source and independent of the machine."""

    id: str
    text: str


class SourceRecord(NamedTuple):
    """A document before parsing. `where` names it in messages."""

    id: str
    raw: str | bytes
    where: str = ""


# Picklable, as it is sent to other processes. Returns None for a record without text.
Parser = Callable[[SourceRecord], Document | None]


def _parse_text(record: SourceRecord) -> Document | None:
    """Return the document of a record whose `raw` is its text."""
    assert isinstance(record.raw, str)
    return Document(record.id, record.raw)


@dataclass(frozen=True)
class Survey:
    """Fingerprints of a source's text: equal ones mean equal documents, in both splits or in validation alone."""

    fingerprint: str
    validation_fingerprint: str


class SurveyUnknown(Exception):
    """Whether the text is the one that was surveyed cannot be known without reading it."""


class Source(ABC):
    """A corpus. It yields text exactly as the tokenizer receives it."""

    name: ClassVar[str]
    # How the source changes its text; part of the cache key. Change the word when the rule changes.
    normalisation: ClassVar[str] = "none"
    # Whether it is too large to tokenise in full: only as many documents are read as a run needs.
    endless: ClassVar[bool] = False
    # Whether the validation text has files of its own.
    separate: bool = False

    @property
    def title(self) -> str:
        """How messages call the source."""
        return self.name

    @abstractmethod
    def records(self, split: str, after: str = "") -> Iterator[SourceRecord]:
        """Yield the records of `split` in their fixed order; with `after`, those that follow the document of that id.

        Raises DataError if the text is unavailable.
        """

    @property
    def parser(self) -> Parser:
        """The function that parses this source's records. It raises DataError for an invalid record."""
        return _parse_text

    def documents(self, split: str, after: str = "") -> Iterator[Document]:
        """Yield the documents of `split`, or those after `after`. Raises DataError if the text is unavailable."""
        return parsed(self.records(split, after), self.parser)

    def survey(self) -> Survey:
        """Compute the fingerprints from the text, which may read all of it. Raises DataError."""
        documents = ((split, document) for split in SPLITS for document in self.documents(split))
        return survey_of(documents, self.title, separate=self.separate)

    def paths(self) -> list[Path]:
        """Return the local files that are read, none if they are not known before a download. Raises DataError."""
        return []

    def stamp(self) -> Any:
        """Return JSON data that changes whenever the text does and is cheap to compute, or None if there is none."""
        return None

    def check(self) -> None:  # noqa: B027
        """Raise DataError if the text is known to be unavailable without opening a file or using the network."""

    def known(self, cache: Path) -> Survey | None:
        """Return the cached survey of the present text, or None. Reads and downloads no text.

        Raises SurveyUnknown if that is impossible without reading the text, DataError if there is no text.
        """
        stamp = self.stamp()
        if stamp is None:
            raise SurveyUnknown
        return _known(_survey_path(self, stamp, cache))


def side(identity: str) -> str:
    """Return the split of a document, which its id alone decides: about 8 % are validation text."""
    number = int.from_bytes(hashlib.sha256((_SALT + identity).encode()).digest())
    return "validation" if number % 100 < VALIDATION_PERCENT else "train"


def parsed(records: Iterable[SourceRecord], parser: Parser) -> Iterator[Document]:
    """Yield the documents of the records that have text."""
    return (document for record in records if (document := parser(record)) is not None)


def skip_to(records: Iterator[SourceRecord], after: str) -> Iterator[SourceRecord]:
    """Return the records after the one with id `after`; all of them if `after` is empty."""
    if after and not any(record.id == after for record in records):
        raise DataError(f"document '{after}' is no longer in the corpus; the text changed while it was being tokenised")
    return records


def survey_of(documents: Iterator[tuple[str, Document]], title: str, *, separate: bool = False) -> Survey:
    """Return the fingerprints of (split, document) pairs: hashes over splits, ids and texts, in order.

    title: how messages call the source. separate: the validation text has files of its own. Raises DataError if a split
    is empty.
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
    check_counts(counts, title, separate=separate)
    return Survey(digests[""].hexdigest()[:16], digests["validation"].hexdigest()[:16])


def check_counts(counts: Mapping[str, int], title: str, *, separate: bool = False) -> None:
    """Raise DataError if a split has no document. title, separate: as for `survey_of`."""
    total = sum(counts.values())
    if not total and not separate:
        raise DataError(f"no documents in {title}")
    for split in SPLITS:
        if not counts[split]:
            if separate:
                setting = "data.path" if split == "train" else "data.validation"
                raise DataError(f"{setting}: the files that it matches hold no text")
            raise DataError(
                f"the corpus has {count(total, 'document')}, and none is in the {split} split (a hash of the id makes "
                f"about {VALIDATION_PERCENT} % of documents validation text); provide more documents, such as smaller "
                "ones (a line of a .jsonl file is one), or separate validation text with data.validation"
            )


def file_stamp(paths: Iterable[Path]) -> list[list[Any]]:
    """Return path, size and times of each file. Any later change of a file changes its times.

    Waits for a fraction of a second, if a file has just been changed.
    """
    paths = list(paths)
    for _ in range(_MOST_WAITS):
        facts = [path.stat() for path in paths]
        newest = max((fact.st_ctime_ns for fact in facts), default=0)
        tick = _FINE_TICK if newest % 10**9 else _COARSE_TICK
        if newest / 1e9 < time.time() - tick:
            break
        time.sleep(tick)
    return [
        [str(path), fact.st_size, fact.st_mtime_ns, fact.st_ctime_ns, fact.st_ino]
        for path, fact in zip(paths, facts, strict=True)
    ]


def cached_survey(source: Source, cache: Path) -> Survey:
    """Return the source's survey, from `cache` if the stamp of the files is unchanged."""
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
    key = disk.digest([source.name, source.normalisation, _SALT, VALIDATION_PERCENT, stamp])
    return cache / "sources" / f"{source.name}-{key}.json"


def _known(path: Path) -> Survey | None:
    known = disk.read_json(path)
    return Survey(**known) if known and known.keys() == {"fingerprint", "validation_fingerprint"} else None
