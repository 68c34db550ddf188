"""Batches for span corruption: a row's inputs with sentinels in place of spans, followed by the spans as targets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpas_cli.data.draw import Draw
from gpas_cli.data.loader import IGNORED, Batch
from gpas_cli.data.order import Words
from gpas_cli.data.rows import Ints
from gpas_cli.spec.objective import MODES, Denoiser, Spans


@dataclass(frozen=True)
class SpanReader:
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
        intact, corrupted = span_lengths(denoiser, kept, words[1:])
        bounds = np.cumsum(np.stack([intact, corrupted], axis=1).ravel())
        pieces = np.split(tokens[:kept], bounds[:-1])
        sentinels = [np.array([self.vocab - 1 - number]) for number in range(len(intact))]
        mode = [np.array([self._mode(denoiser)])] if self.spec.modes else []
        seen = [part for pair in zip(pieces[0::2], sentinels, strict=True) for part in pair]
        hidden = [part for pair in zip(sentinels, pieces[1::2], strict=True) for part in pair]
        return np.concatenate([*mode, *seen]), np.concatenate([*hidden, np.array([self.end_id])])

    def _mode(self, denoiser: Denoiser) -> int:
        return self.vocab - self.spec.reserved + MODES.index(denoiser.mode)


def span_lengths(denoiser: Denoiser, tokens: int, words: Words) -> tuple[Ints, Ints]:
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
