"""How rows of tokens become inputs and targets, by objective: the next token, masked tokens, or corrupted spans.

Masking replaces chosen tokens in the inputs; they are the targets. Span corruption puts sentinels in place of spans of
the inputs; the spans follow as targets.
"""

from __future__ import annotations

import numpy as np

from gpas_cli.data.loader import CAUSAL, IGNORED, Batch, CausalReader, Draw, RowReader, Words, uniform
from gpas_cli.data.pairs import SEPARATOR
from gpas_cli.data.rows import Ints
from gpas_cli.data.tokenizer import Tokenizer, no_such_token
from gpas_cli.errors import DataError
from gpas_cli.spec.cell import Cell
from gpas_cli.spec.objective import MODES, Denoiser, Masked, Spans, Translated
from gpas_cli.structure import Frozen

_NO_ID = -1


def reader_of(cell: Cell, tokenizer: Tokenizer | None = None) -> RowReader:
    """Return the reader of the cell's objective, for tokens from no tokenizer without one.

    Raises DataError if the tokenizer has no token that the objective needs.
    """
    objective, vocab = cell.objective, cell.model.size.vocab
    end_id = tokenizer.eos_id if tokenizer else _NO_ID
    if isinstance(objective, Translated):
        return _PairReader(_separator_of(tokenizer) if tokenizer else _NO_ID, end_id)
    if isinstance(objective, Masked):
        mask_id = _mask_of(objective, tokenizer) if tokenizer and objective.mask_token else vocab - 1
        return MaskedReader(objective, cell.data.length, mask_id, cell.text_vocab, end_id)
    if isinstance(objective, Spans):
        return _SpanReader(objective, cell.data.length, vocab, end_id)
    return CAUSAL if cell.data.documents == "joined" else CausalReader(end_id)


def _separator_of(tokenizer: Tokenizer) -> int:
    """Return the id of the line end, which separates pairs. Raises DataError if no token stands for it alone."""
    found = tokenizer.encode(SEPARATOR)
    if len(found) != 1:
        raise DataError(f"data.tokenizer: {tokenizer.origin} has no token for a line end, which separates pairs")
    return found[0]


def _mask_of(objective: Masked, tokenizer: Tokenizer) -> int:
    """Return the id of the tokenizer's mask token. Raises DataError if there is none of that name."""
    found = tokenizer.id_of(objective.mask_token)
    if found is None:
        raise DataError(no_such_token(tokenizer.origin, f"'{objective.mask_token}' below {tokenizer.vocab}"))
    return found


class _SpanReader(Frozen):
    """Reads rows of at most `length` tokens as `spec` says, with the last ids of `vocab` as sentinels and modes."""

    spec: Spans
    length: int
    vocab: int
    end_id: int

    def batch(self, tokens: Ints, sizes: Ints, rows: Ints, draw: Draw) -> Batch:
        """Return the batch of rows (n, width), of which the first `sizes` tokens count.

        A row too short to corrupt has no target.
        """
        inputs = np.zeros((len(rows), self.length), np.int64)
        targets = np.full((len(rows), self.length), IGNORED)
        prefix = np.ones(len(rows), np.int64)
        for i, row in enumerate(rows.tolist()):
            seen, hidden = self.corrupt(tokens[i, : min(int(sizes[i]), self.length)], draw.words(row, 2 * self.length))
            whole = np.concatenate([seen, hidden])
            inputs[i, : len(whole) - 1] = whole[:-1]
            targets[i, len(seen) - 1 : len(whole) - 1] = hidden
            prefix[i] = len(seen)
        return Batch(inputs, targets, prefix=prefix)

    def corrupt(self, tokens: Ints, words: Words) -> tuple[Ints, Ints]:
        """Return the inputs and the targets of a row."""
        denoisers = self.spec.each
        denoiser = denoisers[int(words[0] % np.uint64(len(denoisers)))]
        kept = denoiser.fitting(len(tokens), self.length + 1 - self.spec.overhead)
        if not kept:
            return tokens[:1], tokens[:0]
        intact, corrupted = _span_lengths(denoiser, kept, words[1:])
        bounds = np.cumsum(np.stack([intact, corrupted], axis=1).ravel())
        pieces = np.split(tokens[:kept], bounds[:-1])
        sentinels = [np.array([self.vocab - 1 - number]) for number in range(len(intact))]
        first = self.vocab - self.spec.reserved  # of the ids of modes
        mode = [np.array([first + MODES.index(denoiser.mode)])] if self.spec.modes else []
        seen = [part for pair in zip(pieces[0::2], sentinels, strict=True) for part in pair]
        hidden = [part for pair in zip(sentinels, pieces[1::2], strict=True) for part in pair]
        return np.concatenate([*mode, *seen]), np.concatenate([*hidden, np.array([self.end_id])])


