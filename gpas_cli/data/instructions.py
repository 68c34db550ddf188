"""Rows to finetune on: records rendered, tokenised with the network's tokenizer, and cut into rows.

    pack   p1 p1 a1 </s> p2 a2 a2 </s> ...     cut every `length` tokens, like the packed rows of pretraining
    pad    p1 p1 a1 </s> .  .                  one example in each row, truncated or filled

p: tokens of the prompt, a: tokens of the answer. Under `loss_on: output` only the answers and the end tokens are
targets. The prompt ends where the tokens of the prompt alone and of the whole example first differ: a tokenizer
may join the end of the prompt with the beginning of the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpas_cli.data import disk
from gpas_cli.data.corpora import Notify
from gpas_cli.data.encode import Ids, id_type
from gpas_cli.data.loader import IGNORED, VALIDATION_SEED, Batch, permutation
from gpas_cli.data.records import FinetuneRecord, RecordSource, held_out_source, prompt, training_source
from gpas_cli.data.rows import Ints
from gpas_cli.data.tokenizer import Tokenizer
from gpas_cli.errors import DataError
from gpas_cli.spec.finetune import Finetune
from gpas_cli.structure import Frozen

_ENCODED_AT_ONCE = 10_000  # records


class _Examples(Frozen):
    """Tokenised records: the ids of all, end tokens included; the number of tokens of each, and of each prompt."""

    fingerprint: str
    ids: Ids
    lengths: NDArray[np.uint32]
    prompts: NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def starts(self) -> Ints:
        """Where each example starts in `ids`, and the end of the last: [n + 1]."""
        return np.concatenate([[0], np.cumsum(self.lengths, dtype=np.int64)])

    @cached_property
    def answers(self) -> NDArray[np.bool_]:
        """Whether each id belongs to an answer."""
        place = np.arange(len(self.ids)) - np.repeat(self.starts[:-1], self.lengths)
        return place >= np.repeat(self.prompts.astype(np.int64), self.lengths)


class InstructionRows:
    """The examples cut into rows of at most `length` tokens to predict (`pack`), or to read (`pad`)."""

    def __init__(self, examples: _Examples, spec: Finetune, pad_id: int):
        self.examples = examples
        self.layout = spec.layout
        self.width = spec.length + 1 if spec.layout == "pack" else spec.length
        self.pad_id = pad_id
        self._counted = examples.answers if spec.loss_on == "output" else np.ones(len(examples.ids), bool)

    def __len__(self) -> int:
        if self.layout == "pad":
            return len(self.examples)
        return max(0, len(self.examples.ids) - 1) // (self.width - 1)

    @property
    def cut_examples(self) -> int:
        """The number of examples that do not fit their row."""
        return int((self.examples.lengths > self.width).sum()) if self.layout == "pad" else 0

    def batch(self, indices: Ints) -> Batch:
        """Return the batch of these rows: inputs without the last token, targets without the first."""
        tokens = np.full((len(indices), self.width), self.pad_id, np.int64)
        counted = np.zeros(tokens.shape, bool)
        for number, index in enumerate(indices.tolist()):
            start, size = self._place(index)
            tokens[number, :size] = self.examples.ids[start : start + size]
            counted[number, :size] = self._counted[start : start + size]
        targets = np.where(counted[:, 1:], tokens[:, 1:], IGNORED)
        return Batch(np.ascontiguousarray(tokens[:, :-1]), targets)

    def _place(self, index: int) -> tuple[int, int]:
        """Return where a row starts in the ids, and its size."""
        if self.layout == "pack":
            return index * (self.width - 1), self.width
        return int(self.examples.starts[index]), min(self.width, int(self.examples.lengths[index]))


def held_out_batches(rows: InstructionRows | None, batch: int, token_budget: int) -> Iterator[Batch]:
    """Yield the rows in a fixed mixed order, `batch` at a time, until `token_budget` tokens are predicted."""
    if rows is None:
        return
    mixed = permutation(VALIDATION_SEED, 0, len(rows))
    predicted = 0
    for start in range(0, len(mixed), batch):
        if predicted >= token_budget:
            return
        found = rows.batch(mixed[start : start + batch])
        predicted += found.predicted
        if found.predicted:
            yield found


class Instructions(Frozen):
    """The rows to train on, and those to evaluate on if there are any."""

    tokenizer: Tokenizer
    train: InstructionRows
    held_out: InstructionRows | None

    @property
    def fingerprint(self) -> str:
        """A digest of all examples, those to evaluate on included."""
        return disk.digest([rows.examples.fingerprint for rows in (self.train, self.held_out) if rows is not None])

    @property
    def identity(self) -> str:
        """A digest of the examples to train on and their tokenizer. A run cannot be resumed with others."""
        return disk.digest({"text": self.train.examples.fingerprint, "tokenizer": self.tokenizer.identity})

    def warnings(self) -> list[str]:
        """Return warnings for the user, one sentence each."""
        cut = self.train.cut_examples
        if not cut:
            return []
        share = 100 * cut / len(self.train.examples)
        return [f"{cut:,} examples ({share:.1f} %) are longer than length: {self.train.width} and lose their end"]


def prepare_instructions(
    spec: Finetune, tokenizer: Tokenizer, cache: Path, *, root: Path, notify: Notify = lambda message: None
) -> Instructions:
    """Return the rows of a finetuning under the tokenizer of its network. Downloads are kept in `cache`.

    Relative paths start from `root`. `notify` is called before steps that take time. Raises DataError if records
    are unavailable or invalid, or do not fill one row.
    """
    training = training_source(spec, cache, root, notify)
    rows = InstructionRows(_examples(training, spec, tokenizer, cache, notify), spec, tokenizer.pad_id)
    if not len(rows):
        raise DataError(
            f"finetune.data: {spec.data} has {len(rows.examples):,} examples with {len(rows.examples.ids):,} tokens, "
            f"too few for one row of length: {spec.length}; give more records or shorter rows"
        )
    source = held_out_source(spec, cache, root, notify)
    held_out = None
    if source is not None:
        held_out = InstructionRows(_examples(source, spec, tokenizer, cache, notify), spec, tokenizer.pad_id)
    return Instructions(tokenizer, rows, held_out if held_out is not None and len(held_out) else None)


def _examples(source: RecordSource, spec: Finetune, tokenizer: Tokenizer, cache: Path, notify: Notify) -> _Examples:
    """Return the tokenised examples of a source. Raises DataError."""
    assert spec.template is not None
    notify(f"tokenising the {source.part} records of {source.name}")
    return encode(source.records(), spec.template, tokenizer, source.fingerprint(cache))


def encode(records: Sequence[FinetuneRecord], template: str, tokenizer: Tokenizer, fingerprint: str) -> _Examples:
    """Return the tokenised records, each with an end token."""
    kind = id_type(tokenizer.vocab)
    ids: list[Ids] = [np.zeros(0, kind)]
    lengths: list[int] = []
    prompts: list[int] = []
    for first in range(0, len(records), _ENCODED_AT_ONCE):
        group = records[first : first + _ENCODED_AT_ONCE]
        heads = [prompt(record, template) for record in group]
        wholes = [head + record.output for head, record in zip(heads, group, strict=True)]
        encoded_heads = tokenizer.encode_documents(heads)
        for head, whole in zip(encoded_heads, tokenizer.encode_documents(wholes), strict=True):
            ids.append(np.asarray(whole.ids, kind))
            lengths.append(len(whole.ids))
            prompts.append(_common(head.ids[:-1], whole.ids))
    return _Examples(fingerprint, np.concatenate(ids), np.array(lengths, np.uint32), np.array(prompts, np.uint32))


def _common(head: Sequence[int], whole: Sequence[int]) -> int:
    """Return the length of the common prefix of both."""
    differing = (place for place, (own, other) in enumerate(zip(head, whole, strict=False)) if own != other)
    return next(differing, min(len(head), len(whole)))
