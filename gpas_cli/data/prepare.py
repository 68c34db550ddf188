"""From a cell's `Data` to rows: the one function of this room a trainer calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpas_cli.data.corpora import Notify, Survey, cached_survey
from gpas_cli.data.rows import Rows, open_rows
from gpas_cli.data.shards import Enough, Shard, TokenCache, Totals
from gpas_cli.data.sources import open_source
from gpas_cli.data.tokenizer import Tokenizer, make_tokenizer
from gpas_cli.errors import DataError
from gpas_cli.spec.data import Data


@dataclass(frozen=True)
class Corpus:
    """The text of a run, ready to be read.

    `folder` is the token cache it lies in. Totals are of documents, tokens (end tokens included) and UTF-8 bytes.
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

        Bytes are those the kept tokens stand for, in the text as it was; T5's tokenizer drops line ends and repeated
        blanks, so its bits per byte flatter a little.
        """
        return self.validation_totals.bytes / self.validation_totals.tokens

    def facts(self) -> dict[str, str | int]:
        """What the journal records about the text. Results compare only where the fingerprints agree."""
        return {
            "source": self.source,
            "fingerprint": self.survey.fingerprint,
            "validation_fingerprint": self.survey.validation_fingerprint,
            "tokenizer": self.tokenizer.identity,
            "train_tokens": self.train_totals.tokens,
            "validation_tokens": self.validation_totals.tokens,
            "train_documents": self.train_totals.documents,
            "validation_documents": self.validation_totals.documents,
        }


def prepare(
    data: Data, vocab: int, cache: Path, *, root: Path, notify: Notify = lambda message: None, rows: int | None = None
) -> Corpus:
    """The corpus of `data` under a model's vocabulary, from `cache`, into which whatever is missing is built first.

    `rows`: how many rows the run reads, updates times batch. Only a source too large to be tokenised whole (c4) heeds
    it, and needs it: the run then sees the first so many rows and no others, however many another run has cached.
    Relative paths in `data` start from `root`. `notify` is told what takes time. Safe to call from many processes.
    Raises DataError when text or tokenizer cannot be had, or are too little for one row.
    """
    source = open_source(data, cache, root)
    if source.endless and rows is None:
        raise ValueError(f"prepare() needs `rows` for data.source: {source.name}, which cannot be tokenised whole")
    survey = cached_survey(source, cache)
    tokenizer = make_tokenizer(data.tokenizer, vocab, source, survey, cache, root=root, notify=notify)
    tokens = TokenCache(source, survey, tokenizer, data.length if data.layout == "pad" else None, cache)
    limit = rows if source.endless else None
    needs: dict[str, Enough] = {"train": _never, "validation": _never}
    if source.endless and rows is not None:
        needs = {"train": _rows_of(data, rows), "validation": _predicting(data.eval_tokens)}
    shards = {split: tokens.ensure(split, enough, notify) for split, enough in needs.items()}
    return Corpus(
        source=source.name,
        survey=survey,
        tokenizer=tokenizer,
        folder=tokens.folder,
        train=_open(data, tokenizer, "train", shards["train"], limit),
        validation=_open(data, tokenizer, "validation", shards["validation"], None),
        train_totals=_sum(shards["train"]),
        validation_totals=_sum(shards["validation"]),
    )


def _never(totals: Totals) -> bool:
    """All there is."""
    return False


def _rows_of(data: Data, rows: int) -> Enough:
    if data.layout == "pad":
        return lambda totals: totals.documents >= rows
    return lambda totals: totals.tokens > rows * data.length


def _predicting(budget: int) -> Enough:
    """The first token of a padded row is not predicted."""
    return lambda totals: totals.tokens - totals.documents > budget


def _open(data: Data, tokenizer: Tokenizer, split: str, shards: Sequence[Shard], limit: int | None) -> Rows:
    rows = open_rows(shards, data.layout, data.length, pad_id=tokenizer.pad_id, limit=limit)
    if not len(rows):
        totals = _sum(shards)
        raise DataError(
            f"the {split} split of data.source: {data.source} has {totals.documents} documents with {totals.tokens} "
            f"tokens, too few for one row of data.length: {data.length}; give more text or shorter rows"
        )
    return rows


def _sum(shards: Sequence[Shard]) -> Totals:
    return sum((shard.totals for shard in shards), Totals())