def _span_lengths(denoiser: Denoiser, tokens: int, words: Words) -> tuple[Ints, Ints]:
    """Return the lengths of the intact and of the corrupted spans of `tokens` tokens, which alternate from the first.

    All ways to divide the corrupted tokens into spans are equally likely, and all ways to divide the others.
    """
    corrupted = denoiser.corrupted(tokens)
    spans = denoiser.spans(tokens)
    intact = _parts(tokens - corrupted, spans, words[:tokens])
    return intact, _parts(corrupted, spans, words[tokens:])


def _parts(total: int, parts: int, words: Words) -> Ints:
    """Return `parts` positive numbers with the sum `total`, drawn uniformly by means of at least `total` words."""
    cuts = np.sort(np.argsort(words[: total - 1], kind="stable")[: parts - 1]) + 1
    return np.diff(np.concatenate([[0], cuts, [total]]))


class _PairReader(Frozen):
    """Reads pairs: the tokens up to the separator are the prefix, and those after it the targets.

    A row without a separator, or without an end, is a pair that is too long, and has no target. separator: `_NO_ID` for
    tokens of no tokenizer, whose rows are divided in the middle.
    """

    separator: int
    end_id: int

    def batch(self, tokens: Ints, sizes: Ints, rows: Ints, draw: Draw) -> Batch:
        """Return the batch of rows (n, width), of which the first `sizes` tokens count, as wide as the longest."""
        tokens = tokens[:, : max(2, int(sizes.max()))]
        places = np.arange(tokens.shape[1])
        if self.separator == _NO_ID:
            whole, prefix = sizes > 1, np.maximum(sizes // 2, 1)
        else:
            found = (tokens == self.separator) & (places < sizes[:, None])
            whole = found.any(1) & (tokens[np.arange(len(tokens)), sizes - 1] == self.end_id)
            prefix = np.where(whole, np.argmax(found, 1) + 1, 1)
        counts = whole[:, None] & (places >= prefix[:, None]) & (places < sizes[:, None])
        return Batch(tokens[:, :-1].copy(), np.where(counts, tokens, IGNORED)[:, 1:], prefix=prefix)


class MaskedReader(Frozen):
    """Reads rows of at most `length` tokens as `spec` says."""

    spec: Masked
    length: int
    mask_id: int  # the id of the mask token
    ids: int  # random tokens are below it
    end_id: int  # the end token, which is never chosen

    def batch(self, tokens: Ints, sizes: Ints, rows: Ints, draw: Draw) -> Batch:
        """Return the batch of rows (n, width), of which the first `sizes` tokens count; every token sees all of them.

        Whether a token is chosen, what becomes of it, and by which token it is replaced are three independent draws.
        """
        tokens = tokens[:, : self.length]
        sizes = np.minimum(sizes, self.length)
        width = tokens.shape[1]
        words = np.stack([draw.words(row, 3 * width) for row in rows.tolist()]).reshape(len(rows), 3, width)
        real = np.arange(width) < sizes[:, None]
        chosen = real & (tokens != self.end_id) & (uniform(words[:, 0]) < self.spec.rate)
        fate = uniform(words[:, 1])
        masked = chosen & (fate < self.spec.mask)
        randomised = chosen & ~masked & (fate < self.spec.mask + self.spec.random)
        inputs = tokens.copy()
        inputs[masked] = self.mask_id
        inputs[randomised] = (words[:, 2] % np.uint64(self.ids))[randomised].astype(np.int64)
        return Batch(inputs, np.where(chosen, tokens, IGNORED), prefix=sizes)
