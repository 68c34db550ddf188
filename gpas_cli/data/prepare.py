"""Prepare the rows of a cell's `Data`: `prepare`, the one function that a trainer calls, and its parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gpas_cli.data import disk
from gpas_cli.data.corpora import SPLITS, Notify, Source, Survey, SurveyUnknown, cached_survey
from gpas_cli.data.files import Files
from gpas_cli.data.hub import C4, HfDataset
from gpas_cli.data.rows import Rows, open_rows
from gpas_cli.data.shards import Shard, TokenCache, Totals, sum_of
from gpas_cli.data.stdlib import Stdlib
from gpas_cli.data.tokenizer import Tokenizer, make_tokenizer, tokenizer_path
from gpas_cli.errors import DataError
from gpas_cli.events import TextFacts
from gpas_cli.spec.data import Data


def open_source(data: Data, cache: Path, root: Path) -> Source:
    """Return the `Source` of `data`. Relative paths start from `root`. Reads nothing yet."""
    if data.source == "files":
        return Files(data.path, data.text_field, root, data.validation)
    if data.source == "hf":
        return HfDataset(data.path, data.text_field, root)
    return C4(cache) if data.source == "c4" else Stdlib()


@dataclass(frozen=True)
class Corpus:
    """The text of a run, tokenised and ready to read from the token cache `folder`.

    Totals count documents, tokens (end tokens included) and UTF-8 bytes.
    """

    source: str
    survey: Survey
    tokenizer: Tokenizer
    folder: Path
    train: Rows
    validation: Rows
    train_totals: Totals
    validation_totals: Totals

    @property
    def validation_bytes_per_token(self) -> float:
        """UTF-8 bytes of text per validation token: bits per byte = nats per token / ln 2 / this.

        Counts the bytes of the original text that the kept tokens stand for. T5's tokenizer drops line ends and
        repeated spaces, so its bits per byte are slightly too low.
        """
        return self.validation_totals.bytes / self.validation_totals.tokens

    @property
    def identity(self) -> str:
        """A digest of the training text and its tokenizer. A run cannot be resumed with another one."""
        return disk.digest({"text": self.survey.fingerprint, "tokenizer": self.tokenizer.identity})

    def newly_verified(self) -> dict[str, dict[str, str]]:
        """Return split -> name -> sha256 of the shards compared with their checksums since the last call."""
        found = {split: getattr(self, split).newly_verified() for split in SPLITS}
        return {split: shards for split, shards in found.items() if shards}

    def facts(self) -> TextFacts:
        """Return what the journal records about the text, without its usage."""
        return TextFacts(
            source=self.source,
            fingerprint=self.survey.fingerprint,
            validation_fingerprint=self.survey.validation_fingerprint,
            tokenizer=self.tokenizer.identity,
            train_tokens=self.train_totals.tokens,
            validation_tokens=self.validation_totals.tokens,
            train_documents=self.train_totals.documents,
            validation_documents=self.validation_totals.documents,
        )


@dataclass(frozen=True)
class Need:
    """How much of a split is needed: `documents`, `tokens` or `targets` (all tokens of a document but the first)."""

    measure: str
    amount: int

    def of(self, totals: Totals) -> int:
        """Return how much there is, in the need's measure."""
        targets = totals.tokens - totals.documents
        return {"documents": totals.documents, "tokens": totals.tokens, "targets": targets}[self.measure]

    def is_met(self, totals: Totals) -> bool:
        """Return whether the totals are enough."""
        return self.of(totals) >= self.amount


# Called with the split, what it needs (None: all of it), and how much of it exists.
SplitProgress = Callable[[str, Need | None, Totals], None]


def prepare(
    data: Data, vocab: int, cache: Path, *, root: Path, notify: Notify = lambda message: None, rows: int | None = None
) -> Corpus:
    """Return the corpus of `data` under a model's vocabulary, from `cache`, after building what is missing there.

    `rows`: the rows that the run reads, updates times batch. Required for a source that is too large to tokenise in
    full (c4), and ignored for others: the run reads exactly the first `rows`, even if another run has cached more.
    Relative paths in `data` start from `root`. `notify` is called before steps that take time. Many processes may call
    this at once. Raises DataError if text or tokenizer are unavailable, or do not fill one row.
    """
    if rows is None and open_source(data, cache, root).endless:
        raise ValueError(f"`rows` are needed for data.source: {data.source}, which is too large to tokenise in full")
    tokens = token_cache(data, vocab, cache, root=root, notify=notify)
    shards = build(tokens, data, rows, notify=notify)
    tokenizer = tokens.tokenizer
    limit = rows if tokens.source.endless else None
    return Corpus(
        source=tokens.source.name,
        survey=tokens.survey,
        tokenizer=tokenizer,
        folder=tokens.folder,
        train=_open(data, tokenizer, "train", shards["train"], limit),
        validation=_open(data, tokenizer, "validation", shards["validation"], None),
        train_totals=sum_of(shards["train"]),
        validation_totals=sum_of(shards["validation"]),
    )


