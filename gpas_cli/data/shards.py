"""The token cache: the ids of every document, written once, in a folder named by a digest of their specification.

    <cache>/tokens/<source>-<key16>/spec.json      what the key is the digest of
                                   /made_by.json   versions, time, tokens per second and process; no part of the key
                                   /train/00000.bin    little-endian uint16 ids of the shard's documents, end to end;
                                                       uint32 if the vocabulary has more than 65,536
                                         /00000.len    little-endian uint32 length of each document
                                         /00000.json   {documents, tokens, bytes, sha256, last, final}, written last;
                                                       with uint32 also {id_bytes: 4}
                                   /validation/...

A shard exists if and only if its .json does and the file sizes match; a run compares it with its checksum before
reading it. Shards are written in order, by one writer at a time (a lock that the kernel releases). As their bytes
depend only on the specification, a killed writer loses only the shard in progress, and the next one continues after the
last complete shard. Many processes may share the encoding (encode.py); one process writes.
"""

from __future__ import annotations

import hashlib
import platform
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from gpas_cli.data import disk
from gpas_cli.data.corpora import SPLITS, Notify, Source, Survey
from gpas_cli.data.encode import ID_TYPES, EncodedGroup, Ids, encode_group, encode_in_workers, groups, id_type
from gpas_cli.data.tokenizer import Tokenizer
from gpas_cli.errors import DataError
from gpas_cli.spec.data import Data
from gpas_cli.structure import HIDDEN, Frozen

_FORMAT = 1
LENGTH = np.dtype("<u4")
# A shard ends with the document that reaches either bound: about 32 MB.
_SHARD_DOCUMENTS = 65_536
_SHARD_TOKENS = 16_777_216


class Totals(Frozen):
    """The contents of a number of shards."""

    documents: int = 0
    tokens: int = 0
    bytes: Annotated[int, "of the text that the tokens stand for"] = 0
    final: Annotated[bool, "whether the source has no more"] = False
    text_bytes: int | None = field(default=0, metadata=HIDDEN)
    """Of the whole documents, None in caches of versions before 0.3."""
    left_out: Annotated[Mapping[str, int], "malformed records, by reason"] = field(default_factory=dict)

    @property
    def cut(self) -> float | None:
        """The fraction of the documents' bytes that was cut off, None if unknown."""
        if self.text_bytes is None:
            return None
        return 1 - self.bytes / self.text_bytes if self.text_bytes else 0.0

    def rows(self, data: Data) -> int:
        """Return how many rows of `data` there are."""
        return self.documents if data.layout == "pad" else max(0, self.tokens - 1) // data.length

    def __add__(self, other: Totals) -> Totals:
        documents = self.documents + other.documents
        tokens = self.tokens + other.tokens
        known = self.text_bytes is not None and other.text_bytes is not None
        text_bytes = (self.text_bytes or 0) + (other.text_bytes or 0) if known else None
        left_out = Counter(self.left_out) + Counter(other.left_out)
        return Totals(documents, tokens, self.bytes + other.bytes, other.final, text_bytes, dict(left_out))


_Enough = Callable[[Totals], bool]
_Progress = Callable[[Totals], None]


class Shard(Frozen):
    """One complete shard."""

    stem: Path
    totals: Totals
    last: str  # the id of its last document, after which the next shard starts
    sha256: str  # the recorded checksum of its ids and lengths
    kind: np.dtype[Any]  # the type of its ids

    @property
    def name(self) -> str:
        """The five-digit number in its file names."""
        return self.stem.name

    @property
    def tokens(self) -> Ids:
        """All ids, memory-mapped."""
        return np.memmap(self.stem.with_suffix(".bin"), self.kind, "r")

    @property
    def lengths(self) -> NDArray[np.uint32]:
        """Tokens per document, memory-mapped."""
        return np.memmap(self.stem.with_suffix(".len"), LENGTH, "r")


@dataclass
class _Draft:
    """An unfinished shard, in memory: pieces of encoded groups."""

    ids: list[Ids] = field(default_factory=list)
    lengths: list[NDArray[np.int64]] = field(default_factory=list)
    totals: Totals = field(default_factory=Totals)
    last: str = ""

    def take(self, group: EncodedGroup, start: int, documents: int, tokens: int) -> int:
        """Append the documents of `group` from `start` to the one that reaches a bound. Return the next index."""
        lengths = group.lengths[start:]
        counts = self.totals.documents + np.cumsum(lengths > 0)
        reached = (counts >= documents) | (self.totals.tokens + np.cumsum(lengths) >= tokens)
        stop = start + (int(reached.argmax()) + 1 if reached.any() else len(lengths))
        first = int(group.lengths[:start].sum())
        taken = group.lengths[start:stop]
        self.ids.append(group.ids[first : first + int(taken.sum())])
        self.lengths.append(taken[taken > 0])
        size = int(group.sizes[start:stop].sum())
        whole = int(group.wholes[start:stop].sum())
        faults = Counter(filter(None, group.faults[start:stop]))
        self.totals += Totals(len(self.lengths[-1]), len(self.ids[-1]), size, text_bytes=whole, left_out=faults)
        self.last = group.names[stop - 1]
        return stop

    def full(self, documents: int, tokens: int) -> bool:
        """Return whether the shard has reached a bound."""
        return self.totals.documents >= documents or self.totals.tokens >= tokens


