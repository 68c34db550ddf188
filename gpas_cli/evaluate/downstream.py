"""Score a network at downstream tasks and on further texts, one after the other.

Embedded tasks and local files are scored here, with the metrics of lm-evaluation-harness: `acc`, the share of questions
whose right choice has the largest log p given the context, and `acc_norm`, where log p is divided by the characters of
the choice. Tasks with generated answers are scored in `evaluate.answers`, all other ones by the harness itself
(the extension `harness`).

Texts have perplexities by word and by token, and bits per byte. Documents longer than the network is given at once are
divided into windows: every token is predicted once, the first of a document after the tokenizer's first token, the
first of a later window after the last token before it, and the tokens of the last window with as much context as fits.
lm-evaluation-harness divides documents in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from gpas_cli import __version__
from gpas_cli.data.questions import Question
from gpas_cli.data.text_documents import TextDocument, read_text
from gpas_cli.data.tokenizer import Tokenizer
from gpas_cli.errors import GpasError
from gpas_cli.evaluate.answers import generated_scorer
from gpas_cli.evaluate.likelihood import Likelihood, Report, Request, Scorer
from gpas_cli.evaluate.tasks import NothingFits, TaskScorer, TaskUnavailable
from gpas_cli.evaluate.tasks.local import GeneratedTask, MultipleChoice, direct_task
from gpas_cli.events import Score
from gpas_cli.extension import missing
from gpas_cli.spec.downstream import HARNESS, SKIPPED, SQUAD, Downstream, Texts, base_name, most_generated
from gpas_cli.spec.extensions import part
from gpas_cli.train.evaluate import perplexity
from gpas_cli.words import count

_HARNESS = f"gpas_cli {__version__}"


def score_task(
    name: str, section: Downstream, scorer: Scorer, tokenizer: Tokenizer, root: Path, report: Report | None = None
) -> list[Score]:
    """Return the scores of one task; the metric `skipped` alone if no question fits.

    `root`: the folder of experiments.yaml. Raises TaskUnavailable, and ScoringStopped as the scorer.
    """
    try:
        return task_scorer(name, section, scorer, tokenizer, root)(report)
    except NothingFits as error:
        return [Score(name, SKIPPED, error.questions, examples=0, harness=_HARNESS, shots=section.shots)]


def unscored(missing: Mapping[str, GpasError], asked: int, noun: str = "task") -> str:
    """Return which of `asked` tasks could not be scored, and why; "" if all were."""
    if not missing:
        return ""
    reasons = list(dict.fromkeys(map(str, missing.values())))
    others = "; `gpas logs` has the other reasons" if len(reasons) > 1 else ""
    return f"{len(missing)} of {count(asked, noun)} not scored ({', '.join(missing)}): {reasons[0]}{others}"


def task_scorer(name: str, section: Downstream, scorer: Scorer, tokenizer: Tokenizer, root: Path) -> TaskScorer:
    """Read a task, and return what scores the network at it. Raises TaskUnavailable."""
    task = direct_task(name, root)
    limit = section.limit or None
    if task is not None and base_name(name) == SQUAD:
        asked: Sequence[Any] = task.questions()[:limit]
        answering: Callable[..., TaskScorer] = part(SQUAD)
        return answering(name, asked, scorer, tokenizer)
    if isinstance(task, GeneratedTask) and most_generated(name):
        return generated_scorer(task, scorer, tokenizer, shots=section.shots, limit=limit)
    if isinstance(task, MultipleChoice):
        return choices_scorer(task, scorer, tokenizer, limit=limit)
    if reason := missing(HARNESS):
        raise TaskUnavailable(reason)
    official: Callable[..., TaskScorer] = part(HARNESS)
    return official(name, scorer, tokenizer, shots=section.shots, limit=limit)


def choices_scorer(
    task: MultipleChoice, scorer: Scorer, tokenizer: Tokenizer, *, limit: int | None = None
) -> TaskScorer:
    """Return what measures `acc` and `acc_norm` of the first `limit` questions of a task, without
    lm-evaluation-harness.

    Questions with a choice that the scorer cannot take are left out, and their number is the metric `skipped`. Raises
    NothingFits if no question is left.
    """
    asked = [(number, one, _requests_of(one, tokenizer)) for number, one in enumerate(task.questions()[:limit])]
    fitting = [one for one in asked if all(map(scorer.fits, one[2]))]
    if not fitting:
        raise NothingFits(len(asked), scorer.max_length)

    def score(progress: Report | None = None) -> list[Score]:
        likelihoods = iter(scorer.score([request for *_, own in fitting for request in own], progress))
        right = {"acc": list[bool](), "acc_norm": list[bool]()}
        for number, question, own in fitting:
            mine = list(islice(likelihoods, len(own)))
            right["acc"].append(_chosen(question, mine, by_length=False) == question.answer)
            right["acc_norm"].append(_chosen(question, mine, by_length=True) == question.answer)
            if scorer.samples is not None:
                found = [(one.total, one.greedy) for one in mine]
                hits = {metric: float(own_hits[-1]) for metric, own_hits in right.items()}
                scorer.samples.append({"doc_id": number, "target": question.answer, "filtered_resps": found, **hits})
        values = {metric: (sum(hits) / len(hits), standard_error(hits)) for metric, hits in right.items()}
        if len(fitting) < len(asked):
            values[SKIPPED] = (len(asked) - len(fitting), None)
        made = partial(Score, task.name, examples=len(fitting), task_version=task.version, harness=_HARNESS)
        return [made(metric, value, stderr=stderr) for metric, (value, stderr) in values.items()]

    return score


def _requests_of(question: Question, tokenizer: Tokenizer) -> list[Request]:
    """Return a request for each choice of a question, in order."""
    return [
        Request.of_text(tokenizer, question.context_of(number), question.delimiter + choice)
        for number, choice in enumerate(question.choices)
    ]


def _chosen(question: Question, likelihoods: Sequence[Likelihood], *, by_length: bool) -> int:
    """Return the choice with the largest log p, the first of several."""
    lengths = [max(1, len(choice)) if by_length else 1 for choice in question.choices]
    scores = [one.total / length for one, length in zip(likelihoods, lengths, strict=True)]
    return scores.index(max(scores))


def standard_error(hits: Sequence[bool]) -> float | None:
    """Return the standard error of the share of hits, sd / sqrt(n) with the sample's standard deviation."""
    count = len(hits)
    if count < 2:
        return None
    share = sum(hits) / count
    return math.sqrt(share * (1 - share) / (count - 1))


