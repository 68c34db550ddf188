"""Further texts that a trained network is scored on, and a cell's section `texts`.

A text is named by one of KNOWN_TEXTS, by the path of local files ("held-out/*.txt"), or by both a name and a path
("notes=held-out/*.txt"), the name being the label of its column.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpas_cli.errors import Problem, nearest
from gpas_cli.spec.parse import setting

LOCAL_TOKENS = 250_000  # assumed for a local text, to estimate the cost before the text is read
_NAMED = re.compile(r"([A-Za-z][A-Za-z0-9_.-]*)=(.+)")


@dataclass(frozen=True, kw_only=True)
class KnownText:
    """A text that this program knows: the split `test` of a data set of the Hugging Face hub.

    repo, configuration, column: the data set, and the column with the text of a document. scored: `all` tokens, or only
    those of the `last-word` of each document, after the rest of it as context. tokens: about how many there are.
    """

    name: str
    repo: str
    configuration: str
    column: str
    scored: str = "all"
    tokens: int


# The same documents as in the tasks of these names of lm-evaluation-harness.
KNOWN_TEXTS: dict[str, KnownText] = {
    text.name: text
    for text in (
        KnownText(
            name="wikitext",
            repo="EleutherAI/wikitext_document_level",
            configuration="wikitext-2-raw-v1",
            column="page",
            tokens=310_000,
        ),
        KnownText(
            name="lambada_openai",
            repo="EleutherAI/lambada_openai",
            configuration="default",
            column="text",
            scored="last-word",
            tokens=490_000,
        ),
    )
}


def text_problem(text: str) -> str:
    """Return what is wrong with the name of a text, "" if nothing is."""
    if text in KNOWN_TEXTS or local_path(text):
        return ""
    known = nearest(text, KNOWN_TEXTS)
    return f"unknown text '{text}'; {known}, or the path of local files with a folder or an ending: ./{text}"


def local_path(text: str) -> str:
    """Return the path or glob of a local text, "" for a text of the hub."""
    named = _NAMED.fullmatch(text)
    if named:
        return named[2]
    return text if text not in KNOWN_TEXTS and re.search(r"[./\\*]", text) else ""


def text_name(text: str) -> str:
    """Return the name of a text in metrics and tables: that before "=", or the text itself."""
    named = _NAMED.fullmatch(text)
    return named[1] if named else text


@dataclass(frozen=True, kw_only=True)
class Texts:
    """Perplexities of the trained network on texts other than its own validation text.

    texts: names, or paths of local .txt, .jsonl, .jsonl.gz and .parquet files, relative to experiments.yaml.
    max_length: tokens that the network is given at once, 0 for the length of the rows that it was trained on; longer
    documents are divided, and every token is predicted once. limit: score only the first documents of each text, for a
    quick look; 0 scores all.
    """

    texts: tuple[str, ...] = setting(tuple(KNOWN_TEXTS), check=text_problem)
    max_length: int = setting(0, low=0, high=1_048_576)
    limit: int = setting(0, low=0)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the texts, in their order."""
        return tuple(map(text_name, self.texts))

    def problems(self) -> Iterator[Problem]:
        """Yield what is wrong with the section as a whole."""
        if not self.texts:
            yield Problem(("texts",), "names no text")
        for name in sorted({name for name in self.names if self.names.count(name) > 1}):
            yield Problem(("texts",), f"names '{name}' more than once")
        for text in self.texts:
            if text_name(text) in KNOWN_TEXTS and text not in KNOWN_TEXTS:
                yield Problem(
                    ("texts",), f"'{text_name(text)}' is the name of a text of the hub; choose another name for yours"
                )


# The metrics of a cell's tables that are reported for each text.
BY_TEXT = ("text_perplexity", "text_loss", "text_bits_per_byte")


def tokens_of(texts: Sequence[str]) -> float:
    """Return about how many tokens the texts have."""
    return float(sum(KNOWN_TEXTS[text].tokens if text in KNOWN_TEXTS else LOCAL_TOKENS for text in texts))
