"""Prepare the rows of a cell's `Data`: `prepare`, the one function that a trainer calls, and its parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from gpas_cli.data import disk
from gpas_cli.data.corpora import SPLITS, Notify, Source, Survey, cached_survey
from gpas_cli.data.files import Files
from gpas_cli.data.rows import MixedRows, Rows, open_rows, rows_needed
from gpas_cli.data.shards import Shard, TokenCache, Totals, sum_of
from gpas_cli.data.stdlib import Stdlib
from gpas_cli.data.tokenizer import Tokenizer, make_tokenizer, tokenizer_path
from gpas_cli.errors import DataError, GpasError
from gpas_cli.events import TextFacts
from gpas_cli.spec.data import PAIR_SOURCES, Data
from gpas_cli.structure import Frozen


def open_source(data: Data, cache: Path, root: Path) -> Source:
    """Return the `Source` of `data`, which is no mixture. Relative paths start from `root`. Reads nothing yet."""
    made: Source
    if data.source == "files":
        made = Files(data.path, data.text_field, root, data.validation)
    elif data.source == "stdlib":
        made = Stdlib()
    elif data.source in PAIR_SOURCES:
        from gpas_cli.data import pairs  # which few cells read

        made = pairs.opened(data, root)
    else:
        from gpas_cli.data import hub  # which a text of this machine does without

        if data.source == "hf-files":
            made = hub.HubFiles(data.path, data.text_field, cache)
        else:
            made = hub.HfDataset(data.path, data.text_field, root) if data.source == "hf" else hub.C4(cache)
    made.skip = data.malformed == "skip"
    return made


def open_sources(data: Data, cache: Path, root: Path) -> list[Source]:
    """Return the `Source` of each part of `data`, as `open_source`."""
    return [open_source(part, cache, root) for part in data.parts]


class HeldOut(Frozen):
    """The validation text of one corpus: its name and its weight in the mixture, 1 for a text that is no mixture."""

    name: str
    weight: float
    rows: Rows
    totals: Totals

    @property
    def bytes_per_token(self) -> float:
        """UTF-8 bytes of text per token: bits per byte = nats per token / ln 2 / this.

        Counts the bytes of the original text that the kept tokens stand for. T5's tokenizer drops line ends and
        repeated spaces, so its bits per byte are slightly too low.
        """
        return self.totals.bytes / self.totals.tokens


class ValidationText(Frozen):
    """The validation text of a run, tokenised and ready to read. held_out: of each corpus."""

    survey: Survey
    tokenizer: Tokenizer
    validation: Rows
    held_out: tuple[HeldOut, ...]

    @property
    def validation_totals(self) -> Totals:
        """The totals of the validation text of all corpora."""
        return sum((one.totals for one in self.held_out), Totals())

    @property
    def validation_bytes_per_token(self) -> float:
        """The mean of its corpora's bytes per token, by their weights."""
        return sum(one.weight * one.bytes_per_token for one in self.held_out)

    def require_tokenizer(self, trained_with: str | None) -> None:
        """Raise GpasError if a network was trained with another tokenizer than the text has. None is an unknown one."""
        own = self.tokenizer.identity
        if trained_with not in (None, own):
            raise GpasError(
                f"the network was pretrained with the tokenizer {trained_with:.12}, and this machine has {own:.12}; "
                "restore the tokenizer and the text of the pretraining"
            )

    def newly_verified(self) -> dict[str, dict[str, str]]:
        """Return split -> name -> sha256 of the shards compared with their checksums since the last call."""
        shards = self.validation.newly_verified()
        return {"validation": shards} if shards else {}


class Corpus(ValidationText):
    """The text of a run. totals: of each corpus, by split: documents, tokens (end tokens included) and UTF-8 bytes."""

    source: str
    train: Rows
    totals: tuple[dict[str, Totals], ...]

    @property
    def train_totals(self) -> Totals:
        """The totals of the training text of all corpora."""
        return sum((own["train"] for own in self.totals), Totals())

    @property
    def left_out(self) -> Mapping[str, int]:
        """The malformed records of both splits that were left out, by reason."""
        return (self.train_totals + self.validation_totals).left_out

    @property
    def identity(self) -> str:
        """A digest of the training text and its tokenizer. A run cannot be resumed with another one."""
        return disk.digest({"text": self.survey.fingerprint, "tokenizer": self.tokenizer.identity})

    def newly_verified(self) -> dict[str, dict[str, str]]:
        """Return the same as `ValidationText.newly_verified` of both splits."""
        shards = self.train.newly_verified()
        return ({"train": shards} if shards else {}) | super().newly_verified()

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
            shared_documents=self.survey.shared,
            commit=self.survey.commit,
            left_out=self.left_out or None,
        )


