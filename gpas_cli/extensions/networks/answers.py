"""Answers that are spans of a passage (SQuAD v1.1, Rajpurkar et al. 2016).

An encoder with a head for answers reads "question, passage" and gives each token a logit for being the first of the
answer and one for being the last. The answer is the span of at most 30 tokens with the largest sum of both, over all
windows of the passage: of 384 tokens, each beginning 128 tokens after the one before (BERT, Devlin et al. 2019).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from gpas_cli.data.tokenizer import Tokenizer
from gpas_cli.evaluate.answers import answer_scores
from gpas_cli.evaluate.likelihood import Report, Scorer, in_batches, padded
from gpas_cli.evaluate.tasks import TaskScorer
from gpas_cli.evaluate.tasks.forms import SpanQuestion
from gpas_cli.events import Score
from gpas_cli.spec.downstream import DIGEST_DIGITS
from gpas_cli.structure import Frozen

_WINDOW = 384  # tokens of question and passage together
_STRIDE = 128  # tokens of the passage by which a window is later than the one before
_QUESTION_TOKENS = 64  # longer questions lose their end
_ANSWER_TOKENS = 30
_RECIPE = "1"  # part of the version; increased when the same documents get other scores


class _Window(Frozen):
    """A part of a passage with its question."""

    place: int  # the question's place among all
    tokens: tuple[int, ...]
    types: tuple[int, ...]
    offsets: tuple[tuple[int, int] | None, ...]  # of each token in the passage, None outside of it


def answers_scorer(name: str, questions: Sequence[SpanQuestion], scorer: Scorer, tokenizer: Tokenizer) -> TaskScorer:
    """Return what measures `exact_match` and `f1` of questions. `scorer` has an `Encoder` with a head for answers."""
    digest = hashlib.sha256(repr(questions).encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_DIGITS]
    windows = [one for place, question in enumerate(questions) for one in _windows(place, question, tokenizer, scorer)]
    lengths = [len(window.tokens) for window in windows]

    def score(progress: Report | None = None) -> list[Score]:
        best = [(-torch.inf, "")] * len(questions)
        for numbers in in_batches(lengths, scorer.tokens_at_once, progress, scorer.stop):
            batch = [windows[number] for number in numbers]
            for window, (score, start, end) in zip(batch, _best_spans(scorer, batch), strict=True):
                first, last = window.offsets[start], window.offsets[end]
                if score > best[window.place][0] and first and last:
                    best[window.place] = (score, questions[window.place].passage[first[0] : last[1]])
        texts = [text for _, text in best]
        return answer_scores(name, texts, [one.answers for one in questions], f"{_RECIPE}-{digest}")

    return score


def _windows(place: int, asked: SpanQuestion, tokenizer: Tokenizer, scorer: Scorer) -> Iterator[_Window]:
    """Yield the windows of a question's passage.

    They are cut here, as tokenizers 0.23.1 and 0.23.2 drop most of a long passage when they truncate a pair.
    """
    backend = tokenizer.backend
    most = min(_WINDOW, scorer.max_length)
    question = backend.encode(asked.question, add_special_tokens=False)
    question.truncate(min(_QUESTION_TOKENS, most // 4))
    passage = backend.encode(asked.passage, add_special_tokens=False)
    room = most - len(question) - backend.num_special_tokens_to_add(is_pair=True)
    passage.truncate(room, stride=max(0, room - _STRIDE))
    for own in (passage, *passage.overflowing):
        part = backend.post_process(question, own)
        offsets = (at if which == 1 else None for at, which in zip(part.offsets, part.sequence_ids, strict=True))
        yield _Window(place, tuple(part.ids), tuple(part.type_ids), tuple(offsets))


def _best_spans(scorer: Scorer, windows: Sequence[_Window]) -> list[tuple[float, int, int]]:
    """Return the sum of logits, the first and the last token of the best span of each window."""
    longest = len(windows[0].tokens)
    device = scorer.precision.device
    tokens = padded([window.tokens for window in windows], device)
    types = padded([window.types for window in windows], device)
    mask = padded([[1] * len(window.tokens) for window in windows], device)
    inside = padded([[int(at is not None) for at in window.offsets] for window in windows], device).bool()
    encoder: Any = scorer.network
    with torch.no_grad(), scorer.precision.compute():
        logits: Tensor = encoder.answer_logits(tokens, mask, types)
    starts, ends = logits.float().masked_fill(~inside[..., None], -torch.inf).unbind(-1)
    sums = starts[:, :, None] + ends[:, None, :]
    allowed = torch.ones(longest, longest, dtype=torch.bool, device=device).triu().tril(_ANSWER_TOKENS - 1)
    scores, places = sums.masked_fill(~allowed, -torch.inf).flatten(1).max(1)
    return [(score, *divmod(place, longest)) for score, place in zip(scores.tolist(), places.tolist(), strict=True)]