def score_text(
    name: str, section: Texts, scorer: Scorer, tokenizer: Tokenizer, root: Path, report: Report | None = None
) -> list[Score]:
    """Return the loss in nats per token, the bits per byte and the perplexity by word of one text, in this order.

    `root` is where paths start. Raises DataError if the text is unavailable, and ScoringStopped as the scorer.
    """
    text = read_text(section.texts[section.names.index(name)], root, section.limit)
    by_document = [list(requests(document, tokenizer, scorer.max_length)) for document in text.documents]
    answers = scorer.score([request for own in by_document for request in own], report)
    nats = -math.fsum(answer.total for answer in answers)
    tokens = sum(len(request.continuation) for own in by_document for request in own)
    words = sum(document.words for document in text.documents)
    size = sum(document.size for document in text.documents)
    how = "by the last word of each document"
    if not any(document.context for document in text.documents):
        how = (
            f"in windows of {scorer.max_length} tokens, the first of a document after {tokenizer.first}, "
            "later ones after the token before them"
        )
    values = {
        "text_loss": nats / max(1, tokens),
        "text_bits_per_byte": nats / math.log(2) / size,
        "text_perplexity": perplexity(nats / words),
    }
    made = partial(Score, name, examples=len(text.documents), task_version=text.digest, harness=f"{_HARNESS} {how}")
    return [made(metric, value) for metric, value in values.items()]


def requests(document: TextDocument, tokenizer: Tokenizer, max_length: int) -> Iterator[Request]:
    """Yield the requests that predict every token of the document's text once, at most `max_length` tokens at once."""
    if document.context:
        yield Request.of_text(tokenizer, document.context, document.text)
        return
    yield from windows((tokenizer.first_id, *tokenizer.encode(document.text)), max_length)


def windows(tokens: Sequence[int], max_length: int) -> Iterator[Request]:
    """Yield requests that predict each of `tokens` but the first, which is only a context."""
    for start in range(1, len(tokens), max_length):
        end = min(start + max_length, len(tokens))
        # The inputs of a window are its context and all but the last of its tokens.
        earliest = max(0, end - 1 - max_length)
        yield Request(tuple(tokens[earliest:start]), tuple(tokens[start:end]))