class Need(Frozen):
    """How much of a split is needed: `documents`, `tokens` or `targets` (all tokens of a document but the first)."""

    measure: str
    amount: int

    def of(self, totals: Totals) -> int:
        """Return how much there is, in the need's measure."""
        targets = totals.tokens - totals.documents
        return {"documents": totals.documents, "tokens": totals.tokens, "targets": targets}[self.measure]


# Called with the split, what it needs (None: all of it), and how much of it exists.
SplitProgress = Callable[[str, Need | None, Totals], None]


def prepare(
    data: Data, vocab: int, cache: Path, *, root: Path, rows: int, notify: Notify = lambda message: None
) -> Corpus:
    """Return the corpus of `data` under a model's vocabulary, from `cache`, after building what is missing there.

    `rows`: the rows that the run reads, updates times batch. Of a source that is too large to tokenise in full (c4,
    hf-files) it reads exactly the first `rows`, even if another run has cached more.
    Relative paths in `data` start from `root`. `notify` is called before steps that take time. Many processes may call
    this at once. Raises DataError if text or tokenizer are unavailable, or do not fill one row.
    """
    caches = token_caches(data, vocab, cache, root=root, notify=notify)
    shards = build(caches, data, rows, notify=notify)
    held_out = _held_out(caches, data, shards)
    train = {
        name: _open(part, own.tokenizer, "train", found["train"], needed if own.source.endless else None)
        for name, part, own, found, needed in zip(
            data.names, data.parts, caches, shards, rows_needed(data.weights, rows), strict=True
        )
    }
    return Corpus(
        source=data.source,
        survey=_survey(caches),
        tokenizer=caches[0].tokenizer,
        train=_joined(data, train),
        validation=_joined(data, {one.name: one.rows for one in held_out}),
        held_out=held_out,
        totals=tuple({split: sum_of(found[split]) for split in SPLITS} for found in shards),
    )


def _held_out(
    caches: Sequence[TokenCache], data: Data, shards: Sequence[Mapping[str, Sequence[Shard]]]
) -> tuple[HeldOut, ...]:
    found = zip(data.names, data.weights, data.parts, caches, shards, strict=True)
    rows = partial(_open, split="validation", limit=None)
    return tuple(
        HeldOut(name, weight, rows(part, own.tokenizer, shards=made["validation"]), sum_of(made["validation"]))
        for name, weight, part, own, made in found
    )


def _joined(data: Data, parts: Mapping[str, Rows]) -> Rows:
    return MixedRows(parts, data.weights) if data.mixture else next(iter(parts.values()))


def _survey(caches: Sequence[TokenCache]) -> Survey:
    """Return the fingerprints of the text; a mixture's are digests of its corpora's."""
    surveys = [own.survey for own in caches]
    if len(surveys) == 1:
        return surveys[0]
    whole, validation = (
        disk.digest([getattr(own, name) for own in surveys]) for name in ("fingerprint", "validation_fingerprint")
    )
    return Survey(whole, validation, commit=", ".join(own.commit for own in surveys if own.commit) or None)


def prepare_validation(
    data: Data, vocab: int, cache: Path, *, root: Path, notify: Notify = lambda message: None
) -> ValidationText:
    """Return only the validation text of `data`, from `cache`, after building what is missing. As `prepare`."""
    caches = token_caches(data, vocab, cache, root=root, notify=notify)
    held_out = _held_out(caches, data, build(caches, data, 1, notify=notify, splits=("validation",)))
    rows = _joined(data, {one.name: one.rows for one in held_out})
    return ValidationText(_survey(caches), caches[0].tokenizer, rows, held_out)


def token_caches(data: Data, vocab: int, cache: Path, *, root: Path, notify: Notify) -> list[TokenCache]:
    """Return the token cache of each part of `data`, after surveying its text and training its tokenizer if necessary.

    All have the tokenizer of the first. Raises DataError if text or tokenizer are unavailable.
    """
    sources = open_sources(data, cache, root)
    surveys = [cached_survey(source, cache) for source in sources]
    return _token_caches(sources, surveys, data, vocab, cache, root, notify)