class TokenCache(Frozen):
    """The shards of one source under one tokenizer. `limit`: ids kept per document, end token included."""

    source: Source
    survey: Survey
    tokenizer: Tokenizer
    limit: int | None
    cache: Path
    shard_documents: int = _SHARD_DOCUMENTS
    shard_tokens: int = _SHARD_TOKENS

    @cached_property
    def spec(self) -> dict[str, Any]:
        """Everything that determines the bytes: no paths, times, hosts or versions."""
        return {
            "format": _FORMAT,
            "source": self.source.name,
            "fingerprint": self.survey.fingerprint,
            "text": self.source.normalisation,
            "tokenizer": self.tokenizer.identity,
            "specials_in_text": "pieces",
            "eos": self.tokenizer.eos_id,
            "unk": self.tokenizer.unk_id,
            "vocab": self.tokenizer.vocab,
            "max_doc_tokens": self.limit,
            "shard": [self.shard_documents, self.shard_tokens],
            **({"split": "text"} if self.survey.by_text else {}),
        }

    @cached_property
    def folder(self) -> Path:
        """The folder of the cache, named by a digest of its specification."""
        return self.cache / "tokens" / f"{self.source.name}-{disk.digest(self.spec)}"

    def ensure(
        self,
        split: str,
        enough: _Enough,
        notify: Notify,
        *,
        workers: int = 1,
        progress: _Progress = lambda totals: None,
    ) -> list[Shard]:
        """Return the first shards of `split` that are `enough` together, or all of them, building missing ones.

        `workers`: the number of processes that encode, which does not change the shards. `progress` is called with the
        totals so far. Many processes may call this at once: one builds, and the others return as soon as their shards
        exist. Raises DataError if the text is unavailable.
        """
        assert split in SPLITS
        shards, complete = self._present(split, enough)
        progress(sum_of(shards))
        announced = False

        def built_elsewhere() -> bool:
            """Return whether another process has built what is needed."""
            nonlocal announced
            if not announced:
                notify(f"waiting for another process that is tokenising {self.source.title} {split}")
            announced = True
            found, complete = self._present(split, enough)
            progress(sum_of(found))
            return complete

        while not complete:
            with disk.locked(self.folder / split, until=built_elsewhere) as held:
                if held:
                    self._complete(split, enough, notify, workers, progress)
            shards, complete = self._present(split, enough)
        return shards

    @property
    def documents(self) -> int:
        """The documents of both splits that are in the cache."""
        return sum(sum_of(self._present(split, lambda totals: False)[0]).documents for split in SPLITS)

    def built(self, split: str, enough: _Enough) -> list[Shard] | None:
        """Return what `ensure` would return without building anything, or None if it would have to build."""
        shards, complete = self._present(split, enough)
        return shards if complete else None

    def _complete(self, split: str, enough: _Enough, notify: Notify, workers: int, progress: _Progress) -> None:
        """Build the missing shards, while holding the lock."""
        shards, complete = self._present(split, enough)
        if not complete:
            self.describe()
            notify(f"tokenising {self.source.title} {split}")
        began, first = time.monotonic(), len(shards)
        while not complete:
            self._build(split, enough, shards, notify, workers, progress)
            before = len(shards)
            shards, complete = self._present(split, enough)
            if len(shards) <= before:
                raise DataError(
                    f"{self.folder}: a new shard disappeared; check whether another program deletes files there"
                )
        if split == "train" and len(shards) > first:  # most of the text, and not made by others meanwhile
            speed = sum_of(shards[first:]).tokens / (time.monotonic() - began) / workers
            made_by = self.folder / "made_by.json"
            disk.write_json(made_by, {**(disk.read_json(made_by) or {}), "speed": speed})

    def _present(self, split: str, enough: _Enough) -> tuple[list[Shard], bool]:
        """Return the complete shards from the first on, as many as needed, and whether they suffice."""
        shards: list[Shard] = []
        totals, kind = Totals(), id_type(self.tokenizer.vocab)
        for shard in _shards(self.folder / split):
            if shard.kind != kind:
                raise DataError(
                    f"{shard.stem}.json: ids of {shard.kind.itemsize} bytes do not belong to a vocabulary of "
                    f"{self.tokenizer.vocab:,}; remove {self.folder / split}, and `gpas data prepare` builds it again"
                )
            shards.append(shard)
            totals += shard.totals
            if totals.final or enough(totals):
                return shards, True
        return shards, False

    def _stem(self, split: str, number: int) -> Path:
        return self.folder / split / f"{number:05d}"

    def describe(self) -> None:
        """Write spec.json, unless it is there and correct, and made_by.json."""
        if disk.read_json(self.folder / "spec.json") != self.spec:
            disk.write_json(self.folder / "spec.json", self.spec)
        if not (self.folder / "made_by.json").exists():
            names = ("gpas-cli", "tokenizers", "numpy")
            made_by = {name: _version(name) for name in names} | {"python": platform.python_version()}
            disk.write_json(self.folder / "made_by.json", made_by | {"time": time.time()})

    def _build(
        self, split: str, enough: _Enough, shards: list[Shard], notify: Notify, workers: int, progress: _Progress
    ) -> None:
        """Write the shards after `shards` until they are enough or a complete one already exists."""
        totals, kind = sum_of(shards), id_type(self.tokenizer.vocab)
        number = len(shards)
        with closing(self._drafts(split, shards[-1].last if shards else "", workers)) as drafts:
            for draft, state in drafts:
                progress(totals + draft.totals)
                if state == "growing":
                    continue
                shard = _write_shard(self._stem(split, number), draft, kind, final=state == "final")
                totals += shard.totals
                number += 1
                notify(f"tokenising {self.source.title} {split}: {totals.documents} documents, {totals.tokens} tokens")
                if enough(totals) or read_shard(self._stem(split, number)):
                    return

    def _drafts(self, split: str, after: str, workers: int) -> Generator[tuple[_Draft, str]]:
        """Yield drafts with their state: `growing`, `full`, and at last `final`.

        The final draft may be empty, so that an empty split is recorded as such.
        """
        draft = _Draft()
        with closing(self._encoded(split, after, workers)) as encoded:
            for group in encoded:
                start = 0
                while start < len(group.names):
                    if draft.full(self.shard_documents, self.shard_tokens):
                        yield draft, "full"
                        draft = _Draft()
                    start = draft.take(group, start, self.shard_documents, self.shard_tokens)
                yield draft, "growing"
        yield draft, "final"

    def _encoded(self, split: str, after: str, workers: int) -> Generator[EncodedGroup]:
        pending = groups(self.source.documents(split, after))
        if workers > 1:
            yield from encode_in_workers(self.tokenizer, self.limit, workers, pending)
            return
        for group in pending:
            yield encode_group(group, self.tokenizer, self.limit)


