"""The text of a cell: what it trains and is evaluated on, and how rows are made of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpas_cli.errors import Problem, nearest
from gpas_cli.spec.parse import setting
from gpas_cli.structure import Frozen

MIXTURE = "mixture"  # the source of a text that consists of several corpora
_CORPUS_SOURCES = ("stdlib", "files", "hf", "hf-files", "c4")
ENDLESS = ("hf-files", "c4")  # tokenised only as far as runs read
PAIR_SOURCES = ("pairs", "hf-pairs", "languages")  # documents are a text and its translation
_SUM_ERROR = 1e-6  # of the weights of a mixture
_CORPUS_SETTINGS = ("source", "path", "text_field", "validation", "malformed")
_ROW_SETTINGS = ("tokenizer", "length", "eval_tokens", "documents")
# Bytes to download of data sets that `datasets` downloads whole, from their cards on the hub.
HUB_BYTES = {
    "wmt/wmt16:de-en": 827_152_589, "HuggingFaceFW/fineweb-edu:sample-10BT": 28_000_000_000,
    "HuggingFaceTB/smollm-corpus:cosmopedia-v2": 122_000_000_000,
}  # fmt: skip


class Share(Frozen, kw_only=True):
    """One corpus of a mixture: its name in tables, the share of the tokens that are its own, and its text."""

    name: str
    weight: float = setting(low=0.001, high=1.0)
    source: str = setting("c4", choices=_CORPUS_SOURCES)
    path: str = setting("")
    text_field: str = setting("text")
    validation: str = setting("")
    malformed: str = setting("stop", choices=("stop", "skip"), omit_default_from_key=True)


class Data(Frozen, kw_only=True):
    """Corpus, tokenizer and row layout.

    source: `stdlib` (the running Python's standard library), `files` (`path` is a glob of .txt, .jsonl or .parquet
    files), `hf` (`path` names a `datasets` data set), `hf-files` (`path` is "OWNER/NAME:GLOB", .jsonl or .parquet files
    of a data set on the hub, which are read one after the other as far as a run needs), `c4`. Of `objective:
    translation`: `pairs` (`path` is "train.{en,de}", two files whose lines translate each other), `hf-pairs`
    ("NAME:CONFIGURATION/{en,de}", a data set with a column `translation`), `languages` (an invented pair of languages).
    tokenizer: `bpe` trains a byte-level BPE with the model's vocabulary size on the training split; `t5` is T5's,
    `gpt2` GPT-2's, with 50,257 ids, as in Spike No More; anything else is the path of a tokenizer.json.
    validation: a path or glob of local text to evaluate on, for `source: files` only; training then uses all of `path`.
    Empty: a part of `path` is held out.
    malformed: whether a record without text (a line that is no JSON, a field that is missing or null, invalid UTF-8)
    `stop`s the reading, or is `skip`ped and counted; for `files`, `hf` and `hf-files`.
    layout: `pack` joins the documents and cuts them into rows; `pad` makes one row of each document, truncated or
    padded, like the reference. The default of `source: files` is `pack`, since `pad` truncates long documents.
    documents: of `pack`, whether the documents of a row are `joined`, so that a token attends to all tokens before it,
    or `separate`: it attends only to its own document, and positions start again with every document.
    batches: of `pad`, whether an update has `optim.batch` `rows`, or as many rows of about equal length as have
    together at most `optim.batch` times `length` `tokens`, padding included; for translation.
    length: tokens per row. eval_tokens: predicted validation tokens per evaluation, at most.
    mixture: the corpora that the text consists of, in experiments.yaml their names with their weights, the shares of
    the tokens; the tokenizer `bpe` is trained on the first one. repeat: whether a corpus of it is read again once it
    has been read to its end; without it, such a run ends with an error before it trains.
    """

    source: str = setting("c4", choices=(*_CORPUS_SOURCES, *PAIR_SOURCES, MIXTURE))
    path: str = setting("")
    text_field: str = setting("text")
    tokenizer: str = setting("t5")
    layout: str = setting("pad", choices=("pack", "pad"))
    length: int = setting(256, low=2, high=1_048_576)
    eval_tokens: int = setting(10_000_000, low=1)
    validation: str = setting("", omit_default_from_key=True)
    documents: str = setting("joined", choices=("joined", "separate"), omit_default_from_key=True)
    batches: str = setting("rows", choices=("rows", "tokens"), omit_default_from_key=True)
    mixture: tuple[Share, ...] = setting((), omit_default_from_key=True)
    repeat: bool = setting(False, omit_default_from_key=True)
    malformed: str = setting("stop", choices=("stop", "skip"), omit_default_from_key=True)

    @property
    def parts(self) -> tuple[Data, ...]:
        """Its corpora, each as a text with these rows and its share of `eval_tokens`; of other texts, the text."""

        def part(share: Share) -> Data:
            tokens = max(1, round(self.eval_tokens * share.weight))
            own = {name: getattr(share, name) for name in _CORPUS_SETTINGS}
            return replace(self, mixture=(), repeat=False, eval_tokens=tokens, **own)

        return tuple(map(part, self.mixture)) or (self,)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its corpora; of a text that is no mixture, its path or its source."""
        return tuple(share.name for share in self.mixture) or (self.path or self.source,)

    @property
    def weights(self) -> tuple[float, ...]:
        """The shares of the tokens of its corpora."""
        return tuple(share.weight for share in self.mixture) or (1.0,)

    @property
    def label(self) -> str:
        """How messages call the text: c4, the path of the user's own text, or the corpora of a mixture."""
        return "+".join(self.names)

    @property
    def uses_last_id(self) -> bool:
        """Whether the text may have the last id of the vocabulary; with T5's tokenizer the papers keep it at zero."""
        return self.tokenizer != "t5"

    @staticmethod
    def completed(values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return `values` with the defaults that depend on other values."""
        if values.get("mixture"):
            return {"source": MIXTURE, "layout": "pack", **values}
        if values.get("source") in PAIR_SOURCES:
            return {"tokenizer": "bpe", **values}
        return {"layout": "pack", **values} if values.get("source") == "files" else values

    @staticmethod
    def resolved(values: Mapping[str, Any], named: Mapping[str, Data], problems: list[Problem]) -> Mapping[str, Any]:
        """Return `values` with the corpora of `named` that a mixture names, as `mixture` has them.

        Settings of rows that the values do not have are those of the corpora, which must agree.
        """
        weights = values.get("mixture")
        if weights is not None and not isinstance(weights, Mapping | list | tuple):
            problems.append(Problem(("mixture",), f"{weights!r} is not a mapping of corpora to their weights"))
            return {**values, "mixture": []}
        if not isinstance(weights, Mapping):
            return values
        corpora = {str(name): named.get(name) for name in weights}
        for name, corpus in corpora.items():
            if corpus is None or corpus.mixture:
                known = [other for other, data in named.items() if not data.mixture]
                message = (
                    f"'{name}' is a mixture itself" if corpus else f"unknown data '{name}'; {nearest(name, known)}"
                )
                problems.append(Problem(("mixture", name), message, undeclared=("data", name)))
        made = dict(values)
        for setting_name in _ROW_SETTINGS:
            found = {getattr(corpus, setting_name): name for name, corpus in corpora.items() if corpus}
            if len(found) > 1 and setting_name not in values:
                differ = " and ".join(f"{value} in {name}" for value, name in found.items())
                problems.append(Problem(("mixture",), f"{setting_name} is {differ}; give the mixture its own"))
            made = {setting_name: next(iter(found)), **made} if found else made
        made["mixture"] = [
            {"name": name, "weight": weight, **{own: getattr(corpus, own) for own in _CORPUS_SETTINGS}}
            for name, weight in ((str(name), weight) for name, weight in weights.items())
            if (corpus := corpora[name]) and not corpus.mixture
        ]
        return made

    def problems(self) -> list[Problem]:
        """Return what is wrong with the settings of a mixture together."""
        if not self.mixture:
            if self.source == MIXTURE:
                return [Problem(("mixture",), f"is required with source: {MIXTURE}")]
            fault = "has no effect without mixture: other texts are repeated as often as the updates need"
            return [Problem(("repeat",), fault)] if self.repeat else []
        usual = Data()
        found = {
            name: "has no effect with mixture; its corpora have their own"
            for name in _CORPUS_SETTINGS
            if getattr(self, name) not in (getattr(usual, name), MIXTURE)
        }
        if self.layout != "pack":
            found["layout"] = "a mixture needs layout: pack, whose rows have the same number of tokens in every corpus"
        total = math.fsum(self.weights)
        if abs(total - 1) > _SUM_ERROR:
            found["mixture"] = f"the weights sum to {total:.6g}, not to 1"
        return [Problem((name,), fault) for name, fault in found.items()]


class TextDemand(Frozen):
    """One text under a vocabulary of `vocab` ids: `rows` of training text (updates times batch size), and
    `data.eval_tokens` of validation text."""

    data: Data
    vocab: int
    rows: int


CORPORA: dict[str, Data] = {
    "c4": Data(),
    "quickstart": Data(source="stdlib", tokenizer="bpe", layout="pack", length=64, eval_tokens=80_000),
}
