"""The text of a cell: what it trains and is evaluated on, and how rows are made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpas_cli.spec.parse import setting

_CORPUS_SOURCES = ("stdlib", "files", "hf", "c4")


@dataclass(frozen=True, kw_only=True)
class Data:
    """Corpus, tokenizer and row layout.

    source: `stdlib` (the running Python's standard library), `files` (`path` is a glob of .txt, .jsonl or
    .parquet files), `hf` (`path` names a `datasets` data set), `c4`.
    tokenizer: `bpe` trains a byte-level BPE with the model's vocabulary size on the training split; `t5` is T5's,
    `gpt2` GPT-2's, with 50,257 ids, as in Spike No More; anything else is the path of a tokenizer.json.
    validation: a path or glob of local text to evaluate on, for `source: files` only; training then uses all of `path`.
    Empty: a part of `path` is held out.
    layout: `pack` joins the documents and cuts them into rows; `pad` makes one row of each document, truncated or
    padded, like the reference. The default of `source: files` is `pack`, since `pad` truncates long documents.
    documents: of `pack`, whether the documents of a row are `joined`, so that a token attends to all tokens before it,
    or `separate`: it attends only to its own document, and positions start again with every document.
    length: tokens per row. eval_tokens: predicted validation tokens per evaluation, at most.
    """

    source: str = setting("c4", choices=_CORPUS_SOURCES)
    path: str = setting("")
    text_field: str = setting("text")
    tokenizer: str = setting("t5")
    layout: str = setting("pad", choices=("pack", "pad"))
    length: int = setting(256, low=2, high=1_048_576)
    eval_tokens: int = setting(10_000_000, low=1)
    validation: str = setting("", omit_default_from_key=True)
    documents: str = setting("joined", choices=("joined", "separate"), omit_default_from_key=True)

    @property
    def uses_last_id(self) -> bool:
        """Whether the text may have the last id of the vocabulary; with T5's tokenizer the papers keep it at zero."""
        return self.tokenizer != "t5"

    @staticmethod
    def completed(values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return `values` with the defaults that depend on other values."""
        return {"layout": "pack", **values} if values.get("source") == "files" else values


CORPORA: dict[str, Data] = {
    "c4": Data(),
    "quickstart": Data(source="stdlib", tokenizer="bpe", layout="pack", length=64, eval_tokens=80_000),
}