def sum_of(shards: Sequence[Shard]) -> Totals:
    """Return the totals of the shards."""
    return sum((shard.totals for shard in shards), Totals())


def read_shard(stem: Path) -> Shard | None:
    """Return the shard at `stem`, or None if it is missing, incomplete or damaged."""
    marker = disk.read_json(stem.with_suffix(".json"))
    try:
        if marker is None:
            return None
        counts = (marker["documents"], marker["tokens"], marker["bytes"])
        kind = ID_TYPES[marker.get("id_bytes", 2)]
        words = (marker["last"], marker["sha256"])
        if not all(type(n) is int for n in counts) or not all(isinstance(word, str) for word in words):
            return None
        totals = Totals(*counts, bool(marker["final"]), marker.get("text_bytes"), marker.get("left_out") or {})
        sizes = (stem.with_suffix(".bin").stat().st_size, stem.with_suffix(".len").stat().st_size)
        expected = (totals.tokens * kind.itemsize, totals.documents * LENGTH.itemsize)
        return Shard(stem, totals, *words, kind) if sizes == expected else None
    except (KeyError, TypeError, FileNotFoundError, NotADirectoryError):
        return None


def _write_shard(stem: Path, draft: _Draft, kind: np.dtype[Any], *, final: bool) -> Shard:
    """Write ids and lengths, and then the marker that makes them a shard."""
    ids = _joined(draft.ids, kind)
    lengths = _joined(draft.lengths, LENGTH)
    totals = replace(draft.totals, final=final)
    # The marker of a damaged shard must not stay valid while its files are replaced.
    stem.with_suffix(".json").unlink(missing_ok=True)
    disk.write(stem.with_suffix(".bin"), ids)
    disk.write(stem.with_suffix(".len"), lengths)
    sha256 = hashlib.sha256(ids + lengths).hexdigest()
    wide = {"id_bytes": kind.itemsize} if kind.itemsize > 2 else {}
    disk.write_json(stem.with_suffix(".json"), {**vars(totals), "sha256": sha256, "last": draft.last, **wide})
    return Shard(stem, totals, draft.last, sha256, kind)


