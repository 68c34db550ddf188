"""Sources of documents: one interface for every kind of text, and the split into training and validation text.

    Source            documents(split, after) in a fixed order: Document(id, text); survey()
    ├── Stdlib        the running Python's standard library                                 stdlib.py
    ├── Files         .txt, .jsonl and .parquet files under a glob                          files.py
    ├── HfDataset     a `datasets` data set, by name or local                               hub.py
    ├── C4, HubFiles  allenai/c4, or files of any repository, one file at a time            hub.py
    └── FilePairs, HubPairs, Languages   texts with their translations                      pairs.py

A hash of a document's text decides its split, so that equal documents are on one side, on every machine. Its id decides
in the standard library, which has no equal documents, and in a text that has been tokenised by a version in which ids
decided: its split stays what it is, and its tokens are found.
"""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

from gpas_cli.data import disk
from gpas_cli.errors import DataError
from gpas_cli.structure import Frozen
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
    """One text and its id, unique in its source and independent of the machine.

    fault: why there is no text, in a record that `malformed: skip` leaves out.
    """

    id: str
    text: str
    fault: str = ""


class Survey(Frozen):
    """Fingerprints of a source's text: equal ones mean equal documents, in both splits or in validation alone."""

    fingerprint: str
    validation_fingerprint: str
    validation_documents: int | None = None  # how many there are, None if unknown
    shared: int | None = None
    """How many validation documents also occur in the training text, as whole documents; None if unknown."""
    by_text: Annotated[bool, "whether the texts of the documents decided the split"] = False
    commit: Annotated[str | None, "of a repository of the hub"] = None

    @property
    def overlap(self) -> str:
        """What of the validation text is training text too, "" if it is unknown."""
        if self.shared is None:
            return ""
        return f"{self.shared:,} of {self.validation_documents:,} validation documents also occur in the training text"


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
    # Whether the texts of documents decide their split, or else their ids; `cached_survey` finds out.
    by_text: bool = False
    # Whether a malformed record is left out, as a document with a fault, instead of raising DataError.
    skip: bool = False

    @property
    def title(self) -> str:
        """How messages call the source."""
        return self.name

    @abstractmethod
    def documents(self, split: str, after: str = "") -> Iterator[Document]:
        """Yield the documents of `split` in their fixed order; with `after`, those that follow the one of that id.

        Raises DataError if the text is unavailable or, without `malformed: skip`, at the first malformed record.
        """

    @property
    def commit(self) -> str | None:
        """The commit of the repository of the hub that the text is read at, None for any other text."""
        return None

    def side(self, document: Document) -> str:
        """Return the split of a document, if the validation text has no files of its own."""
        return side(document.text if self.by_text and not document.fault else document.id)

    def survey(self) -> Survey:
        """Compute the fingerprints from the text, which may read all of it. Raises DataError."""
        documents = ((split, document) for split in SPLITS for document in self.documents(split))
        return survey_of(self, documents)

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
        known = _known(_survey_path(self, stamp, cache))
        self.by_text = known.by_text if known else self.by_text
        return known


def side(identity: str) -> str:
    """Return the split of a document, which its text or its id decides: about 8 % are validation text."""
    number = int.from_bytes(hashlib.sha256((_SALT + identity).encode("utf-8", "surrogatepass")).digest())
    return "validation" if number % 100 < VALIDATION_PERCENT else "train"


def skip_to(documents: Iterator[Document], after: str) -> Iterator[Document]:
    """Return the documents after the one with id `after`; all of them if `after` is empty."""
    if after and not any(document.id == after for document in documents):
        raise DataError(f"document '{after}' is no longer in the corpus; the text changed while it was being tokenised")
    return documents


def survey_of(source: Source, documents: Iterator[tuple[str, Document]]) -> Survey:
    """Return the survey of a source's (split, document) pairs: hashes over splits, ids and texts, in order.

    Raises DataError if a split is empty.
    """
    digests = {"": hashlib.sha256(), "validation": hashlib.sha256()}
    texts = {split: array("Q") for split in SPLITS}  # eight bytes of the hash of each document
    for split, document in documents:
        if document.fault:
            continue
        text = hashlib.sha256(document.text.encode("utf-8", "surrogatepass")).hexdigest()
        line = f"{split}\0{document.id}\0{text}\n".encode("utf-8", "surrogatepass")
        texts[split].append(int(text[:16], 16))
        digests[""].update(line)
        if split == "validation":
            digests[split].update(line)
    _check_counts(source, {split: len(found) for split, found in texts.items()})
    from numpy import isin  # which `gpas status` does without

    shared = int(isin(texts["validation"], texts["train"]).sum())
    whole, validation = (digests[split].hexdigest()[:16] for split in ("", "validation"))
    return Survey(whole, validation, len(texts["validation"]), shared, source.by_text and not source.separate)


def _check_counts(source: Source, counts: Mapping[str, int]) -> None:
    """Raise DataError if a split has no document."""
    total = sum(counts.values())
    if not total and not source.separate:
        raise DataError(f"no documents in {source.title}")
    for split in SPLITS:
        if not counts[split]:
            if source.separate:
                setting = "data.path" if split == "train" else "data.validation"
                raise DataError(f"{setting}: the files that it matches hold no text")
            raise DataError(
                f"the corpus has {count(total, 'document')}, and none is in the {split} split (a hash of the text, the "
                f"same for equal documents, makes about {VALIDATION_PERCENT} % of documents validation text); provide "
                "more documents, such as smaller ones (a line of a .jsonl file is one), or separate validation text "
                "with data.validation"
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
    if known is None or known.shared is None:
        known = _surveyed(source, cache, known)
        disk.write_json(path, asdict(known))
    source.by_text = known.by_text
    return replace(known, commit=source.commit)


def _surveyed(source: Source, cache: Path, before: Survey | None) -> Survey:
    """Return the survey of the text. Ids decide the split if there are tokens, or a survey, of what they make."""
    if source.separate or not source.by_text:
        return source.survey()
    specs = map(disk.read_json, (cache / "tokens").glob(f"{source.name}-*/spec.json"))
    known = {spec["fingerprint"] for spec in specs if spec and "split" not in spec} | {before and before.fingerprint}
    source.by_text = False
    with suppress(DataError):  # a split may be empty
        if known != {None} and (found := source.survey()).fingerprint in known:
            return found
    source.by_text = True
    return source.survey()


def _survey_path(source: Source, stamp: Any, cache: Path) -> Path:
    key = disk.digest([source.name, source.normalisation, _SALT, VALIDATION_PERCENT, stamp])
    return cache / "sources" / f"{source.name}-{key}.json"


def _known(path: Path) -> Survey | None:
    known = disk.read_json(path)
    sound = known and {"fingerprint", "validation_fingerprint"} <= known.keys() <= Survey.__dataclass_fields__.keys()
    return Survey(**known) if known and sound else None
