"""Encode groups of records to ids: the work that is shared by processes. Ids do not depend on the grouping."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpas_cli.data.corpora import Parser, SourceRecord, parsed
from gpas_cli.data.tokenizer import Tokenizer

TOKEN = np.dtype("<u2")
# Records are encoded in groups of about this many characters; the tokenizer uses several threads for a group.
GROUP_CHARACTERS = 1_000_000

Group = list[SourceRecord]


@dataclass(frozen=True)
class EncodedGroup:
    """The concatenated ids of a group's documents, and of each document: its name (`names`), its number of tokens
    (`lengths`), the UTF-8 bytes that these stand for (`sizes`) and the bytes of its whole text (`wholes`).

    A document without a token to predict has length 0, without even an end token, and no bytes.
    """

    names: Sequence[str]
    ids: NDArray[np.uint16]
    lengths: NDArray[np.int64]
    sizes: NDArray[np.int64]
    wholes: NDArray[np.int64]


# Encodes groups in order, in this process or in several (workers.py).
Encode = Callable[[Iterator[Group]], Iterator[EncodedGroup]]


@dataclass(frozen=True)
class EncoderSpec:
    """What another process needs to encode: the tokenizer's definition, the parser, and the ids kept per document."""

    definition: str
    tokenizer: dict[str, Any]
    parser: Parser
    limit: int | None

    @classmethod
    def of(cls, tokenizer: Tokenizer, parser: Parser, limit: int | None) -> EncoderSpec:
        """Return the specification of an encoder that encodes as `tokenizer` does."""
        settings = {"vocab": tokenizer.vocab, "origin": tokenizer.origin, "local": tokenizer.local}
        return cls(tokenizer.backend.to_str(), settings, parser, limit)

    def encoder(self) -> Callable[[Group], EncodedGroup]:
        """Return the function that encodes a group."""
        from tokenizers import Tokenizer as Backend

        tokenizer = Tokenizer(Backend.from_str(self.definition), **self.tokenizer)
        return lambda group: encode_group(group, tokenizer, self.parser, self.limit)


def encode_group(group: Group, tokenizer: Tokenizer, parser: Parser, limit: int | None) -> EncodedGroup:
    """Encode the documents of the records. Raises DataError for an invalid record."""
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


def groups(records: Iterable[SourceRecord]) -> Iterator[Group]:
    """Yield the records in lists of about GROUP_CHARACTERS characters."""
    group: Group = []
    size = 0
    for record in records:
        group.append(record)
        size += len(record.raw)
        if size >= GROUP_CHARACTERS:
            yield group
            group = []
            size = 0
    if group:
        yield group