def _joined(pieces: Sequence[NDArray[Any]], kind: np.dtype[Any]) -> bytes:
    return np.concatenate([*pieces, np.zeros(0, kind)]).astype(kind).tobytes()


def _version(name: str) -> str:
    try:
        return version(name)
    except ModuleNotFoundError:
        return "not installed"


def intact(shard: Shard) -> bool:
    """Return whether a shard matches its checksum. Reads all of it. Raises DataError if it cannot be read."""
    found = hashlib.sha256()
    for suffix in (".bin", ".len"):
        path = shard.stem.with_suffix(suffix)
        try:
            with path.open("rb") as file:
                hashlib.file_digest(file, lambda: found)
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    return shard.sha256 == found.hexdigest()


def verify(shard: Shard) -> None:
    """Raise DataError unless a shard matches its checksum. Reads all of it."""
    if not intact(shard):
        raise DataError(
            f"{shard.stem}: the tokens on disk are not those that were written (their sha256 differs from the one in "
            f"{shard.name}.json); `gpas data check` lists every damaged shard, `gpas data prepare` rebuilds them, and "
            "`gpas retry` then continues"
        )


def discard_damaged(folder: Path) -> list[Path]:
    """Remove the marker of every damaged shard in `folder`, a split of a token cache, and return their stems.

    Holds the folder's lock, so that no shard is checked while it is being written. Reads all shards. Raises DataError.
    """
    if not folder.is_dir():
        return []
    with disk.locked(folder):
        found = (read_shard(marker.with_suffix("")) for marker in markers_in(folder))
        damaged = [shard.stem for shard in found if shard and not intact(shard)]
        for stem in damaged:
            stem.with_suffix(".json").unlink(missing_ok=True)
    return damaged


def markers_in(folder: Path) -> list[Path]:
    """Return the markers of complete shards in `folder`, a split of a token cache, by number."""
    return sorted(folder.glob("[0-9]*.json"))


class CachedCorpus(Frozen):
    """One token cache."""

    folder: Path
    source: str
    fingerprint: str
    tokenizer: str
    vocab: int
    max_doc_tokens: int | None  # ids kept per document, None if documents are whole
    bytes_on_disk: int  # of everything in the folder
    splits: dict[str, Totals] = field(metadata=HIDDEN)  # totals of the shards before the first missing one


def list_caches(cache: Path) -> list[CachedCorpus]:
    """Return the token caches in `cache`, sorted by name, except those that `undescribed_caches` returns."""
    return [_read(folder, spec) for folder in _folders(cache) if (spec := _spec(folder)) is not None]


def undescribed_caches(cache: Path) -> list[Path]:
    """Return the path of every spec.json of a token cache that is missing or was altered after it was written."""
    return [folder / "spec.json" for folder in _folders(cache) if _spec(folder) is None]


def _folders(cache: Path) -> list[Path]:
    """Return the folders of token caches that contain a spec or a shard."""
    found = sorted(path for path in (cache / "tokens").glob("*") if path.is_dir())
    return [
        folder for folder in found
        if (folder / "spec.json").exists() or any(markers_in(folder / split) for split in SPLITS)
    ]  # fmt: skip


def _spec(folder: Path) -> dict[str, Any] | None:
    """Return the specification of a cache, or None unless it matches the digest in the folder's name."""
    spec = disk.read_json(folder / "spec.json")
    try:
        named = spec is not None and folder.name == f"{spec.get('source')}-{disk.digest(spec)}"
    except ValueError:  # NaN, which canonical JSON cannot express
        return None
    return spec if named else None


def damaged(corpus: CachedCorpus) -> list[Path]:
    """Return the markers of the shards whose bytes differ from those that were written. Reads all of the cache."""
    markers = (marker for split in SPLITS for marker in markers_in(corpus.folder / split))
    kind = id_type(corpus.vocab)
    found = {marker: read_shard(marker.with_suffix("")) for marker in markers}
    return [marker for marker, shard in found.items() if not (shard and shard.kind == kind and intact(shard))]


def _read(folder: Path, spec: dict[str, Any]) -> CachedCorpus:
    return CachedCorpus(
        folder=folder,
        source=str(spec["source"]),
        fingerprint=str(spec["fingerprint"]),
        tokenizer=str(spec["tokenizer"]),
        vocab=int(spec["vocab"]),
        max_doc_tokens=spec["max_doc_tokens"],
        splits={split: sum_of(list(_shards(folder / split))) for split in SPLITS},
        bytes_on_disk=sum(_size(path) for path in folder.rglob("*")),
    )


def _shards(folder: Path) -> Iterator[Shard]:
    number = 0
    while (shard := read_shard(folder / f"{number:05d}")) is not None:
        yield shard
        number += 1


def _size(path: Path) -> int:
    """Return the bytes of a file, 0 if another process has just removed it."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except FileNotFoundError:
        return 0