@dataclass(frozen=True)
class ValidationText:
    """The validation text of a corpus, without its training text, and the tokenizer."""

    survey: Survey
    tokenizer: Tokenizer
    rows: Rows
    totals: Totals

    @property
    def bytes_per_token(self) -> float:
        """UTF-8 bytes of text per token, as `Corpus.validation_bytes_per_token`."""
        return self.totals.bytes / self.totals.tokens

    def newly_verified(self) -> dict[str, dict[str, str]]:
        """Return the same as `Corpus.newly_verified`."""
        shards = self.rows.newly_verified()
        return {"validation": shards} if shards else {}


def prepare_validation(
    data: Data, vocab: int, cache: Path, *, root: Path, notify: Notify = lambda message: None
) -> ValidationText:
    """Return only the validation text of `data`, from `cache`, after building what is missing. As `prepare`."""
    tokens = token_cache(data, vocab, cache, root=root, notify=notify)
    shards = build(tokens, data, 1, notify=notify, splits=("validation",))["validation"]
    rows = _open(data, tokens.tokenizer, "validation", shards, None)
    return ValidationText(tokens.survey, tokens.tokenizer, rows, sum_of(shards))


def token_cache(data: Data, vocab: int, cache: Path, *, root: Path, notify: Notify) -> TokenCache:
    """Return the token cache of `data`, after surveying its text and training its tokenizer if necessary.

    Raises DataError if text or tokenizer are unavailable.
    """
    source = open_source(data, cache, root)
    return _token_cache(source, cached_survey(source, cache), data, vocab, cache, root, notify)


def _token_cache(
    source: Source, survey: Survey, data: Data, vocab: int, cache: Path, root: Path, notify: Notify
) -> TokenCache:
    tokenizer = make_tokenizer(data.tokenizer, vocab, source, survey, cache, root=root, notify=notify)
    return TokenCache(source, survey, tokenizer, data.length if data.layout == "pad" else None, cache)


def present(data: Data, vocab: int, cache: Path, *, root: Path, rows: int) -> bool | None:
    """Return whether `prepare` would find everything in `cache`; None if unknown without reading the text.

    Reads and raises the same as `cached`, but SurveyUnknown.
    """
    try:
        return cached(data, vocab, cache, root=root, rows=rows) is not None
    except SurveyUnknown:
        return None


def cached(data: Data, vocab: int, cache: Path, *, root: Path, rows: int) -> dict[str, list[Shard]] | None:
    """Return the shards of each split that `prepare` would find in `cache`, or None unless it would find all of them.

    Reads file times and the cache, but no text, and builds nothing. Raises SurveyUnknown if the text would have to be
    read, and DataError if there is none.
    """
    source = open_source(data, cache, root)
    survey = source.known(cache)
    if survey is None:
        return None
    made = tokenizer_path(data.tokenizer, vocab, source, survey, cache)
    if made is not None and not made.is_file():
        return None
    tokens = _token_cache(source, survey, data, vocab, cache, root, lambda message: None)
    shards: dict[str, list[Shard]] = {}
    for split in SPLITS:
        found = tokens.built(split, _enough(_need(source, data, split, rows)))
        if found is None:
            return None
        shards[split] = found
    return shards


def build(
    tokens: TokenCache,
    data: Data,
    rows: int | None,
    *,
    notify: Notify,
    splits: Sequence[str] = SPLITS,
    workers: int = 1,
    watch: SplitProgress = lambda *_: None,
) -> dict[str, list[Shard]]:
    """Return the shards of each split that a run of `rows` rows needs; `workers` processes tokenise missing ones.

    Raises DataError if the text is unavailable.
    """
    shards = {}
    for split in splits:
        need = _need(tokens.source, data, split, rows)
        shards[split] = tokens.ensure(
            split, _enough(need), notify, workers=workers, progress=partial(watch, split, need)
        )
    return shards


def _need(source: Source, data: Data, split: str, rows: int | None) -> Need | None:
    if not source.endless or rows is None:
        return None
    if split == "validation":
        return Need("targets", data.eval_tokens + 1)
    return Need("documents", rows) if data.layout == "pad" else Need("tokens", rows * data.length + 1)


def _enough(need: Need | None) -> Callable[[Totals], bool]:
    """Return the predicate of `need`; for None, one that is never true, as all of the text is needed."""
    return need.is_met if need is not None else lambda totals: False


def _open(data: Data, tokenizer: Tokenizer, split: str, shards: Sequence[Shard], limit: int | None) -> Rows:
    rows = open_rows(shards, data.layout, data.length, pad_id=tokenizer.pad_id, limit=limit)
    if not len(rows):
        totals = sum_of(shards)
        raise DataError(
            f"the {split} split of data.source: {data.source} has {totals.documents} documents with {totals.tokens} "
            f"tokens, too few for one row of data.length: {data.length}; give more text or shorter rows"
        )
    return rows
