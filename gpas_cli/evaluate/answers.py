"""Questions whose answer is a span of a passage (SQuAD v1.1, Rajpurkar et al. 2016), and their exact match and F1.

An encoder with a head for answers reads "question, passage" and gives each token a logit for being the first of the
answer and one for being the last. The answer is the span of at most 30 tokens with the largest sum of both, over all
windows of the passage: of 384 tokens, each beginning 128 tokens after the one before (BERT, Devlin et al. 2019).

    exact match   whether the answer is one of those that people gave
    F1            2 p r / (p + r) over the words that the answer shares with theirs, the largest over their answers

both without case, punctuation, articles and additional blanks, as SQuAD's own script compares.
"""

from __future__ import annotations

import hashlib
import re
import string
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor

from gpas_cli import __version__
from gpas_cli.data.tokenizer import Tokenizer
from gpas_cli.evaluate.likelihood import Scorer, ScoringStopped, never, padded
from gpas_cli.evaluate.task_score import Report, TaskScore, TaskScorer
from gpas_cli.evaluate.tasks.forms import SpanQuestion
from gpas_cli.spec.downstream import DIGEST_DIGITS

_WINDOW = 384  # tokens of question and passage together
_STRIDE = 128  # tokens of the passage by which a window is later than the one before
_QUESTION_TOKENS = 64  # longer questions lose their end
_ANSWER_TOKENS = 30
_RECIPE = "1"  # part of the version; increased when the same documents get other scores
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True)
class _Window:
    """A part of a passage with its question. place: the question's place among all. offsets: of each token in the
    passage, None outside of it."""

    place: int
    tokens: tuple[int, ...]
    types: tuple[int, ...]
    offsets: tuple[tuple[int, int] | None, ...]


def answers_scorer(name: str, questions: Sequence[SpanQuestion], scorer: Scorer, tokenizer: Tokenizer) -> TaskScorer:
    """Return what measures `exact_match` and `f1` of questions. `scorer` has an `Encoder` with a head for answers."""
    digest = hashlib.sha256(repr(questions).encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_DIGITS]
    windows = [one for place, question in enumerate(questions) for one in _windows(place, question, tokenizer, scorer)]
    windows.sort(key=lambda window: -len(window.tokens))

    def score(progress: Report | None = None, stop: Callable[[], bool] = never) -> list[TaskScore]:
        best = [(-torch.inf, "")] * len(questions)
        done = 0
        while done < len(windows):
            if stop():
                raise ScoringStopped
            batch = windows[done : done + max(1, scorer.tokens_at_once // len(windows[done].tokens))]
            for window, (score, start, end) in zip(batch, _best_spans(scorer, batch), strict=True):
                first, last = window.offsets[start], window.offsets[end]
                if score > best[window.place][0] and first and last:
                    best[window.place] = (score, questions[window.place].passage[first[0] : last[1]])
            done += len(batch)
            if progress is not None:
                progress(done, len(windows))
        texts = [text for _, text in best]
        return answer_scores(name, texts, [one.answers for one in questions], f"{_RECIPE}-{digest}")

    return score


def answer_scores(
    name: str, found: Sequence[str], expected: Sequence[Sequence[str]], version: str, shots: int = 0
) -> list[TaskScore]:
    """Return `exact_match` and `f1` of answers, where each question has several expected ones, the best of which
    counts. version: that of the task."""
    pairs = list(zip(found, expected, strict=True))
    values = {"exact_match": [exact_match(*pair) for pair in pairs], "f1": [f1(*pair) for pair in pairs]}
    return [
        TaskScore(
            task=name, metric=metric, value=mean(own), examples=len(own),
            stderr=stdev(own) / len(own) ** 0.5 if len(own) > 1 else None,
            task_version=version, harness=f"gpas_cli {__version__}", shots=shots,
        )
        for metric, own in values.items()
    ]  # fmt: skip


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


def _compared(text: str) -> str:
    """Return a text without case, punctuation, articles and additional blanks."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split())


def exact_match(answer: str, expected: Sequence[str]) -> float:
    """Return 1 if an answer is one of the expected ones, else 0."""
    return float(_compared(answer) in map(_compared, expected))


def f1(answer: str, expected: Sequence[str]) -> float:
    """Return the largest F1 of an answer's words with those of an expected one."""
    return max(_f1(_compared(answer).split(), _compared(one).split()) for one in expected)


def _f1(found: Sequence[str], expected: Sequence[str]) -> float:
    shared = (Counter(found) & Counter(expected)).total()
    return 2 * shared / (len(found) + len(expected)) if shared else 0.0
