"""Which text a cell trains and is evaluated on, and how it is cut into rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpas_cli.spec.parse import setting

SOURCES = ("stdlib", "files", "hf", "c4")


@dataclass(frozen=True, kw_only=True)
class Data:
    """Corpus, tokenizer and row layout.

    source: `stdlib` (the running Python's standard library), `files` (`path` is a glob of .txt, .jsonl or
    .parquet files), `hf` (`path` names a `datasets` data set), `c4`.
    tokenizer: `bpe` trains a byte-level BPE of the model's vocabulary on the training split; `t5` is T5's; else the
    path of a tokenizer.json.
    validation: a path or glob of local text to evaluate on, with `source: files` only; all of `path` is then trained
    on. Empty: a part of `path` is held out.
    layout: `pack` cuts the joined documents into rows; `pad` gives each document a row, cut or padded (the reference).
    In experiments.yaml the default of `source: files` is `pack`, because long documents would lose most of their text.
    length: tokens per row. eval_tokens: budget of predicted validation tokens per evaluation.
    """

    source: str = setting("c4", choices=SOURCES)
    path: str = setting("")
    text_field: str = setting("text")
    tokenizer: str = setting("t5")
    layout: str = setting("pad", choices=("pack", "pad"))
    length: int = setting(256, low=2, high=1_048_576)
    eval_tokens: int = setting(10_000_000, low=1)
    validation: str = setting("", omit_default_from_key=True)

    @staticmethod
    def completed(values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the defaults that depend on other values."""
        return {"layout": "pack", **values} if values.get("source") == "files" else values


CORPORA: dict[str, Data] = {
    "c4": Data(),
    "quickstart": Data(source="stdlib", tokenizer="bpe", layout="pack", length=64, eval_tokens=80_000),
}
