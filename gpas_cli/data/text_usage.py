"""What runs make of a text: how often they read it, how much of it no row holds, what there is to evaluate on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpas_cli.data.corpora import Document, Source
from gpas_cli.data.files import Files
from gpas_cli.data.prepare import cached
from gpas_cli.data.shards import Totals, sum_of
from gpas_cli.data.sources import open_source
from gpas_cli.errors import DataError
from gpas_cli.spec.data import Data

# An estimate before a text is tokenised takes so many bytes for a token, and looks at so many bytes of documents.
BYTES_PER_TOKEN, SAMPLE = 4, 4_000_000
# Less than this is no news: rows read more than once, and bytes that are cut off.
REPEATED, CUT = 1.05, 0.02


@dataclass(frozen=True)
class TextUsage:
    """`epochs`: how often a run reads each row. `cut`: the share of the training text's bytes that `layout: pad` cuts
    off, None where it is not known. `targets`: the validation tokens to predict that there are, None where not known,
    of the `asked` ones. `estimated`: from sizes, before the text is tokenised."""

    data: Data
    epochs: float
    cut: float | None
    targets: int | None
    estimated: bool = False

    @property
    def asked(self) -> int:
        return self.data.eval_tokens

    def facts(self) -> dict[str, float | int | None]:
        """What the journal records."""
        return {"epochs": self.epochs, "cut": self.cut, "validation_targets": self.targets}

    def warnings(self) -> list[str]:
        """What a user may not expect, a sentence each. The papers' cut of C4 is expected."""
        about = "about " if self.estimated else ""
        found = []
        if self.epochs > REPEATED:
            found.append(f"the training text is read {about}{self.epochs:,.1f} times over")
        if self.cut is not None and self.cut > CUT and self.data.source != "c4":
            found.append(
                f"layout: pad cuts off {about}{100 * self.cut:.0f} % of the training text: documents longer than "
                f"length: {self.data.length}; layout: pack reads all of it"
            )
        if self.targets is not None and self.targets < self.asked:
            found.append(
                f"evaluations use {self.targets:,} tokens, all that the validation text has; eval_tokens asks for "
                f"{self.asked:,}"
            )
        return found


def text_usage(data: Data, rows: int, train: Totals, validation: Totals) -> TextUsage:
    """What a run that reads `rows` rows makes of the splits with these totals."""
    available = rows_in(data, train)
    # Of C4 as many rows are tokenised as the longest run reads; there are always more.
    epochs = 1.0 if data.source == "c4" else rows / max(1, available)
    return TextUsage(data, epochs, train.cut if data.layout == "pad" else 0.0, _targets(data, validation))


def rows_in(data: Data, totals: Totals) -> int:
    """Rows of `data.length` tokens that a split holds."""
    return totals.documents if data.layout == "pad" else max(0, totals.tokens - 1) // data.length


def _targets(data: Data, totals: Totals) -> int:
    return totals.tokens - totals.documents if data.layout == "pad" else rows_in(data, totals) * data.length


def estimate_usage(data: Data, vocab: int, cache: Path, root: Path, rows: int) -> TextUsage | None:
    """Return `text_usage` from the token cache, or an estimate from file sizes and a sample; None if neither is known.

    Builds nothing and reads at most SAMPLE bytes of text. Raises DataError when there is no text.
    """
    if shards := cached(data, vocab, cache, root=root, rows=rows):
        return text_usage(data, rows, sum_of(shards["train"]), sum_of(shards["validation"]))
    source = open_source(data, cache, root)
    return _estimate(data, source, rows) if isinstance(source, Files) else None


def _estimate(data: Data, source: Files, rows: int) -> TextUsage | None:
    files = source.files()["train"].values()
    if any(path.suffix in (".gz", ".parquet") for path in files):
        return None
    size, row = sum(path.stat().st_size for path in files), data.length * BYTES_PER_TOKEN
    lengths = [len(document.text.encode("utf-8", "surrogatepass")) for document in _sample(source)]
    if not lengths:
        return None
    if data.layout == "pack":
        return TextUsage(data, rows / max(1.0, size / row), 0.0, None, estimated=True)
    documents = size * len(lengths) / sum(lengths)
    cut = sum(max(0, length - row) for length in lengths) / sum(lengths)
    return TextUsage(data, rows / max(1.0, documents), cut, None, estimated=True)


def _sample(source: Source) -> Iterator[Document]:
    left = SAMPLE
    for document in source.documents("train"):
        yield document
        left -= len(document.text)
        if left < 0:
            return


def unreadable_reason(data: Data, cache: Path, root: Path) -> str:
    """Why the text of `data` cannot be read, "" where it seems that it can. Opens no file and asks no network."""
    try:
        source = open_source(data, cache, root)
        if isinstance(source, Files):
            source.files()
        if data.tokenizer not in ("bpe", "t5") and not (path := root / Path(data.tokenizer).expanduser()).is_file():
            return f"data.tokenizer: '{data.tokenizer}' is neither bpe nor t5, and there is no file {path}"
    except DataError as error:
        return str(error)
    return ""
