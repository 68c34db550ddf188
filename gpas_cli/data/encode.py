"""Records to ids, in groups: the work that processes share. A group's ids do not depend on how records are grouped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpas_cli.data.corpora import Parser, Record, parsed
from gpas_cli.data.tokenizer import Tokenizer

TOKEN = np.dtype("<u2")
# Records go to an encoder in groups of about so many characters, which it spreads over its threads.
GROUP = 1_000_000

Group = list[Record]


@dataclass(frozen=True)
class EncodedGroup:
    """The ids of a group's documents, end to end, and for each document its id, its tokens, the UTF-8 bytes that they
    stand for and those of the whole text.

    A document that gives nothing to predict has no tokens here, not even its end token, and no bytes.
    """

    names: Sequence[str]
    ids: NDArray[np.uint16]
    lengths: NDArray[np.int64]
    sizes: NDArray[np.int64]
    wholes: NDArray[np.int64]


# What a token cache has its groups encoded by: this process, or several (workers.py). The order is kept.
Encode = Callable[[Iterator[Group]], Iterator[EncodedGroup]]


@dataclass(frozen=True)
class EncoderSpec:
    """All that another process needs to encode: the tokenizer's definition, the parser, the ids kept per document."""

    definition: str
    tokenizer: dict[str, Any]
    parser: Parser
    limit: int | None

    @classmethod
    def of(cls, tokenizer: Tokenizer, parser: Parser, limit: int | None) -> EncoderSpec:
        """The recipe that gives what `tokenizer` gives."""
        settings = {"vocab": tokenizer.vocab, "origin": tokenizer.origin, "local": tokenizer.local}
        return cls(tokenizer.backend.to_str(), settings, parser, limit)

    def encoder(self) -> Callable[[Group], EncodedGroup]:
        """The function from a group to its ids."""
        from tokenizers import Tokenizer as Backend

        tokenizer = Tokenizer(Backend.from_str(self.definition), **self.tokenizer)
        return lambda group: encode_group(group, tokenizer, self.parser, self.limit)


def encode_group(group: Group, tokenizer: Tokenizer, parser: Parser, limit: int | None) -> EncodedGroup:
    """The documents among the records, encoded. Raises DataError for a record that is none."""
    documents = list(parsed(group, parser))
    encoded = tokenizer.encode_documents([document.text for document in documents], limit)
    kept = [len(ids) > 1 for ids, _ in encoded]  # more than the end token: there is something to predict
    lengths = np.array([len(ids) if keep else 0 for (ids, _), keep in zip(encoded, kept, strict=True)], np.int64)
    sizes = np.array([size if keep else 0 for (_, size), keep in zip(encoded, kept, strict=True)], np.int64)
    texts = [len(document.text.encode("utf-8", "surrogatepass")) for document in documents]
    wholes = np.array([size if keep else 0 for size, keep in zip(texts, kept, strict=True)], np.int64)
    joined = np.empty(int(lengths.sum()), TOKEN)
    for start, length, (ids, _) in zip(
        accumulate(lengths.tolist(), initial=0), lengths.tolist(), encoded, strict=False
    ):
        if length:
            joined[start : start + length] = ids
    return EncodedGroup([document.id for document in documents], joined, lengths, sizes, wholes)


def groups(records: Iterable[Record]) -> Iterator[Group]:
    """The records in lists of about GROUP characters."""
    group: Group = []
    size = 0
    for record in records:
        group.append(record)
        size += len(record.raw)
        if size >= GROUP:
            yield group
            group, size = [], 0
    if group:
        yield group
