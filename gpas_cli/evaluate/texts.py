"""Perplexities of a network on further texts: by word, by token and in bits per byte.

Documents longer than the network is given at once are divided into windows: every token is predicted once, the first of
a document after the end token, as in training, the first of a later window after the last token before it, and those of
the last window with as much context as fits. lm-evaluation-harness divides documents in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from gpas_cli import __version__
from gpas_cli.data.text_documents import ScoredText, TextDocument, read_text
from gpas_cli.data.tokenizer import Tokenizer
from gpas_cli.evaluate.likelihood import Request, Scorer, never
from gpas_cli.evaluate.task_score import MissingTask, Progress, Report, TaskScore, scored_in_turn
from gpas_cli.spec.downstream import Texts
from gpas_cli.train.evaluate import perplexity

_PROGRAM = f"gpas-cli {__version__}"


def score_texts(
    section: Texts,
    scorer: Scorer,
    tokenizer: Tokenizer,
    root: Path,
    *,
    skip: Iterable[str] = (),
    progress: Progress | None = None,
    stop: Callable[[], bool] = never,
) -> Iterator[list[TaskScore] | MissingTask]:
    """Yield the scores of each text whose name is not in `skip`, or why it has none. `root` is where paths start.

    The perplexity by word comes last. Raises ScoringStopped once `stop` returns true.
    """
    paths = dict(zip(section.names, section.texts, strict=True))

    def scores_of(name: str, report: Report | None) -> list[TaskScore]:
        return _scores_of(name, read_text(paths[name], root, section.limit), scorer, tokenizer, report, stop)

    return scored_in_turn(section.names, scores_of, skip, progress)


def _scores_of(
    name: str,
    text: ScoredText,
    scorer: Scorer,
    tokenizer: Tokenizer,
    progress: Report | None,
    stop: Callable[[], bool],
) -> list[TaskScore]:
    """Return the loss in nats per token, the bits per byte and the perplexity by word of one text."""
    by_document = [list(requests(document, tokenizer, scorer.max_length)) for document in text.documents]
    answers = scorer.score([request for own in by_document for request in own], progress, stop)
    nats = -math.fsum(answer.total for answer in answers)
    tokens = sum(len(request.continuation) for own in by_document for request in own)
    words = sum(document.words for document in text.documents)
    size = sum(document.size for document in text.documents)
    values = {
        "text_loss": nats / max(1, tokens),
        "text_bits_per_byte": nats / math.log(2) / size,
        "text_perplexity": perplexity(nats / words),
    }
    return [
        TaskScore(
            task=name, metric=metric, value=value, stderr=None, examples=len(text.documents),
            task_version=text.digest, harness=_PROGRAM,
        )
        for metric, value in values.items()
    ]  # fmt: skip


def requests(document: TextDocument, tokenizer: Tokenizer, max_length: int) -> Iterator[Request]:
    """Yield the requests that predict every token of the document's text once, at most `max_length` tokens at once."""
    if document.context:
        yield Request.of_text(tokenizer, document.context, document.text)
        return
    first = (tokenizer.start or (tokenizer.eos_id,))[-1:]
    yield from windows((*first, *tokenizer.encode(document.text)), max_length)


def windows(tokens: Sequence[int], max_length: int) -> Iterator[Request]:
    """Yield requests that predict each of `tokens` but the first, which is only a context."""
    for start in range(1, len(tokens), max_length):
        end = min(start + max_length, len(tokens))
        # The inputs of a window are its context and all but the last of its tokens.
        earliest = max(0, end - 1 - max_length)
        yield Request(tuple(tokens[earliest:start]), tuple(tokens[start:end]))