def _token_caches(
    sources: Sequence[Source], surveys: Sequence[Survey], data: Data, vocab: int, cache: Path, root: Path,
    notify: Notify,
) -> list[TokenCache]:  # fmt: skip
    tokenizer = make_tokenizer(data.tokenizer, vocab, sources[0], surveys[0], cache, root=root, notify=notify)
    limit = data.length if data.layout == "pad" else None
    return [
        TokenCache(source, survey, tokenizer, limit, cache) for source, survey in zip(sources, surveys, strict=True)
    ]


def cached(data: Data, vocab: int, cache: Path, *, root: Path, rows: int) -> list[dict[str, list[Shard]]] | None:
    """Return the shards of each part's splits that `prepare` would find in `cache`, None unless it would find all.

    Reads file times and the cache, but no text, and builds nothing. Raises SurveyUnknown if the text would have to be
    read, and DataError if there is none.
    """
    found = []
    caches = known_caches(data, vocab, cache, root=root)
    for own, part, needed in zip(caches, data.parts, rows_needed(data.weights, rows), strict=False):
        shards = {split: own.built(split, _enough(_need(own.source, part, split, needed))) for split in SPLITS}
        found.append({split: made for split, made in shards.items() if made is not None})
    return found if found and all(len(shards) == len(SPLITS) for shards in found) else None


def known_caches(data: Data, vocab: int, cache: Path, *, root: Path) -> list[TokenCache]:
    """Return the token cache of each part of `data`, nothing before its text was surveyed and its tokenizer made.

    Reads and raises the same as `cached`.
    """
    sources = open_sources(data, cache, root)
    surveys = [survey for source in sources if (survey := source.known(cache))]
    if len(surveys) < len(sources):
        return []
    made = tokenizer_path(data.tokenizer, vocab, sources[0], surveys[0], cache)
    if made is not None and not made.is_file():
        return []
    return _token_caches(sources, surveys, data, vocab, cache, root, lambda message: None)


def build(
    caches: Sequence[TokenCache],
    data: Data,
    rows: int,
    *,
    notify: Notify,
    splits: Sequence[str] = SPLITS,
    workers: int = 1,
    watch: SplitProgress = lambda *_: None,
) -> list[dict[str, list[Shard]]]:
    """Return the shards of each part's splits that a run of `rows` rows needs; `workers` processes tokenise missing
    ones.

    Raises DataError if the text is unavailable, or if a corpus of a mixture has fewer rows than the run reads.
    """
    found = []
    for name, part, own, needed in zip(data.names, data.parts, caches, rows_needed(data.weights, rows), strict=True):
        shards = {}
        for split in splits:
            need = _need(own.source, part, split, needed)
            progress = partial(watch, f"{name} {split}" if data.mixture else split, need)
            shards[split] = own.ensure(split, _enough(need), notify, workers=workers, progress=progress)
        if "train" in shards:
            _require_rows(data, name, needed, sum_of(shards["train"]).rows(part))
        found.append(shards)
    return found


def _require_rows(data: Data, name: str, needed: int, present: int) -> None:
    if data.mixture and not data.repeat and needed > present:
        times = f"{needed / max(1, present):,.1f}"
        raise DataError(
            f"data.mixture: {name} has {present:,} rows of {data.length} tokens, and the run reads up to {needed:,}, "
            f"{times} times as many; add `repeat: true` to the mixture, give {name} less weight, or add text to it"
        )


def _need(source: Source, data: Data, split: str, rows: int) -> Need | None:
    if not source.endless:
        return None
    if split == "validation":
        return Need("targets", data.eval_tokens + 1)
    return Need("documents", rows) if data.layout == "pad" else Need("tokens", rows * data.length + 1)


def _enough(need: Need | None) -> Callable[[Totals], bool]:
    """Return the predicate of `need`; for None, one that is never true, as all of the text is needed."""
    return lambda totals: need is not None and need.of(totals) >= need.amount


def _open(data: Data, tokenizer: Tokenizer, split: str, shards: Sequence[Shard], limit: int | None) -> Rows:
    rows = open_rows(shards, data.layout, data.length, pad_id=tokenizer.pad_id, limit=limit)
    if not len(rows):
        totals = sum_of(shards)
        raise DataError(
            f"the {split} split of data.source: {data.source} has {totals.documents} documents with {totals.tokens} "
            f"tokens, too few for one row of data.length: {data.length}; give more text or shorter rows"
        )
    return rows
